"""Recordings are made while nobody waits, part by part; they hold little, and nothing of anybody's."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from runtime.adapters.adapter import Adapter, LowRank
from runtime.adapters.stacks import TokenStacks
from runtime.backends.hf import recording, replay
from runtime.backends.hf.backend import HfBackend, load
from runtime.model import load as load_model
from runtime.options import GenerationOptions, LoadOptions, SamplingOptions
from tests.runtime.backends.recorded import ALONE, TREE, begun, decoded, in_force, nobody, push, rest, without
from tests.tiny_models import tiny_folder, tiny_path


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "AFTER", 2)
    monkeypatch.setattr(replay, "SHARE", 1.0)


@pytest.fixture
def backend() -> Iterator[HfBackend]:
    made = load(tiny_folder("llama"), LoadOptions())
    yield made
    made.unload()


def adapter(backend: HfBackend, seed: int) -> Adapter:
    """One that changes much."""
    path = "model.layers.1.self_attn.q_proj"
    width, out = backend.adapter_targets()[path]
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((4, width), (out, 4)))
    return Adapter.of({path: LowRank(a, b, 1.0)})


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to make recordings, from now on."""
    done: list[str] = []

    def watched(name: str) -> None:
        real = getattr(recording, name)

        def act(*given: Any, **more: Any) -> Any:
            done.append(name)
            return real(*given, **more)

        monkeypatch.setattr(recording, name, act)

    for name in ("functional_call", "traced", "compiled"):
        watched(name)
    return done


def test_nothing_is_made_while_somebody_waits(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model that is asked for one token after the other
    done, pack = watch(monkeypatch), begun(backend)
    assert not backend.due
    # when a recording is due
    push(backend, pack, 30)
    assert backend.due
    # then it is made at rest, and not before
    assert done == []
    rest(backend)
    assert sorted(set(done)) == ["compiled", "functional_call", "traced"]
    push(backend, pack, 5)
    assert in_force(backend) == {ALONE}


def test_one_rest_makes_one_part(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    done, pack = watch(monkeypatch), begun(backend)
    push(backend, pack, 3)
    parts: list[list[str]] = []
    while backend.due:
        done.clear()
        backend.rest(nobody)
        parts.append(list(done))
    assert parts == [["functional_call"], ["traced"], ["compiled"], ["compiled"]]


@pytest.mark.parametrize("place", range(1, 4))
def test_a_rest_gives_way_within_a_layer(backend: HfBackend, place: int) -> None:
    # given somebody who comes when the library's forward stands before the second layer, in the first or the second part
    pack = begun(backend)
    push(backend, pack, 3)
    looks = itertools.count(1)
    pushed = backend.pushed
    for _ in range(place - 1):
        backend.rest(nobody)
    expected = backend.pushed
    # when a part is begun
    backend.rest(lambda: next(looks) >= 2)
    # then it ends there, and is done another time, at the same cost
    library = place < 3  # what comes after that goes through none of the library's forwards
    assert next(looks) == (3 if library else 1)
    assert backend.pushed == expected + (0, 1, 2)[place - 1]
    assert backend.due
    rest(backend)
    push(backend, pack, 8)
    assert in_force(backend) == {ALONE}
    assert backend.pushed - pushed >= 4


def test_a_rest_that_gives_way_ever_again_computes_no_more_than_its_share(
    backend: HfBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given somebody who comes whenever a recording is begun
    monkeypatch.setattr(replay, "SHARE", 0.1)
    pack = begun(backend)
    push(backend, pack, 2)
    backend.rest(nobody)  # what computes nothing is done
    pushed, asked = backend.pushed, 0
    # when there are rests enough
    for _ in range(40):
        push(backend, pack, 1)
        asked += 1
        backend.rest(lambda: True)
    # then what is tried is a part of what was asked for
    assert 8 < backend.pushed - pushed - asked <= replay._AT_ONCE + 0.1 * (asked + 2)
    assert not backend.due


def test_an_unloaded_model_is_not_kept_by_a_recording_that_was_due() -> None:
    for parts in range(4):
        backend = load(tiny_folder("llama"), LoadOptions())
        pack = begun(backend)
        push(backend, pack, 3)
        for _ in range(parts):
            backend.rest(nobody)
        assert backend.due
        gone = weakref.ref(backend._model)
        weights = [StorageWeakRef(each.untyped_storage()) for each in backend._model.parameters()]
        backend.close(pack)
        backend.unload()
        gc.collect()
        assert gone() is None
        assert all(weight.expired() for weight in weights)


def test_a_recording_that_is_due_keeps_nothing_of_a_pack(backend: HfBackend) -> None:
    pack = begun(backend)
    push(backend, pack, 3)
    buffers = [StorageWeakRef(each.untyped_storage()) for layer in pack.attention for each in (layer.keys, layer.values)]
    backend.close(pack)
    del pack
    gc.collect()
    assert backend.due
    assert all(each.expired() for each in buffers)
    rest(backend)
    other = begun(backend)
    push(backend, other, 5)
    assert in_force(backend) == {ALONE}


@pytest.mark.parametrize("parts", range(5))
def test_adapters_that_come_and_go_while_one_is_made_change_nothing_of_it(backend: HfBackend, parts: int) -> None:
    # given adapters that come when it is due or partly made, and go when it is relied on
    one, other = adapter(backend, 1), adapter(backend, 2)
    plain, packs = without("llama"), []
    for each in (backend, plain):
        packs.append(begun(each))
        push(each, packs[-1], 3)
    for _ in range(parts):
        backend.rest(nobody)
    backend.load_adapter(one)
    stack = TokenStacks.uniform(((one.digest, 1.0),), 1)
    for each, pack in zip((backend, plain), packs, strict=True):
        each.load_adapter(one)
        slots, under = each.forward(pack, np.array([7]), np.array([pack.tree.size - 1]), np.array([0]), stack)
        assert not np.array_equal(under[0], each.logits_uncached([7]))
        each.truncate(pack, int(slots[0]))
    rest(backend)
    # when it decodes beside a second one, and after they have gone
    for others in (True, False):
        for each in (backend, plain):
            if others:
                each.load_adapter(other)
            else:
                each.unload_adapter(one.digest)
        got, known = (decoded(each, pack, 4, 8) for each, pack in zip((backend, plain), packs, strict=True))
        # then the numbers are the base's
        assert np.array_equal(got, known)
    assert in_force(backend) == {ALONE}


def test_a_length_that_counts_is_told_to_a_recording_each_time(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given an attention that weighs by how much it sees, and by how many ask
    own = torch.nn.functional.scaled_dot_product_attention

    def weighing(query: torch.Tensor, key: torch.Tensor, *given: Any, **more: Any) -> torch.Tensor:
        asking, seen = query.shape[2], key.shape[2]
        answer: torch.Tensor = own(query, key, *given, **more)
        return answer * ((seen - seen // 7 + asking) / 50)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", weighing)
    pack = begun(backend)
    # when streams and branches are decoded both ways
    push(backend, pack, 3)
    rest(backend)
    push(backend, pack, 6)
    for rows in (2, 3, 4, 2, 5):
        push(backend, pack, 4, rows)
        rest(backend)
    # then what was recorded is right at lengths that it was not made with: where it were wrong, it would not be relied on
    held = backend._replay
    assert held is not None
    assert {ALONE, TREE} <= in_force(backend)
    assert {2, 3, 4, 5} <= held.kinds[TREE]._rows
    assert not held.kinds[TREE]._other_rows
    assert all(kind._ceiling is None for kind in held.kinds.values())


def test_a_model_in_use_records_between_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model that answers, and a watch over when its forwards are recorded
    options = GenerationOptions(max_tokens=40, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, resolve=False)
    busy: list[bool] = []
    real = recording.traced
    with load_model(tiny_path("llama"), backend="hf") as model:
        engine = model._engine

        def traced(*given: Any) -> Any:
            busy.append(engine.scheduler.busy)
            return real(*given)

        monkeypatch.setattr(recording, "traced", traced)
        first = [record.token_id for record in model.generate_sync([1, 2, 3], options)]
        # when it is left alone
        for _ in range(20_000):
            if model.cache_report().side_bytes:
                break
            threading.Event().wait(0.001)
        # then what it takes is told, nobody waited for it, and the next answer is the same
        assert model.cache_report().side_bytes == engine.backend.side_bytes > 0
        assert busy == [False]
        model.clear_cache()
        assert [record.token_id for record in model.generate_sync([1, 2, 3], options)] == first
        assert in_force(engine.backend) == {ALONE}  # type: ignore[arg-type]  # it is hf's
