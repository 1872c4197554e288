from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runtime import Finish, Origin, TokenRun
from runtime.transport.arrays import (
    Array,
    ArrayError,
    Pieces,
    pack_array,
    pack_pieces,
    pack_run,
    unpack_array,
    unpack_pieces,
    unpack_run,
)
from runtime.transport.messages import encode
from tests.runtime.process.fake_answers import run_of

_dtypes = st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.bool_])


def _crossed(value: object, kind: Any) -> Any:
    return msgspec.msgpack.decode(encode(value), type=kind)


@given(array=hnp.arrays(_dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))
def test_arrays_round_trip(array: npt.NDArray[Any]) -> None:
    arrived = unpack_array(_crossed(pack_array(array), Array))
    np.testing.assert_array_equal(arrived, array, strict=True)
    assert arrived.flags.writeable
    assert arrived.flags.aligned


def test_a_strided_view_crosses_as_its_values() -> None:
    table = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(unpack_array(_crossed(pack_array(table[::2, 1::2].T), Array)), table[::2, 1::2].T)


def test_objects_do_not_cross() -> None:
    with pytest.raises(ArrayError, match="object does not cross"):
        pack_array(np.array([object()]))


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "reason"),
    [
        ("|O", (1,), b"\0" * 8, "not allowed"),
        ("<f4", (2,), b"\0" * 4, "needs 8 bytes, 4 came"),
        ("<f4", (-1, -1), b"\0" * 4, "cannot have the shape"),
        ("<f4", (1 << 40, 1 << 40), b"", "needs"),
        ("<f4", (1,) * 5, b"\0" * 4, "cannot have the shape"),
    ],
)
def test_hostile_arrays_are_refused(dtype: str, shape: tuple[int, ...], data: bytes, reason: str) -> None:
    with pytest.raises(ArrayError, match=reason):
        unpack_array(Array(dtype, shape, memoryview(data)))


@given(n=st.integers(0, 30), k=st.integers(0, 4))
def test_runs_round_trip(n: int, k: int) -> None:
    run = run_of(list(range(n)), Origin.PICKED, Finish.STOP, top_k=k)
    arrived = unpack_run(_crossed(pack_run(run), dict[str, Array]))
    assert list(arrived) == list(run)
    assert arrived.texts == run.texts
    np.testing.assert_array_equal(arrived.draw, run.draw)


@pytest.mark.parametrize("column", TokenRun.unscored([], [], [], Origin.TEMPLATE).to_columns())
def test_a_run_without_one_of_its_columns_is_refused(column: str) -> None:
    columns = pack_run(run_of([1, 2, 3]))
    del columns[column]
    with pytest.raises(ArrayError, match=column):
        unpack_run(columns)


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ("ids", np.zeros(3, np.float32)),
        ("ids", np.zeros((3, 1), np.int32)),
        ("logprob", np.zeros(2, np.float32)),
        ("lengths", np.array([1, 1, 500], np.int32)),
        ("lengths", np.array([1, -1, 3], np.int32)),
        ("text_data", np.full(3, 0xFF, np.uint8)),
    ],
)
def test_a_run_whose_columns_do_not_fit_is_refused(column: str, array: npt.NDArray[Any]) -> None:
    with pytest.raises(ArrayError):
        unpack_run(pack_run(run_of([1, 2, 3])) | {column: pack_array(array)})


@given(pieces=st.lists(st.binary(max_size=9), max_size=50))
def test_vocabularies_round_trip(pieces: list[bytes]) -> None:
    assert unpack_pieces(_crossed(pack_pieces(pieces), Pieces)) == pieces


def test_a_vocabulary_whose_lengths_do_not_fit_is_refused() -> None:
    packed = pack_pieces([b"ab", b"c"])
    with pytest.raises(ArrayError, match="do not add up to 3 bytes"):
        unpack_pieces(Pieces(packed.data, pack_array(np.array([2, 2], np.int32))))
