"""JSON that a model wrote: finds the end of a streamed value, and parses values strictly."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 64  # nested arrays and objects
MAX_CHARACTERS = 1 << 18  # of one value
_OUTSIDE = re.compile(r'["\[\]{}]')
_INSIDE = re.compile(r'["\\]')


class JsonError(ValueError):
    """The text is not the JSON that is expected; the message says what is wrong, and where."""


class ValueSpan:
    """Finds the end of an object or array that arrives in pieces, in time linear in their length."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last character was a backslash in a string

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, piece: str) -> int | None:
        """Takes a piece; the first one begins with the value's bracket.

        Returns:
            The number of the piece's characters that belong to the value, if it is complete now; else None.

        Raises:
            JsonError: The value is too long, or nested too deep.
        """
        at, room = 0, MAX_CHARACTERS - self._length
        whole, piece = piece, piece[:room]
        while at < len(piece):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(piece, at)
            if found is None:
                break
            at = found.end()
            if self._step(found[0]):
                self._keep(piece[:at])
                return at
        self._keep(whole)
        return None

    def _step(self, char: str) -> bool:
        """Whether the character ends the value."""
        if char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = not self._in_string
        elif char in "[{":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise JsonError(f"nested deeper than {MAX_DEPTH} levels")
        else:
            self._depth -= 1
            return self._depth == 0
        return False

    def _keep(self, piece: str) -> None:
        self._length += len(piece)
        if self._length > MAX_CHARACTERS:
            raise JsonError(f"longer than {MAX_CHARACTERS:,} characters")
        self._pieces.append(piece)


def read_strictly(text: str) -> Any:
    """The value of a JSON text whose depth and length a `ValueSpan` has bounded.

    Raises:
        JsonError: The text is malformed, or has a name twice in one object, NaN, infinity, a number that is too large, or a
            lone surrogate.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as fault:
        raise JsonError(f"no JSON: {fault.msg} at character {fault.pos + 1:,}") from fault
    except UnicodeEncodeError as fault:
        raise JsonError("a lone surrogate (half of a character) in a text") from fault
    except JsonError:
        raise
    except (ValueError, RecursionError) as fault:  # an integer with more digits than Python parses
        raise JsonError(f"no JSON that can be read: {fault}") from fault
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in made if names.count(name) > 1)
        raise JsonError(f"the name {twice[:60]!r} stands twice in one object")
    return made


def _refuse(constant: str) -> NoReturn:
    raise JsonError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonError(f"the number {digits[:40]} is too large")
    return number
