"""Columns as bytes: any numbers come back, hostile bytes are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage import InvalidRowError, StoreDamagedError
from storage.tables.columns import check, cut, decode, encode, pieces, summary

DTYPES = st.sampled_from(["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", ">f8"])
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))


@pytest.mark.slow
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), ARRAYS, max_size=4))
def test_any_columns_come_back(columns: dict[str, npt.NDArray[Any]]) -> None:
    read = decode(encode(columns))
    assert read.keys() == columns.keys()
    for name, column in columns.items():
        np.testing.assert_array_equal(read[name], column)
        assert read[name].dtype == column.dtype.newbyteorder("<")
        assert read[name].flags.writeable


@given(st.binary(max_size=200))
def test_any_bytes_are_columns_or_refused(blob: bytes) -> None:
    try:
        read = decode(blob)
    except StoreDamagedError:
        return
    assert decode(encode(read)).keys() == read.keys()


@pytest.mark.parametrize(
    "packed",
    [
        {"x": ("|O", (1,), b"12345678")},
        {"x": ("<U4", (1,), b"1234567812345678")},
        {"x": (">f4", (1,), b"1234")},
        {"x": ("<f4", (2,), b"1234")},
        {"x": ("<f4", (-1,), b"1234")},
        {"x": ("<f4", (-1, -1), b"1234")},
        {"x": ("<f4", (0, 2**62), b"")},
        {"x": ("<f4", (1, 1, 1, 1, 1), b"1234")},
        {"x": ("nonsense", (1,), b"1234")},
        {"x": ("<f4", (1,))},
        ["x"],
    ],
)
def test_hostile_columns_are_refused(packed: object) -> None:
    with pytest.raises(StoreDamagedError):
        decode(msgspec.msgpack.encode(packed))


@pytest.mark.parametrize("column", [np.array([object()]), np.array(["text"]), np.zeros(2, np.complex64), np.zeros((1,) * 5)])
def test_other_than_plain_numbers_is_refused(column: npt.NDArray[Any]) -> None:
    with pytest.raises(InvalidRowError, match="only plain numbers"):
        encode({"x": column})


@pytest.mark.parametrize(
    "columns",
    [
        {"ids": np.zeros(3, np.int32)},
        {"ids": np.zeros((), np.int32)},
        {"data": np.zeros(5, np.uint8), "lengths": np.array([2, 2], np.int32)},
        {"data": np.zeros(1, np.uint8), "lengths": np.array([2, -1], np.int32)},
        {"data": np.zeros(4, np.uint8), "lengths": np.array([2.0, 2.0])},
        {"data": np.zeros(4, np.uint8)},
    ],
)
def test_columns_that_do_not_have_the_chunks_rows_are_refused(columns: dict[str, npt.NDArray[Any]]) -> None:
    with pytest.raises(InvalidRowError):
        check(columns, 2)


@given(st.lists(st.binary(max_size=4), max_size=12), st.data())
def test_a_cut_is_the_rows_between(tokens: list[bytes], data: st.DataObject) -> None:
    n = len(tokens)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    columns: dict[str, npt.NDArray[Any]] = {
        "ids": np.arange(n),
        "top": np.arange(2 * n).reshape(n, 2),
        "text_data": np.frombuffer(b"".join(tokens), np.uint8),
        "text_lengths": np.array([len(t) for t in tokens], np.int32),
    }
    check(columns, n)
    rows = cut(columns, start, stop)
    check(rows, stop - start)
    assert rows["ids"].tolist() == list(range(start, stop))
    assert rows["top"].tolist() == columns["top"][start:stop].tolist()
    assert pieces(rows, "text") == tokens[start:stop]


def test_the_summary_is_what_sql_sees() -> None:
    texts = ["é".encode(), b"\xff\x00"]
    columns: dict[str, npt.NDArray[Any]] = {
        "ids": np.array([5, 6], np.int32),
        "rank": np.array([1, 0], np.int32),
        "logprob": np.array([-0.1, np.nan], np.float32),
        "entropy": np.array([np.inf, 1.0], np.float32),
        "text_data": np.frombuffer(b"".join(texts), np.uint8),
        "text_lengths": np.array([len(t) for t in texts], np.int32),
    }
    assert msgspec.json.decode(summary(columns, 2)) == [[5, "é", -0.1, 1, None], [6, "\ufffd\ufffd", None, None, 1.0]]
    assert msgspec.json.decode(summary({}, 1)) == [[None, None, None, None, None]]
