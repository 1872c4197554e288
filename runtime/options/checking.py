"""Rules of option values: each field of an options class has its rule, and one function checks all of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from runtime.errors import InvalidRequestError, OptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MISTYPED = 0.75  # least similarity (0 to 1) of a mistyped name
LIKE = 0.6  # least similarity for a suggestion
LONGEST_NAME = 100  # compared characters of a name: the time grows with their square
FEW = 12  # most names that a message lists without naming the nearest
MOST: Final = (1 << 63) - 1  # the largest whole number of an engine, a file and the pipe
MOST_SEED: Final = (1 << 64) - 1
TEXT_FOR_IDS: Final = "token ids must be whole numbers, not a text: model.tokenize(text) makes ids of it"
LARGEST: Final = 1e30  # the largest change of a score: float32 ends at 3e38, and infinity minus infinity is NaN
SHOWN = 80  # characters of a value in a message

Fault = Callable[[Any], str | None]
"""Checks a value: None where it is valid, else a message with ``{option}`` and ``{value}`` for its name and itself."""


def option(default: Any, fault: Fault) -> Any:  # of the field's own type
    """A field of an options class, with the rule for every value but the default."""
    return field(default=default, metadata={"fault": fault})


def check_fields(options: DataclassInstance, place: str = "") -> None:
    """Checks the fields of options that were made by `option`.

    Args:
        options: The options; fields that `option` did not make are ignored.
        place: A prefix for field names in messages, such as ``"blocks: "``.

    Raises:
        OptionError: For the first field that breaks its rule.
    """
    for name, fault, default in _rules(type(options)):
        value = getattr(options, name)
        if value is not default and (words := fault(value)) is not None:
            raise OptionError(words, place + name, shown(value))


def check_value(name: str, value: object, fault: Fault) -> None:
    """Checks a value against a rule.

    Raises:
        OptionError: The value breaks the rule.
    """
    words = fault(value)
    if words is not None:
        raise OptionError(words, name, shown(value))


@cache
def _rules(kind: type[DataclassInstance]) -> tuple[tuple[str, Fault, Any], ...]:
    return tuple((f.name, f.metadata["fault"], f.default) for f in fields(kind) if "fault" in f.metadata)


def plain_number(value: Any) -> Any:
    """A numpy scalar as a Python number; any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def check_callback(called: object, name: str = "on_progress") -> None:
    """Checks that a callback is callable or None, before the owner thread calls it.

    Raises:
        OptionError: The value is neither.
    """
    if called is not None and not callable(called):
        raise OptionError("{option} is a function, or None, not {value}", name, shown(called))


def check_path(given: object) -> Path:
    """A caller's path, checked.

    Raises:
        OptionError: Not a path, or an empty one.
    """
    check_value("path", given, path("the path of a file or folder"))
    return Path(given)  # type: ignore[arg-type]  # a text or a path


def shown(value: object) -> str:
    """A value as text for a message, cut to a readable length."""
    try:
        return f"{value!r:.{SHOWN}}"
    except Exception:  # noqa: BLE001  # for example an int of thousands of digits, or an object whose repr fails
        return f"a {type(value).__name__} that cannot be shown"


def check_token(name: str, token: object, vocab: int | None) -> None:
    """Checks a token id; `vocab`: the size of the vocabulary, None where it is not known.

    Raises:
        InvalidRequestError: Not a whole number, or outside the vocabulary.
    """
    if not is_whole(token, 0):
        raise InvalidRequestError(f"{name}: a token id is a whole number, 0 or more, not {shown(token)}")
    if vocab is not None and token >= vocab:  # type: ignore[operator]  # a whole number
        raise InvalidRequestError(f"{name}: token id {token} is outside the vocabulary of {vocab:,}")


def as_tuple(value: Any, one: type | tuple[()] = ()) -> Any:
    """A list, or a single item of the type `one`, as a tuple; any other value unchanged."""
    return (value,) if isinstance(value, one) else tuple(value) if isinstance(value, list) else value


# ---- rules ---------------------------------------------------------------------------------------------------------------


def is_whole(value: object, least: int, most: int = MOST) -> bool:
    """Whether a value is an int, not a bool, from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether a value is a finite number, not a bool, from `low` to `high`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return low <= value <= high and abs(value) <= sys.float_info.max


def whole(least: int, most: int = MOST, *, least_is: str = "", of: str = "") -> Fault:
    """A whole number; for messages, `least_is` explains the least value and `of` names the unit."""
    bounds = f" from {least} to {most:,}"
    if most >= MOST:
        bounds = f", {least}{f' ({least_is})' if least_is else ''} or more"
    words = f"{{option}}{f' ({of})' if of else ''} must be a whole number{bounds}, not {{value}}"

    def fault(value: Any) -> str | None:
        if is_whole(value, least, most):
            return None
        large = most >= MOST and isinstance(value, int) and value > most
        return f"{{option}} must be a whole number below 2**{most.bit_length()}, not {{value}}" if large else words

    return fault


def number(low: float, high: float, *, open_low: bool = False) -> Fault:
    """A finite number within a range. A bound of `LARGEST` is named only in the message about a value beyond it."""
    least = 0.0 if 0 < low <= 1 / LARGEST else low if low > -LARGEST else -math.inf
    most = high if high < LARGEST else math.inf
    limits, bounds = _range(low, high, open_low=open_low), _range(least, most, open_low=open_low or least < low)

    def fault(value: Any) -> str | None:
        if is_number(value, low, high) and not (open_low and value == low):
            return None
        beyond = is_number(value, least, most) and value != least
        return f"{{option}} must be a number{limits if beyond else bounds}, not {{value}}"

    return fault


def _range(low: float, high: float, *, open_low: bool) -> str:
    least = "" if low == -math.inf else f" above {low:g}" if open_low else f", {low:g} or more"
    return least if high == math.inf else f"{least} and at most {high:g}" if open_low else f" from {low:g} to {high:g}"


def flag(value: Any) -> str | None:
    """A bool."""
    return None if isinstance(value, bool) else "{option} is True or False, not {value}"


def one_of(*names: str) -> Fault:
    """One of these texts; the message suggests the nearest."""

    def fault(value: Any) -> str | None:
        if isinstance(value, str) and value in names:
            return None
        return "{option}={value}: " + nearest(value, names)

    return fault


def text(what: str) -> Fault:
    """A text that is not blank and has no NUL; `what` describes it."""

    def fault(value: Any) -> str | None:
        sound = isinstance(value, str) and value.strip() and "\0" not in value
        return None if sound else f"{{option}} is {what}, not {{value}}"

    return fault


def path(what: str) -> Fault:
    """The path of a file, as text or as a `Path`; `what` describes it."""
    as_text = text(what)
    return lambda value: as_text(str(value) if isinstance(value, Path) else value)


def many(what: str, takes: Callable[[Any], bool] = lambda _: True) -> Fault:
    """A list or tuple of items that `takes` accepts; `what` describes them."""

    def fault(value: Any) -> str | None:
        sound = isinstance(value, list | tuple) and all(map(takes, value))
        return None if sound else f"{{option}} is a sequence of {what}, not {{value}}"

    return fault


def instance(kind: type, what: str) -> Fault:
    """An object of a class; `what` describes it."""
    return lambda value: None if isinstance(value, kind) else f"{{option}} is {what}, not {{value}}"


# ---- names ---------------------------------------------------------------------------------------------------------------


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known name, or all known names where none is similar."""
    import difflib  # imported late, for errors only: the window opens without it
    import re

    known = sorted(known)
    asked = (name if isinstance(name, str) else shown(name))[:LONGEST_NAME].casefold()
    alike = {each: difflib.SequenceMatcher(None, each.casefold(), asked).ratio() for each in known}  # 0 to 1
    words = set(re.findall(r"\w{3,}", asked.replace("_", " ")))
    sharing = [each for each in known if words.intersection(each.casefold().replace("_", " ").split())]
    best = max(known, key=lambda each: (alike[each], each), default="")
    if sharing and alike[best] < MISTYPED:  # a part of the intended name, such as `penalty` or `eos`
        return f"did you mean {max(sharing, key=alike.__getitem__)!r}?"
    if best and alike[best] >= LIKE:
        return f"did you mean {best!r}?"
    listed = f"known: {', '.join(known)}"
    return listed if len(known) <= FEW else f"the nearest is {best!r}; {listed}"
