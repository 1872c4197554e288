"""Recurrent layers: the state is a checkpoint at one token, kept at places where a text may be continued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime.backends.base import ROOT
from runtime.errors import InvalidRequestError
from tests.runtime.backends.reference import Loaded, append, log_softmax

CASES = [("fake", "recurrent")] + [(b, n) for b in ("hf", "mlx") for n in ("mamba", "lfm2", "falcon_h1")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    one = Loaded(*request.param)
    yield one
    one.backend.unload()


@pytest.fixture
def pack(loaded: Loaded) -> Any:
    return loaded.backend.open_pack()


def test_the_state_is_kept_at_the_end_of_each_chain(loaded: Loaded, pack: Any) -> None:
    backend = loaded.backend
    append(backend, pack, loaded.ids(1, 5))
    assert [backend.resumable(pack, slot) for slot in range(-1, 5)] == [True, False, False, False, False, True]
    with pytest.raises(InvalidRequestError, match="no recurrent state"):
        append(backend, pack, loaded.ids(2, 2), 2)
    assert backend.size(pack) == 5


def test_the_state_moves_to_the_end_of_a_continued_chain(loaded: Loaded, pack: Any) -> None:
    backend = loaded.backend
    append(backend, pack, loaded.ids(1, 5))
    append(backend, pack, loaded.ids(2, 1), 4)
    assert not backend.resumable(pack, 4)
    assert backend.resumable(pack, 5)


def test_siblings_in_one_call_share_the_state(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(1, 5)
    append(backend, pack, ids)
    _, logits = backend.forward(pack, np.array([7, 8, 9]), np.array([4, 4, 5]), np.arange(3))
    loaded.check(log_softmax(logits[1:2]), [*ids, 8], [-1])
    loaded.check(log_softmax(logits[2:]), [*ids, 7, 9], [-1])


def test_the_state_is_kept_where_a_payload_was_taken_or_loaded(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(1, 5)
    slots, _ = append(backend, pack, ids)
    payload = backend.take(pack, slots)
    append(backend, pack, loaded.ids(2, 1), 4)
    assert backend.resumable(pack, 4)
    held = backend.load(pack, payload, ROOT)
    assert [backend.resumable(pack, int(slot)) for slot in held] == [False, False, False, False, True]
    for seed in (3, 4):
        tail = loaded.ids(seed, 2)
        _, got = append(backend, pack, tail, int(held[-1]))
        loaded.check(got, [*ids, *tail], slice(5, None))


def test_a_payload_without_its_end_cannot_be_continued(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(1, 9)
    slots, _ = append(backend, pack, ids)
    head, tail = backend.split(backend.take(pack, slots), 4)
    assert not backend.payload_resumable(head)
    assert backend.payload_resumable(tail)
    middle = backend.take(pack, slots[:3])
    assert not backend.payload_resumable(middle)
    assert not backend.payload_resumable(backend.restore(backend.export(head)))
    # a head can still be loaded with its tail after it
    fresh = backend.open_pack()
    at = int(backend.load(fresh, head, ROOT)[-1])
    assert not backend.resumable(fresh, at)
    at = int(backend.load(fresh, tail, at)[-1])
    _, got = append(backend, fresh, ids[:2], at)
    loaded.check(got, [*ids, *ids[:2]], slice(9, None))


def test_a_failed_call_leaves_the_state_unchanged(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(1, 5)
    append(backend, pack, ids)
    with pytest.raises(InvalidRequestError):  # the second chain starts at a slot without a state
        backend.forward(pack, np.array([7, 8]), np.array([4, 1]), np.arange(2))
    assert backend.resumable(pack, 4)
    _, got = append(backend, pack, ids[:2], 4)
    loaded.check(got, [*ids, *ids[:2]], slice(5, None))
