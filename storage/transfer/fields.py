"""Fields of an object that somebody else wrote: each is of its type and within its range, and no other is there."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

from storage.errors import InvalidFileError

MOST: Final = (1 << 63) - 1  # SQLite's largest whole number


class Fields:
    """One object of a file.

    Args:
        value: As decoded.
        name: Of the file.
        line: Where it begins.
        place: What it is, for messages.
        known: The names it may have; None: any.
    """

    def __init__(self, value: Any, name: str, line: int | None, place: str, known: Collection[str] | None = None) -> None:
        self._name, self._line, self._place = name, line, place
        if not isinstance(value, dict):
            raise self.fault(f"it should be an object, not {_kind(value)}")
        self._value: dict[str, Any] = value
        unknown = [each for each in value if known is not None and each not in known]
        if unknown:
            raise self.fault(f"{unknown[0]!r:.60} is no field of it")

    def fault(self, what: str) -> InvalidFileError:
        """An error that names this place."""
        return InvalidFileError(self._name, what, line=self._line, place=self._place)

    def text(self, field: str, among: Collection[str] | None = None) -> str:
        """A text, one of `among` where that is given."""
        found = self._need(field)
        if not isinstance(found, str):
            raise self.fault(f"{field} should be a text, not {_kind(found)}")
        if among is not None and found not in among:
            raise self.fault(f"{field} is one of {', '.join(sorted(among))}, not {found!r:.60}")
        return found

    def maybe_text(self, field: str) -> str | None:
        """A text, or None where there is none."""
        return None if self._value.get(field) is None else self.text(field)

    def whole(self, field: str, low: int = 0, high: int = MOST) -> int:
        """A whole number within a range."""
        found = self._need(field)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self.fault(f"{field} should be a whole number, not {_kind(found)}")
        if not low <= found <= high:
            shown = str(found) if abs(found) < 10**20 else "a number of more than 20 digits"
            raise self.fault(f"{field} should lie within {low:,} and {high:,}, it is {shown}")
        return found

    def maybe_whole(self, field: str, low: int = 0, high: int = MOST) -> int | None:
        """A whole number within a range, or None where there is none."""
        return None if self._value.get(field) is None else self.whole(field, low, high)

    def real(self, field: str) -> float:
        """A finite number."""
        found = self._need(field)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.fault(f"{field} should be a number, not {_kind(found)}")
        if abs(found) > 1e300 or not math.isfinite(found):
            raise self.fault(f"{field} is too large a number")
        return float(found)

    def flag(self, field: str) -> bool:
        """True or false."""
        found = self._need(field)
        if not isinstance(found, bool):
            raise self.fault(f"{field} should be true or false, not {_kind(found)}")
        return found

    def mapping(self, field: str) -> dict[str, Any]:
        """An object; empty where there is none."""
        found = self._value.get(field, {})
        if not isinstance(found, dict):
            raise self.fault(f"{field} should be an object, not {_kind(found)}")
        return found

    def any(self, field: str) -> Any:
        """Whatever stands there; None where nothing does."""
        return self._value.get(field)

    def _need(self, field: str) -> Any:
        if field not in self._value:
            raise self.fault(f"{field} is missing")
        return self._value[field]


def _kind(value: object) -> str:
    """What a value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {value!r:.40}"
        case dict():
            return "an object"
        case list():
            return "a list"
        case bytes():
            return "bytes"
    return "a number"
