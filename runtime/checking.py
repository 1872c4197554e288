"""What the checks of options share: one value within its range, and a hint for a misspelt name."""

from __future__ import annotations

import math
from collections.abc import Iterable

from runtime.errors import InvalidRequestError

MISTYPED = 0.75  # from here on a name is another one with a letter or two wrong
LIKE = 0.6  # below this there is nothing in common that a reader would see
LONGEST_NAME = 100  # characters that are compared: the time grows with their square
FEW = 12  # names that a reader looks through at once


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, and all of them where none is much like it."""
    import difflib  # for a mistake alone: the window opens without it
    import re

    known = sorted(known)
    asked = name[:LONGEST_NAME].casefold()
    alike = {each: difflib.SequenceMatcher(None, each.casefold(), asked).ratio() for each in known}  # 0 to 1
    words = set(re.findall(r"\w{3,}", asked.replace("_", " ")))
    sharing = [each for each in known if words.intersection(each.casefold().replace("_", " ").split())]
    best = max(known, key=lambda each: (alike[each], each), default="")
    if sharing and alike[best] < MISTYPED:  # `penalty`, `eos`: a part of the name that was meant
        return f"did you mean {max(sharing, key=alike.__getitem__)!r}?"
    if best and alike[best] >= LIKE:
        return f"did you mean {best!r}?"
    listed = f"known: {', '.join(known)}"
    return listed if len(known) <= FEW else f"the nearest is {best!r}; {listed}"


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
