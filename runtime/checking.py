"""What the checks of options share: one value within its range, and a hint for a misspelt name."""

from __future__ import annotations

import math
from collections.abc import Iterable

from runtime.errors import InvalidRequestError


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or the list of what there is."""
    import difflib  # for a mistake alone: the window opens without it

    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def whole(value: object, least: int) -> bool:
    """Whether it is a whole number, `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def in_range(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """Passes None and numbers within the range; infinity is never within.

    Raises:
        InvalidRequestError: Anything else; the message has name, range and value.
    """
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high or (open_low and value == low):  # type: ignore[arg-type, operator]  # a number from here on
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if high == math.inf else "]"
        raise InvalidRequestError(f"{name} must lie within {left}{low:g}, {high:g}{right}, not {value!r}")
