"""What an option may be: each field of an options class carries its rule, and one function checks all of them."""

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

MISTYPED = 0.75  # from here on a name is another one with a letter or two wrong
LIKE = 0.6  # below this there is nothing in common that a reader would see
LONGEST_NAME = 100  # characters that are compared: the time grows with their square
FEW = 12  # names that a reader looks through at once
MOST: Final = (1 << 63) - 1  # the largest whole number that an engine, a file and the pipe hold
MOST_SEED: Final = (1 << 64) - 1
TEXT_FOR_IDS: Final = "token ids must be whole numbers, not a text: model.tokenize(text) makes ids of it"
LARGEST: Final = 1e30  # change of a score, either way: float32 ends at 3e38, and infinity less infinity is no score
SHOWN = 80  # characters of a value in a message

Fault = Callable[[Any], str | None]
"""What is wrong with a value: a sentence in which ``{option}`` and ``{value}`` stand for its name and itself; None: nothing."""


def option(default: Any, fault: Fault) -> Any:  # of the field's own type
    """A field of an options class, with the rule of every value but the default; None there leaves the choice to others."""
    return field(default=default, metadata={"fault": fault})


def check_fields(options: DataclassInstance, place: str = "") -> None:
    """Passes options whose fields follow their rules.

    Args:
        options: Of a class whose fields were made by `option`; other fields are not looked at.
        place: What a message has in front of a field's name, such as ``"blocks: "``.

    Raises:
        OptionError: Of the first field that does not.
    """
    for name, fault, default in _rules(type(options)):
        value = getattr(options, name)
        if value is not default and (words := fault(value)) is not None:
            raise OptionError(words, place + name, shown(value))


def check_value(name: str, value: object, fault: Fault) -> None:
    """Passes a value that follows a rule.

    Raises:
        OptionError: It does not.
    """
    words = fault(value)
    if words is not None:
        raise OptionError(words, name, shown(value))


@cache
def _rules(kind: type[DataclassInstance]) -> tuple[tuple[str, Fault, Any], ...]:
    return tuple((f.name, f.metadata["fault"], f.default) for f in fields(kind) if "fault" in f.metadata)


def plain_number(value: Any) -> Any:
    """A number of numpy's as Python's own; everything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def check_callback(called: object, name: str = "on_progress") -> None:
    """Passes None and what can be called: the owner thread, which calls it, must not find out.

    Raises:
        OptionError: Anything else.
    """
    if called is not None and not callable(called):
        raise OptionError("{option} is a function, or None, not {value}", name, shown(called))


def check_path(given: object) -> Path:
    """The path that a caller gives.

    Raises:
        OptionError: No path, or an empty one.
    """
    check_value("path", given, path("the path of a file or folder"))
    return Path(given)  # type: ignore[arg-type]  # a text or a path


def shown(value: object) -> str:
    """A value in a message, cut to a readable length."""
    try:
        return f"{value!r:.{SHOWN}}"
    except Exception:  # noqa: BLE001  # a whole number of thousands of digits, an object whose own repr fails
        return f"a {type(value).__name__} that cannot be shown"


def check_token(name: str, token: object, vocab: int | None) -> None:
    """Passes a token id, of a vocabulary of this size where it is known.

    Raises:
        InvalidRequestError: Anything else.
    """
    if not is_whole(token, 0):
        raise InvalidRequestError(f"{name}: a token id is a whole number, 0 or more, not {shown(token)}")
    if vocab is not None and token >= vocab:  # type: ignore[operator]  # a whole number
        raise InvalidRequestError(f"{name}: token id {token} is outside the vocabulary of {vocab:,}")


def as_tuple(value: Any) -> Any:
    """A list as a tuple; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


# ---- rules ---------------------------------------------------------------------------------------------------------------


def is_whole(value: object, least: int, most: int = MOST) -> bool:
    """Whether it is a whole number between the two; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether it is a number between the two that a float can hold; NaN and infinity are not, nor are True and False."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return low <= value <= high and abs(value) <= sys.float_info.max


def whole(least: int, most: int = MOST, *, least_is: str = "", of: str = "") -> Fault:
    """A whole number; `least_is` explains the least one, `of` what is counted."""
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
    """A number within the range; NaN and infinity are never within. An end at `LARGEST` is named to what goes beyond it."""
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
    """True or False."""
    return None if isinstance(value, bool) else "{option} is True or False, not {value}"


def one_of(*names: str) -> Fault:
    """One of these texts; the nearest to another one is named."""

    def fault(value: Any) -> str | None:
        if isinstance(value, str) and value in names:
            return None
        return "{option}={value}: " + nearest(value, names)

    return fault


def text(what: str) -> Fault:
    """A text that says something; `what` it is."""

    def fault(value: Any) -> str | None:
        sound = isinstance(value, str) and value.strip() and "\0" not in value
        return None if sound else f"{{option}} is {what}, not {{value}}"

    return fault


def path(what: str) -> Fault:
    """The path of a file, as text or as a `Path`; `what` it is."""
    as_text = text(what)
    return lambda value: as_text(str(value) if isinstance(value, Path) else value)


def many(what: str, takes: Callable[[Any], bool] = lambda _: True) -> Fault:
    """A list or tuple of what it takes; `what` that is."""

    def fault(value: Any) -> str | None:
        sound = isinstance(value, list | tuple) and all(map(takes, value))
        return None if sound else f"{{option}} is a sequence of {what}, not {{value}}"

    return fault


def instance(kind: type, what: str) -> Fault:
    """An object of a class; `what` is said of how it is made."""
    return lambda value: None if isinstance(value, kind) else f"{{option}} is {what}, not {{value}}"


# ---- names ---------------------------------------------------------------------------------------------------------------


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, and all of them where none is much like it."""
    import difflib  # for a mistake alone: the window opens without it
    import re

    known = sorted(known)
    asked = (name if isinstance(name, str) else shown(name))[:LONGEST_NAME].casefold()
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
