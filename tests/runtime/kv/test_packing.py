"""Blocks as bytes: a lossless round trip, and damage is detected."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from runtime.errors import SnapshotFormatError
from runtime.kv.packing import pack, unpack

ARRAYS = {
    "n": np.array(3),
    "keys.0": np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4),
    "values.0": np.arange(24, dtype=np.uint16).reshape(2, 1, 3, 4),
    "codes": np.arange(7, dtype=np.uint8),
    "halves": np.arange(6, dtype=np.float16).reshape(2, 3),
    "none": np.zeros((2, 0, 4), np.float32),
}
DATA = b"".join(pack(ARRAYS, {"key": "abc"}))


def test_packed_arrays_are_unpacked_without_a_copy() -> None:
    arrays, metadata = unpack(DATA)
    assert metadata == {"key": "abc"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, ARRAYS[name])
        assert array.dtype == ARRAYS[name].dtype
        assert array.flags.aligned
        assert not array.flags.owndata


def test_the_packed_parts_share_the_memory_of_the_arrays() -> None:
    parts = pack(ARRAYS, {})
    assert np.shares_memory(np.frombuffer(parts[2], np.uint8), ARRAYS["keys.0"])


def test_the_packed_bytes_are_a_safetensors_file() -> None:
    theirs = load_safetensors(DATA)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(theirs[name], array)


def test_every_truncation_is_refused() -> None:
    for end in range(len(DATA)):
        with pytest.raises(SnapshotFormatError, match="damaged or not ours"):
            unpack(DATA[:end])
    with pytest.raises(SnapshotFormatError, match="1 bytes too many"):
        unpack(DATA + b"x")


def test_a_flipped_bit_in_the_header_is_refused_or_harmless() -> None:
    size = 8 + int.from_bytes(DATA[:8], "little")
    for at in range(0, 8 * size, 3):
        bent = bytearray(DATA)
        bent[at // 8] ^= 1 << at % 8
        try:
            arrays, _ = unpack(bent)
        except SnapshotFormatError:
            continue
        assert sum(array.nbytes for array in arrays.values()) <= len(DATA)
