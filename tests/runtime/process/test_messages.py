from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import CacheReport, EdgeReport, GenerationOptions, InvalidRequestError, Metrics, SamplingOptions
from runtime.host.loading import describe
from runtime.wire.arrays import pack_run
from runtime.wire.faults import pack_fault
from runtime.wire.messages import (
    Beat,
    Call,
    Cancel,
    Chunk,
    End,
    Failure,
    Load,
    MessageError,
    Push,
    Result,
    Shutdown,
    decode_replies,
    decode_requests,
    encode,
)
from runtime.wire.methods import METHODS
from tests.runtime.process.fake_answers import run_of
from tests.runtime.process.fake_model import FakeModel, load

_REQUESTS = [
    Load("smollm2", "auto", {"threads": 2, "cache": True, "dtype": "auto"}, "a.b:c", {"mine": "d:e"}, 0.25),
    Call(3, "tokenize_async", msgspec.Raw(encode({"text": "é"}))),
    Cancel(3),
    Shutdown(),
]
_REPLIES = [
    Result(1, msgspec.Raw(encode([1, 2]))),
    Chunk(2, pack_run(run_of([1, 2]))),
    End(2),
    Failure(0, pack_fault(KeyError("x"))),
    Push(metrics=Metrics(queries=3)),
    Push(cache=CacheReport(1, 2, 3, 4, 5, 6, 7, 8, (EdgeReport(1, 2, 3, 4, (5, 6)),), 9, "why")),
    Beat(12, "step"),
    describe(load("ready")),
]


@pytest.mark.parametrize("message", _REQUESTS, ids=lambda message: type(message).__name__)
def test_requests_round_trip(message: Any) -> None:
    assert decode_requests([bytearray(encode(message))]) == [message]


@pytest.mark.parametrize("message", _REPLIES, ids=lambda message: type(message).__name__)
def test_replies_round_trip(message: Any) -> None:
    (arrived,) = decode_replies([bytearray(encode(message))])
    assert type(arrived) is type(message)
    assert encode(arrived) == encode(message)


@given(data=st.binary(max_size=100))
def test_garbage_is_no_message(data: bytes) -> None:
    for decode in (decode_requests, decode_replies):
        with pytest.raises(MessageError):
            decode([bytearray(data)])


@given(data=st.data())
def test_a_bent_message_is_refused_or_is_another_message(data: st.DataObject) -> None:
    good = bytearray(encode(data.draw(st.sampled_from(_REPLIES[:-1]))))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        (message,) = decode_replies([good])
    except MessageError:
        return
    assert type(message) in {type(reply) for reply in _REPLIES}


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(MessageError):
        decode_requests([bytearray(b"\x91" * 100_000)])


def test_directions_are_not_mixed() -> None:
    with pytest.raises(MessageError):
        decode_requests([bytearray(encode(Beat(1, "idle")))])
    with pytest.raises(MessageError):
        decode_replies([bytearray(encode(Shutdown()))])


def test_numbers_of_numpy_and_paths_are_plain() -> None:
    options = GenerationOptions(max_tokens=np.int64(3), sampling=SamplingOptions(temperature=np.float32(0.5)))  # type: ignore[arg-type]  # what callers do
    arguments = METHODS["generate_runs"].read_arguments(msgspec.Raw(encode({"ids": [np.int32(1)], "options": options})))
    assert arguments == {"ids": [1], "options": GenerationOptions(max_tokens=3, sampling=SamplingOptions(temperature=0.5))}
    assert msgspec.msgpack.decode(encode({"where": Path("a")})) == {"where": "a"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [("half \ud800 a character", "position 5"), (1 << 64, "ints"), (object(), "object has no place")],
)
def test_what_msgpack_cannot_hold_is_an_invalid_request(value: object, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        encode({"value": value})


def test_every_method_is_a_member_with_these_arguments() -> None:
    for name, method in METHODS.items():
        named = inspect.signature(getattr(FakeModel, name)).parameters
        here = {"self", "stride", "named"}  # a stride's windows are asked for one by one, options by name become an object
        parameters = [name for name in named if name not in here]
        own = ["on_progress"] * method.progresses + ["on_step"] * method.steps  # a callable stays here: its news cross
        sent = [name for name in method.arguments.__struct_fields__ if name != "watched"]  # whether there is one for steps
        assert parameters == [*sent, *own]


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(MessageError, match="trust_remote_code"):
        METHODS["tokenize_async"].read_arguments(msgspec.Raw(encode({"text": "a", "trust_remote_code": True})))
