"""The size of packs and payloads is predicted to the byte; packs shrink, drop slots and load parts with right numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime.backends.base import ROOT
from runtime.errors import InvalidRequestError
from tests.runtime.backends.reference import Loaded, append, log_softmax

NAMES = ("llama", "gemma3", "mistral", "gpt2", "lfm2", "falcon_h1")
CASES = [("fake", "toy"), ("fake", "recurrent"), ("mock", "toy")] + [(b, n) for b in ("hf", "mlx") for n in NAMES]
NOTHING = np.empty(0, np.int64)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    one = Loaded(*request.param)
    yield one
    one.backend.unload()


@pytest.fixture
def pack(loaded: Loaded) -> Iterator[Any]:
    made = loaded.backend.open_pack()
    yield made
    loaded.backend.close(made)


@pytest.mark.slow
def test_a_resize_costs_the_predicted_bytes(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(1, 30)
    for capacity in (40, 41, 200, 100):
        before, cost = backend.pack_bytes(pack), backend.resize_cost(pack, capacity)
        backend.resize(pack, capacity)
        assert backend.capacity(pack) == capacity
        assert backend.pack_bytes(pack) - before == cost.held
        assert cost.moment >= max(cost.held, 0)
    # the pack does not grow within its capacity, and a smaller capacity drops no slot
    held = backend.pack_bytes(pack)
    append(backend, pack, ids)
    assert backend.pack_bytes(pack) == held + (backend.state_bytes if loaded.recurrent else 0)
    backend.resize(pack, 3)
    assert backend.capacity(pack) == 30
    _, got = append(backend, pack, loaded.ids(2, 3), 29)
    loaded.check(got, [*ids, *loaded.ids(2, 3)], slice(30, None))


def test_a_payload_has_the_predicted_bytes(loaded: Loaded, pack: Any) -> None:
    backend = loaded.backend
    slots, _ = append(backend, pack, loaded.ids(3, 12))
    for part in (slots, slots[:5]):
        cost = backend.take_cost(pack, part)
        assert backend.payload_bytes(backend.take(pack, part)) == cost.held <= cost.moment


def test_a_load_can_skip_the_first_tokens(loaded: Loaded, pack: Any) -> None:
    backend, ids, tail = loaded.backend, loaded.ids(4, 20), loaded.ids(5, 3)
    slots, _ = append(backend, pack, ids)
    payload = backend.take(pack, slots)
    other = backend.open_pack()
    first = backend.load(other, backend.split(payload, 7)[0], ROOT)
    rest = backend.load(other, payload, int(first[-1]), 7)
    assert rest.tolist() == list(range(7, 20))
    _, got = append(backend, other, tail, 19)
    loaded.check(got, [*ids, *tail], slice(20, None))
    backend.close(other)


@pytest.mark.slow
def test_slots_can_be_dropped_and_the_remaining_branches_continue(loaded: Loaded, pack: Any) -> None:
    # given a trunk with three branches and an unrelated text, when all but the trunk and two branches are dropped
    backend, trunk = loaded.backend, loaded.ids(6, 15)
    append(backend, pack, trunk)
    tails = [loaded.ids(seed, 4) for seed in (7, 8, 9)]
    parents = np.concatenate([np.concatenate([[14], np.arange(start, start + 3)]) for start in (15, 19, 23)])
    backend.forward(pack, np.concatenate(tails), parents, NOTHING)
    append(backend, pack, loaded.ids(10, 6))
    capacity, nbytes = backend.capacity(pack), backend.pack_bytes(pack)
    kept = np.concatenate([np.arange(19), np.arange(23, 27)])
    backend.retain(pack, kept, np.array([18, 26]))
    # then the slots are renumbered, the buffers are the same, and both branches can be continued
    assert backend.size(pack) == 23
    assert backend.capacity(pack) == capacity
    assert backend.pack_bytes(pack) == nbytes - (2 * backend.state_bytes if loaded.recurrent else 0)
    more = loaded.ids(11, 2)
    _, logits = backend.forward(pack, more, np.array([18, 22]), np.arange(2))
    loaded.check(log_softmax(logits[:1]), [*trunk, *tails[0], more[0]], [-1])
    loaded.check(log_softmax(logits[1:]), [*trunk, *tails[2], more[1]], [-1])
    # and a single remaining path is a plain chain again
    path = [*range(15), 19, 20, 21, 22, 24]
    backend.retain(pack, np.array(path), np.array([24]))
    slots, got = append(backend, pack, more, 19)
    assert slots.tolist() == [20, 21]
    loaded.check(got, [*trunk, *tails[2], more[1], *more], slice(20, None))


@pytest.mark.slow
@pytest.mark.parametrize("slots", [[1, 2], [0, 2], [2, 1, 0], [0, 9], [-1, 0], [0, 0]])
def test_retaining_invalid_slots_is_refused(loaded: Loaded, pack: Any, slots: list[int]) -> None:
    append(loaded.backend, pack, loaded.ids(12, 5))
    with pytest.raises(InvalidRequestError):
        loaded.backend.retain(pack, np.array(slots), NOTHING)
    assert loaded.backend.size(pack) == 5


def test_all_slots_can_be_dropped(loaded: Loaded, pack: Any) -> None:
    append(loaded.backend, pack, loaded.ids(13, 5))
    loaded.backend.retain(pack, NOTHING, NOTHING)
    assert loaded.backend.size(pack) == 0
    ids = loaded.ids(14, 6)
    _, got = append(loaded.backend, pack, ids)
    loaded.check(got, ids)
