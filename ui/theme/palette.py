"""The colours, in light and dark, and the surprise ramp that colours tokens."""

from __future__ import annotations

from dataclasses import dataclass

SURPRISE_STEPS_BITS = (0.5, 1.5, 3.0, 5.0, 8.0)  # below the first: no colour


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours as "#rrggbb". `surprise` runs from least to most; None is no colour.

    `difference` has three steps of what a second model gave less (orange), then three of what it gave more (blue): the pair
    that every kind of colour vision tells apart. Text keeps its colour on all of them.
    """

    dark: bool
    window: str
    sidebar: str
    panel: str
    card: str
    text: str
    soft: str
    faint: str
    hairline: str
    selection: str
    accent: str
    bar: str
    bar_rest: str
    disk: str
    code: str
    literal: str  # strings and numbers in code: cool, for warm is what was unlikely
    on_accent: str
    on_strongest: str
    surprise: tuple[str | None, str, str, str, str, str]
    difference: tuple[str | None, str, str, str, str, str, str]

    def step(self, bits: float) -> int:
        """Which place of `surprise` a surprisal in bits takes (0-5)."""
        return sum(bits >= step for step in SURPRISE_STEPS_BITS)


LIGHT = Palette(
    dark=False,
    window="#fcfcfa",
    sidebar="#f4f4f1",
    panel="#f8f8f5",
    card="#ffffff",
    text="#1d1d1b",
    soft="#6d6d67",
    faint="#a3a29b",
    hairline="#e5e4df",
    selection="#e4efe9",
    accent="#0b6b5a",
    bar="#0b6b5a",
    bar_rest="#b9d8cf",
    disk="#9cc4b8",
    code="#f1f1ed",
    literal="#3d5a80",
    on_accent="#fcfcfa",
    on_strongest="#ffffff",
    surprise=(None, "#fbeedd", "#f8dcb4", "#f2b981", "#e98f5f", "#d9603f"),
    difference=(None, "#fdebd3", "#f8cd98", "#ee9f4c", "#dfeaf6", "#abcbea", "#6ea8dc"),
)

DARK = Palette(
    dark=True,
    window="#1c1d1c",
    sidebar="#161716",
    panel="#191a19",
    card="#262725",
    text="#ecece7",
    soft="#a2a29b",
    faint="#6d6d68",
    hairline="#2d2e2c",
    selection="#22302c",
    accent="#5fc9b1",
    bar="#5fc9b1",
    bar_rest="#2c4f47",
    disk="#366e61",
    code="#242523",
    literal="#9db8d9",
    on_accent="#1c1d1c",
    on_strongest="#ffffff",
    surprise=(None, "#33291c", "#4a3720", "#6b4a26", "#8f5a2e", "#b5532f"),
    difference=(None, "#33291b", "#5a4019", "#875614", "#1b2b3b", "#234769", "#2b649c"),
)
