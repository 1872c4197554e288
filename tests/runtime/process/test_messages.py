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
from runtime.transport.arrays import pack_run
from runtime.transport.messages import (
    Beat,
    CallMessage,
    Cancel,
    ChunkMessage,
    End,
    Failure,
    Load,
    MessageError,
    PartMessage,
    Push,
    Result,
    Shutdown,
    decode_replies,
    decode_requests,
    encode,
    pack_fault,
)
from runtime.transport.methods import METHODS
from runtime.transport.server import describe
from tests.fakes import fake_model, local
from tests.runtime.process.fake_answers import run_of
from tests.runtime.process.fake_model import load

_REQUESTS = [
    Load("smollm2", "auto", {"threads": 2, "cache": True, "dtype": "auto"}, "a.b:c", {"mine": "d:e"}, 0.25),
    CallMessage(3, "tokenize_async", msgspec.Raw(encode({"text": "é"}))),
    Cancel(3),
    Shutdown(),
]
_REPLIES = [
    PartMessage(1, memoryview(b"12")),
    Result(1, msgspec.Raw(encode([1, 2]))),
    ChunkMessage(2, pack_run(run_of([1, 2]))),
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
    sent = {"ids": np.array([1], np.int32), "options": options}
    arguments = METHODS["generate"].read_arguments(msgspec.Raw(encode(sent)))
    assert arguments.pop("ids").tolist() == [1]
    assert arguments == {"options": GenerationOptions(max_tokens=3, sampling=SamplingOptions(temperature=0.5))}
    assert msgspec.msgpack.decode(encode({"where": Path("a")})) == {"where": "a"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [("half \ud800 a character", "position 5"), (1 << 64, "ints"), (object(), "object has no place")],
)
def test_what_msgpack_cannot_hold_is_an_invalid_request(value: object, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        encode({"value": value})


def test_every_method_is_an_operation_of_the_engine_with_these_arguments() -> None:
    with fake_model() as model:
        operations = local(model).calls
        for name, method in METHODS.items():
            parameters = set(inspect.signature(operations[name]).parameters) - {"on_progress", "on_step"}
            assert parameters == set(method.arguments) - {"watched"}, name
            answer = inspect.signature(operations[name]).return_annotation
            assert method.streams or (method.answer.wire is None) == (answer in ("None", "Future[None]")), name


@pytest.mark.parametrize(
    "ids", [np.array([1.5], np.float32), np.array([[1]], np.int32), np.array([1], np.int64)], ids=["floats", "two rows", "wide"]
)
def test_ids_that_are_no_row_of_int32_are_refused(ids: object) -> None:
    with pytest.raises(MessageError, match="one row of int32"):
        METHODS["prefix_match"].read_arguments(msgspec.Raw(encode({"ids": ids, "adapters": None})))


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(MessageError, match="trust_remote_code"):
        METHODS["tokenize"].read_arguments(msgspec.Raw(encode({"texts": ["a"], "trust_remote_code": True})))
