"""What a reader makes of a finished JSON answer: its grammar saw characters, a program gets names and numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

# A name with the colon behind it, a text, or a number of a text that is JSON.
_PARTS = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*")(?=\s*:)|"(?:[^"\\]|\\.)*"|(?P<number>-?\d[\d.eE+-]*)')
_DELETE = "\x7f"  # stands in names only by its escape, as llguidance writes JSON


def as_read(text: str) -> str | None:
    r"""A JSON text with every name and number as a reader has it; None where the text cannot be read, or not without loss.

    A grammar is a matter of characters. It forbids no name that comes twice in an object, of which a reader keeps one, and no
    number beyond what a float holds, which becomes infinite. It takes ``\u0061`` for another name than ``a``, and 1 with
    thirty digits less than one for less than 1. What is spelled as it is read is left as it is, so that the same text
    comes back where there is nothing to be looked at again.
    """
    try:
        json.loads(text, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError):  # a name that is no text is the first, too
        return None
    return _PARTS.sub(_spelled, text)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> None:
    """Refuses an object that has a name twice, or one that is no text: half of a character."""
    for name in (names := dict(pairs)):
        name.encode()
    if len(names) < len(pairs):
        raise ValueError("a name comes twice")


def _finite(digits: str) -> None:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits:.40} is infinite")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _spelled(part: re.Match[str]) -> str:
    """A name without needless escapes, a number of a fraction or an exponent as its float, if that is another."""
    whole, name, number = part[0], part["name"], part["number"]
    if name is not None and "\\" in name:
        return json.dumps(json.loads(name), ensure_ascii=False).replace(_DELETE, r"\u007f")
    if number is not None and not number.lstrip("-").isdigit():
        value = Decimal(repr(float(number) + 0.0))  # no negative zero
        return whole if _equal(number, value) else f"{value:f}"
    return whole


def _equal(digits: str, value: Decimal) -> bool:
    try:
        return Decimal(digits) == value
    except ArithmeticError:  # an exponent beyond what even a Decimal holds
        return False
