"""What MLX makes of packed tensors that were brought into its own form, against our own reading of ggml's."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from runtime.loading.gguf.quants import KEPT, READABLE, affine, bits_of, dequantise
from tests.runtime.loading.test_dequantise import info_of, random_blocks


@pytest.mark.parametrize("name", KEPT)
def test_mlx_reads_every_value_to_the_bit(name: str) -> None:
    # given more blocks than go at once
    import mlx.core as mx

    rows = (1 << 20) // 1024 + 3  # more than are unpacked at once
    block = info_of(name, (1, 256)).format.block
    info = info_of(name, (rows, 1024))
    data = random_blocks(name, rows * 1024 // block).reshape(-1)
    # when
    found = affine(info, data)
    theirs = mx.dequantize(
        mx.array(found.words), mx.array(found.scales), mx.array(found.biases), group_size=32, bits=bits_of(name)
    )
    # then
    np.testing.assert_array_equal(np.array(theirs), dequantise(info, data))
    assert found.words.nbytes + found.scales.nbytes + found.biases.nbytes == rows * 1024 * ((bits_of(name) or 0) + 2) // 8


def test_mlx_quantises_into_the_same_order_of_bits() -> None:
    # given numbers that MLX finds again when it quantises their values: each group goes from 0 to the highest
    import mlx.core as mx

    info = info_of("Q8_0", (4, 64))
    data = random_blocks("Q8_0", 8)
    data[:, :2] = np.array([0.5], "<f2").view(np.uint8)
    data[:, 2], data[:, 3] = 128, 127  # the lowest and the highest
    ours = affine(info, data.reshape(-1))
    # when
    words, scales, biases = mx.quantize(mx.array(dequantise(info, data.reshape(-1))), group_size=32, bits=8)
    # then: it counts from the end that is further from 0
    assert float(scales[0, 0]) == 0.5
    assert float(biases[0, 0]) == -64
    np.testing.assert_array_equal(np.array(words), ours.words)


def test_formats_without_such_a_form_have_none() -> None:
    assert {name for name in READABLE if bits_of(name) is None} == {"F32", "F16", "BF16", "Q6_K"}


@pytest.mark.parametrize("group", [8, 16])
def test_mlx_has_no_groups_as_small_as_those_of_q6_k(group: int) -> None:
    with pytest.raises(ValueError, match="group size"):
        mx.quantize(mx.ones((4, 256)), group_size=group, bits=8)


def test_two_runs_of_q6_k_are_no_run_of_32() -> None:
    """One scale for both is their greatest common divisor: with 127 and 126 steps a number takes 13 bits, and MLX has 8."""
    numbers = np.arange(-32, 32)
    values = np.concatenate([127 * numbers, 126 * numbers])  # of two runs in one block: whole multiples of its scale
    step = np.gcd.reduce(np.diff(np.unique(values)))
    assert (values.max() - values.min()) // step >= 1 << 12
    assert "Q6_K" not in KEPT
