"""Forwards prepared before their tokens are known: the same numbers, and a dropped one leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime.backends.base import ROOT, PackTokens
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.errors import ContextOverflowError, InvalidRequestError
from runtime.options.load import LoadOptions
from tests.fakes import reference
from tests.runtime.backends.reference import HF, RECURRENT, TOLERANCE, Loaded, append, chain, log_softmax

FAST = ("llama", "gpt2", "gemma3")
ATTENTION = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in HF if name not in RECURRENT]


@pytest.fixture(scope="module", params=ATTENTION)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    one = Loaded("mlx", request.param)
    yield one
    one.backend.unload()


@pytest.fixture
def pack(loaded: Loaded) -> Iterator[Any]:
    made = loaded.backend.open_pack()
    yield made
    loaded.backend.close(made)


def due(pack: Any, parents: Any, tokens: Any = None) -> PackTokens:
    """A part with one token after each of some slots; without `tokens`, the tokens are not yet known."""
    n = len(parents)
    return PackTokens(pack, np.zeros(n, np.int64) if tokens is None else tokens, parents, np.arange(n))


@pytest.mark.slow
def test_forwards_prepared_while_the_previous_one_computes_give_the_same_numbers(loaded: Loaded, pack: Any) -> None:
    ids, backend = loaded.ids(21, 45), loaded.backend  # longer than every window
    append(backend, pack, ids[:8])
    waiting, got, prepared = None, [], 0
    for at in range(8, 45):
        rest = backend.prepare([due(pack, np.array([at - 1]))])
        if waiting is not None:
            got.append(waiting())
        prepared += rest is not None  # `prepare` does not grow full buffers
        token = ids[at : at + 1]
        waiting = backend.begin([due(pack, np.array([at - 1]), token)]) if rest is None else rest(token)
        assert backend.size(pack) == at + 1
    assert waiting is not None
    got.append(waiting())
    loaded.check(log_softmax(np.concatenate(got)), ids, np.arange(8, 45))
    assert prepared == 37
    # and the pack can be continued as after a plain forward
    _, after = append(backend, pack, ids[:3], 20)
    loaded.check(after, [*ids[:21], *ids[:3]], np.arange(21, 24))


def test_branches_prepared_together_equal_each_path_alone(loaded: Loaded, pack: Any) -> None:
    ids, backend = loaded.ids(22, 30), loaded.backend
    append(backend, pack, ids[:20])
    parents, tails = np.array([19, 11, 5]), np.array([[7, 9], [8, 7], [9, 5]])
    slots, _ = backend.forward(pack, tails[:, 0], parents, np.arange(3))
    rest = backend.prepare([due(pack, slots)])
    assert rest is not None
    rows = log_softmax(rest(tails[:, 1])())
    assert backend.size(pack) == 26
    for row, parent, tail in zip(rows, parents.tolist(), tails.tolist(), strict=True):
        path = [*ids[: parent + 1].tolist(), *tail]
        np.testing.assert_allclose(row, loaded.expected(path)[-1], atol=TOLERANCE)


def test_a_dropped_preparation_leaves_the_pack_unchanged(loaded: Loaded, pack: Any) -> None:
    ids, backend = loaded.ids(23, 24), loaded.backend
    append(backend, pack, ids[:20])
    before = (backend.forwards, backend.pushed, backend.size(pack), backend.pack_bytes(pack))
    assert backend.prepare([due(pack, np.array([19]))]) is not None
    assert backend.prepare([due(pack, np.array([3]))]) is not None
    assert (backend.forwards, backend.pushed, backend.size(pack), backend.pack_bytes(pack)) == before
    _, got = append(backend, pack, ids[20:], 19)
    loaded.check(got, ids, np.arange(20, 24))
    payload = backend.take(pack, np.arange(24))
    other = backend.open_pack()
    backend.load(other, payload, ROOT)
    _, row = append(backend, other, ids[:1], 23)
    loaded.check(row, [*ids, ids[0]], [24])
    backend.close(other)


def test_invalid_tokens_for_a_prepared_forward_leave_the_pack_unchanged(loaded: Loaded, pack: Any) -> None:
    ids, backend = loaded.ids(24, 12), loaded.backend
    append(backend, pack, ids[:10])
    rest = backend.prepare([due(pack, np.array([9]))])
    assert rest is not None
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        rest(np.array([backend.info.vocab_size]))
    assert backend.size(pack) == 10
    _, got = append(backend, pack, ids[10:], 9)
    loaded.check(got, ids, np.arange(10, 12))


def test_a_full_context_is_refused_and_full_buffers_are_not_grown(loaded: Loaded, pack: Any) -> None:
    backend = loaded.backend
    limit = min(backend.info.context_length, 64)
    append(backend, pack, loaded.ids(25, limit))
    if limit == backend.info.context_length:
        with pytest.raises(ContextOverflowError):
            backend.prepare([due(pack, np.array([limit - 1]))])
    else:
        backend.resize(pack, limit)
        assert backend.prepare([due(pack, np.array([limit - 1]))]) is None
    assert backend.size(pack) == limit


@pytest.mark.parametrize(("backend", "name"), [("hf", "llama"), *(("mlx", name) for name in HF if name in RECURRENT)])
def test_backends_without_preparation_return_none(backend: str, name: str) -> None:
    one = Loaded(backend, name)
    pack = one.backend.open_pack()
    append(one.backend, pack, one.ids(26, 6))
    assert one.backend.prepare([due(pack, np.array([5]))]) is None
    one.backend.unload()


def test_a_prepared_step_copies_no_buffer() -> None:
    import mlx.core as mx

    one = Loaded("mlx", "llama")
    backend = one.backend
    pack, ids = backend.open_pack(), one.ids(27, 40)
    append(backend, pack, ids[:8])
    backend.resize(pack, 40_000)
    waiting = backend.begin([due(pack, np.array([7]), ids[8:9])])
    for at in range(9, 40):
        rest = backend.prepare([due(pack, np.array([at - 1]))])
        waiting()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        assert rest is not None
        waiting = rest(ids[at : at + 1])
        logits = waiting()
        assert mx.get_peak_memory() - before < backend.pack_bytes(pack) / 16, at
    one.check(log_softmax(logits), ids, [39])
    backend.close(pack)
    backend.unload()


def test_the_toy_backend_prepares_forwards() -> None:
    backend = FakeBackend(LoadOptions(), Behaviour(overlaps=True))
    pack = backend.open_pack()
    backend.forward(pack, np.array([1, 2]), chain(0, 2, ROOT), np.arange(2))
    rest = backend.prepare([due(pack, np.array([1]))])
    assert rest is not None
    np.testing.assert_allclose(log_softmax(rest(np.array([3]))())[0], reference([1, 2, 3]), atol=TOLERANCE)
