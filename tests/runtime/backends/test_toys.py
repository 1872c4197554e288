"""The toy backends: no library, their own tokenizer, faults on demand."""

from __future__ import annotations

import time

import numpy as np
import pytest

from runtime.backends import fake, mock
from runtime.backends.base import ROOT
from runtime.backends.byte_text import IM_END, IM_START, VOCABULARY, byte_tokenizer
from runtime.errors import SnapshotFormatError
from runtime.options.load import LoadOptions
from tests.runtime.backends.reference import append


@pytest.mark.parametrize("text", ["Paris in spring", "naïve café 🙂 去巴黎", "a\x00b\r\n\t ", ""])
def test_a_token_is_a_byte(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode()), skip_special_tokens=False) == text
    assert tokenizer.get_vocab_size() == VOCABULARY


def test_special_tokens_are_single_tokens() -> None:
    ids = byte_tokenizer().encode("<|im_start|>user\nhi<|im_end|>").ids
    assert ids == [IM_START, *b"user\nhi", IM_END]


def test_mock_numbers_are_a_function_of_the_ids() -> None:
    # genlm-backend's formula
    backend = mock.load("anything", LoadOptions())
    expected = np.random.RandomState(1 * 5 + 2 * 7).rand(VOCABULARY).astype(np.float32)
    assert np.array_equal(backend.logits_uncached([5, 7]), expected)


def test_fake_numbers_depend_on_the_payload() -> None:
    # given a payload whose keys were tampered with, when it is loaded and continued, then the answer differs
    backend = fake.load("anything", LoadOptions())
    pack = backend.open_pack()
    slots, _ = append(backend, pack, [1, 2, 3])
    plain = backend.export(backend.take(pack, slots))
    rows = []
    for shift in (0.0, 0.5):
        fresh = backend.open_pack()
        held = backend.load(fresh, backend.restore({"kv": plain["kv"] + shift}), ROOT)  # type: ignore[operator]  # float64
        rows.append(append(backend, fresh, [4], int(held[-1]))[1])
    assert np.abs(rows[0] - rows[1]).max() > 1e-2


def test_the_fake_backend_raises_gives_nan_and_delays_on_demand() -> None:
    behaviour = fake.Behaviour()
    backend = fake.load((behaviour, None), LoadOptions())
    pack, seen = backend.open_pack(), list[list[int]]()
    behaviour.raise_on = {7: KeyboardInterrupt()}
    behaviour.nan_on = frozenset({8})
    behaviour.delay_on = {9: 0.05}
    behaviour.before_forward = lambda tokens: seen.append(tokens.tolist())
    # a token that raises leaves the pack as it was
    with pytest.raises(KeyboardInterrupt):
        append(backend, pack, [1, 7])
    assert backend.size(pack) == 0
    # a token that gives NaN, in its own row only
    _, logits = backend.forward(pack, np.array([8, 1]), np.array([ROOT, ROOT]), np.arange(2))
    assert np.isnan(logits[0]).all()
    assert np.isfinite(logits[1]).all()
    # a slow token
    start = time.monotonic()
    backend.forward(pack, np.array([9]), np.array([1]), np.array([0]))
    assert time.monotonic() - start > 0.045
    assert seen == [[1, 7], [8, 1], [9]]
    assert backend.forwards == 3


@pytest.mark.parametrize("load", [fake.load, mock.load])
def test_malformed_arrays_are_not_restored(load: object) -> None:
    with pytest.raises(SnapshotFormatError):
        load("anything", LoadOptions()).restore({"other": np.zeros(3)})  # type: ignore[operator]  # either function
