from __future__ import annotations

import asyncio

import msgspec
import pytest

from runtime import ContextOverflowError, ModelLoadError, RuntimeFault, errors
from runtime.transport.frames import FrameError
from runtime.transport.messages import Fault, encode, pack_fault, unpack_fault

_TREE = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RuntimeFault)]


def _crossed(error: BaseException) -> BaseException:
    return unpack_fault(msgspec.msgpack.decode(encode(pack_fault(error)), type=Fault))


@pytest.mark.parametrize("kind", [kind for kind in _TREE if kind is not ContextOverflowError])
def test_every_runtime_error_keeps_its_type_and_arguments(kind: type[RuntimeFault]) -> None:
    error = _crossed(kind("7 tokens too many; shorten the text"))
    assert type(error) is kind
    assert error.args == ("7 tokens too many; shorten the text",)


def test_an_error_keeps_its_numbers() -> None:
    error = _crossed(ContextOverflowError("suffix", 90, 20, 100))
    assert isinstance(error, ContextOverflowError)
    assert (error.stage, error.resident, error.additional, error.limit) == ("suffix", 90, 20, 100)
    assert str(error) == str(ContextOverflowError("suffix", 90, 20, 100))


def test_notes_of_an_error_are_kept() -> None:
    error = ModelLoadError("damaged")
    error.add_note("model.safetensors, byte 17")
    assert _crossed(error).__notes__ == ["model.safetensors, byte 17"]


def test_an_unlisted_subclass_arrives_as_its_nearest_known_base() -> None:
    error = _crossed(FrameError("too large"))
    assert type(error) is RuntimeFault
    assert str(error) == "too large"


def test_an_unknown_error_arrives_as_a_fault_with_its_traceback() -> None:
    try:
        raise KeyError("hidden_size")
    except KeyError as caught:
        error = _crossed(caught)
    assert type(error) is RuntimeFault
    assert "KeyError: 'hidden_size'" in str(error)
    assert "test_faults.py" in "".join(error.__notes__)


def test_a_cancelled_error_keeps_its_type() -> None:
    assert isinstance(_crossed(asyncio.CancelledError("reset")), asyncio.CancelledError)


def test_a_lone_surrogate_in_a_message_is_escaped() -> None:
    assert str(_crossed(ModelLoadError("bad \ud800 name"))) == "bad \\ud800 name"


def test_arguments_that_are_not_plain_values_are_replaced_by_the_message() -> None:
    assert _crossed(ModelLoadError({"a": 1})).args == ("{'a': 1}",)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("ContextOverflowError", ("only one",), "text"),
        Fault("SystemExit", (0,), "text"),
        Fault("annotations", (), "text"),
    ],
)
def test_a_hostile_fault_becomes_a_plain_runtime_fault(fault: Fault) -> None:
    error = unpack_fault(fault)
    assert type(error) is RuntimeFault
    assert "text" in str(error)
