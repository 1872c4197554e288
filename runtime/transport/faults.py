"""Errors over the pipe: the class by name, and what its constructor takes, so that the caller gets the same error."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import msgspec

from runtime import errors
from runtime.errors import RuntimeFault

Scalar = str | int | float | bool | None
_CANCELLED = "CancelledError"
_CLASSES: dict[str, type[RuntimeFault]] = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, RuntimeFault)
}


class Fault(msgspec.Struct, frozen=True):
    """An error on its way."""

    kind: str  # the class's name
    arguments: tuple[Scalar, ...]  # of its constructor
    message: str  # for a reader that does not know the class
    notes: tuple[str, ...] = ()


def pack_fault(error: BaseException) -> Fault:
    """An error as a value of the wire. A class that is not in `runtime.errors` takes its traceback along as a note."""
    kind, message, notes = type(error).__name__, _clean(str(error)), [_clean(n) for n in getattr(error, "__notes__", ())]
    if isinstance(error, asyncio.CancelledError):
        return Fault(_CANCELLED, (), message)
    known = next((c for c in type(error).__mro__ if _CLASSES.get(c.__name__) is c), None)
    if known is None:
        trace = "".join(traceback.format_exception(error))
        return Fault(kind, (message,), message, (*notes, _clean(f"in the engine process:\n{trace}")))
    arguments = _constructor_arguments(error) if known is type(error) else (message,)
    if not all(isinstance(a, Scalar) for a in arguments):
        arguments = (message,)
    return Fault(known.__name__, tuple(_clean(a) if isinstance(a, str) else a for a in arguments), message, tuple(notes))


def unpack_fault(fault: Fault) -> BaseException:
    """The error to raise at the caller: of its own class if `runtime.errors` has it, else a `RuntimeFault`."""
    if fault.kind == _CANCELLED:
        return asyncio.CancelledError(fault.message)
    error: RuntimeFault
    try:
        error = _CLASSES[fault.kind](*fault.arguments)
    except KeyError:
        error = RuntimeFault(
            f"the engine failed with {fault.kind}: {fault.message}; this is a fault of the program, please report it"
        )
    except Exception as mismatch:  # noqa: BLE001  # whatever a constructor does with arguments of another version
        error = RuntimeFault(f"{fault.kind}: {fault.message} (its details were not readable: {mismatch})")
    for note in fault.notes:
        error.add_note(note)
    return error


def _constructor_arguments(error: BaseException) -> tuple[Any, ...]:
    reduced = error.__reduce__()  # (class, arguments, ...) for every exception
    assert isinstance(reduced, tuple)
    return tuple(reduced[1])


def _clean(text: str) -> str:
    """Text that UTF-8 can hold: an error may quote a lone surrogate."""
    return text.encode("utf-8", "backslashreplace").decode()
