"""The messages, as two tagged unions: `Request` goes to the engine process, `Reply` comes back."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import numpy as np

from runtime import errors
from runtime.beams import BeamStep
from runtime.errors import InvalidRequestError, RuntimeFault
from runtime.info import CacheReport, Metrics, ModelInfo, PromptProgress
from runtime.loading.progress import LoadProgress
from runtime.options.generation import AnswerEnds, GenerationOptions
from runtime.transport.arrays import Array, Pieces, pack_array

T = TypeVar("T")
EXIT_PROTOCOL = 76  # the engine process's exit code after bytes that are no message (EX_PROTOCOL of sysexits.h)
LOAD_ID = 0  # the id of a Failure to load; calls count from 1


Scalar = str | int | float | bool | None
_CANCELLED = "CancelledError"
_CLASSES: dict[str, type[RuntimeFault]] = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, RuntimeFault)
}


class Fault(msgspec.Struct, frozen=True):
    """An error in a message."""

    kind: str  # the class's name
    arguments: tuple[Scalar, ...]  # of the class's constructor
    message: str  # for a reader that does not know the class
    notes: tuple[str, ...] = ()


def pack_fault(error: BaseException) -> Fault:
    """Packs an error; if its class is not in `runtime.errors`, the traceback becomes a note."""
    kind, message, notes = type(error).__name__, _clean(str(error)), [_clean(n) for n in getattr(error, "__notes__", ())]
    if isinstance(error, asyncio.CancelledError):
        return Fault(_CANCELLED, (), message)
    known = next((c for c in type(error).__mro__ if _CLASSES.get(c.__name__) is c), None)
    if known is None:
        trace = "".join(traceback.format_exception(error))
        return Fault(kind, (message,), message, (*notes, _clean(f"in the engine process:\n{trace}")))
    arguments = tuple(error.__reduce__()[1]) if known is type(error) else (message,)
    if not all(isinstance(a, Scalar) for a in arguments):
        arguments = (message,)
    return Fault(known.__name__, tuple(_clean(a) if isinstance(a, str) else a for a in arguments), message, tuple(notes))


def unpack_fault(fault: Fault) -> BaseException:
    """The error to raise in the caller: of its own class if `runtime.errors` has it, otherwise a `RuntimeFault`."""
    if fault.kind == _CANCELLED:
        return asyncio.CancelledError(fault.message)
    error: RuntimeFault
    try:
        error = _CLASSES[fault.kind](*fault.arguments)
    except KeyError:
        error = RuntimeFault(
            f"the engine failed with {fault.kind}: {fault.message}; this is a fault of the program, please report it"
        )
    except Exception as mismatch:  # noqa: BLE001  # a constructor may raise anything if another version sent the arguments
        error = RuntimeFault(f"{fault.kind}: {fault.message} (its details were not readable: {mismatch})")
    for note in fault.notes:
        error.add_note(note)
    return error


def _clean(text: str) -> str:
    """A text that UTF-8 can encode: an error may quote a lone surrogate."""
    return text.encode("utf-8", "backslashreplace").decode()


class MessageError(RuntimeFault):
    """A well-formed frame whose content is not a known message."""


class Load(msgspec.Struct, tag="load", frozen=True):
    """Load the model: the first message, sent once."""

    source: str
    backend: str
    options: dict[str, Any]
    loader: str  # "package.module:callable"
    backends: dict[str, str]  # additional backends: name -> "package.module:factory"
    beat_seconds: float


class CallMessage(msgspec.Struct, tag="call", frozen=True):
    """Run an operation; the answer is a Result, a stream or a Failure with the same id."""

    id: int
    method: str
    arguments: msgspec.Raw  # of the type in the method table


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """Cancel a call; there is no answer."""

    id: int


class Drop(msgspec.Struct, tag="drop", frozen=True):
    """End one branch of a stream; the others go on. There is no answer."""

    id: int
    branch: int


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """Close the model and end."""


class Loading(msgspec.Struct, tag="loading", frozen=True):
    """Progress of the load; any number of these messages precede Loaded."""

    progress: LoadProgress


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """The model is loaded."""

    info: ModelInfo
    metrics: Metrics
    cache: CacheReport
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    byte_vocab: Pieces
    str_vocab: Pieces  # UTF-8
    own_options: GenerationOptions = msgspec.field(default_factory=GenerationOptions)
    own_ends: AnswerEnds = msgspec.field(default_factory=AnswerEnds)


class PartMessage(msgspec.Struct, tag="part", frozen=True):
    """Some bytes of a large answer to a call, in order. Other messages may come between; a Result follows the last one."""

    id: int
    data: memoryview


class Result(msgspec.Struct, tag="result", frozen=True):
    """The answer to a call."""

    id: int
    value: msgspec.Raw  # of the type in the method table; ignored after parts


class ChunkMessage(msgspec.Struct, tag="chunk", frozen=True, omit_defaults=True):
    """More tokens of a stream, or of one branch of it."""

    id: int
    columns: dict[str, Array]
    branch: int | None = None


class ProgressMessage(msgspec.Struct, tag="progress", frozen=True):
    """Progress of the prompt of a call."""

    id: int
    progress: PromptProgress


class StepMessage(msgspec.Struct, tag="step", frozen=True):
    """The beams of a search after one step."""

    id: int
    step: BeamStep


class End(msgspec.Struct, tag="end", frozen=True):
    """The stream is complete."""

    id: int


class Failure(msgspec.Struct, tag="failure", frozen=True):
    """The call, stream or load failed; earlier chunks stay valid."""

    id: int
    fault: Fault


class Push(msgspec.Struct, tag="push", frozen=True, omit_defaults=True):
    """The snapshots that changed, sent without a request."""

    info: ModelInfo | None = None
    metrics: Metrics | None = None
    cache: CacheReport | None = None


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """A sign of life: the owner thread's number of steps, its phase ("loading", "idle", "step"), progress within a step."""

    steps: int
    phase: str
    progress: int = 0


Request = Load | CallMessage | Cancel | Drop | Shutdown
Reply = Loading | Loaded | PartMessage | Result | ChunkMessage | ProgressMessage | StepMessage | End | Failure | Push | Beat

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(value: object) -> bytes:
    """Encodes a message, or the arguments or value in one. Numpy arrays become `Array`, numpy scalars numbers, paths text.

    Raises:
        InvalidRequestError: Msgpack cannot hold a value (a lone surrogate, a number over 64 bits, a foreign object).
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as fault:
        where = f"a lone surrogate (half of a character) at position {fault.start:,}"
        raise InvalidRequestError(f"the text holds {where}; remove or replace it") from fault
    except (TypeError, ValueError, OverflowError) as fault:
        raise InvalidRequestError(f"this cannot be sent to the engine: {fault}") from fault


def decode_requests(payloads: Sequence[bytearray]) -> list[Request]:
    """Decodes messages to the engine process.

    Raises:
        MessageError: A payload is not a request.
    """
    return _decoded(_requests, payloads, "request")


def decode_replies(payloads: Sequence[bytearray]) -> list[Reply]:
    """Decodes messages from the engine process.

    Raises:
        MessageError: A payload is not a reply.
    """
    return _decoded(_replies, payloads, "reply")


def _decoded(decoder: msgspec.msgpack.Decoder[T], payloads: Sequence[bytearray], what: str) -> list[T]:
    try:
        return [decoder.decode(payload) for payload in payloads]
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise MessageError(f"not a {what}: {fault}") from fault


def _plain(value: object) -> object:
    """The encoder's hook for types that it does not know."""
    if isinstance(value, np.ndarray):
        return pack_array(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no place in a message")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
