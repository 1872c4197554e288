"""The surprise ramp, which colours tokens in the window and in notebooks: the step of a surprisal, a colour for each step."""

from __future__ import annotations

from typing import Final

Ramp = tuple[str | None, str, str, str, str, str]  # "#rrggbb" from least to most surprising; None is no colour

STEPS_BITS: Final = (0.5, 1.5, 3.0, 5.0, 8.0)  # below the first: no colour
LIGHT: Final[Ramp] = (None, "#fbeedd", "#f8dcb4", "#f2b981", "#e98f5f", "#c44b2d")
DARK: Final[Ramp] = (None, "#33291c", "#4a3720", "#6b4a26", "#8f5a2e", "#b5532f")


def step_of(bits: float) -> int:
    """The place in a ramp (0-5) of a surprisal in bits; 0 for NaN."""
    return sum(bits >= step for step in STEPS_BITS)
