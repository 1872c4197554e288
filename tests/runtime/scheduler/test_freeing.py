"""What is freed when memory runs short (dead slots, spare room, leases), what is refused, and where arrays are freed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.errors import MemoryBudgetError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Float32
from tests.fakes import KINDS, Gate, assert_right, engine_of, fake_model, query_job, reference, settled, some_ids, wait_for_jobs

TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model
GREEDY = SamplingOptions(temperature=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_slots_that_no_request_uses_are_freed_when_memory_runs_short(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a stream, and many short queries that come and go beside it, more than the budget holds together
    retained: list[int] = []
    asked: list[tuple[list[int], Future[Float32]]] = []
    retain = FakeBackend.retain

    def watched(self: FakeBackend, pack: Any, slots: Any, places: Any) -> None:
        retained.append(pack.tree.size - len(slots))
        retain(self, pack, slots, places)

    def ask(_: object) -> None:
        """Submits the next query at the stream's next step after the one before it was answered."""
        if not asked or asked[-1][1].done():
            asked.append(([*prompt[:10], *some_ids(2 + len(asked), 15)], Future()))
            engine_of(model).submit([query_job(model, *asked[-1])])

    monkeypatch.setattr(FakeBackend, "retain", watched)
    prompt = some_ids(1, 20)
    behaviour = Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping", before_forward=ask)
    with fake_model(behaviour, kv_cache_bytes=260 * TOKEN) as model:
        said = asyncio.run(model.sample(prompt, 120, [], temperature=0.0))
        # then every answer was right, the stream came to its end, and dead slots were freed for it
        assert len(asked) > 20
        for ids, answer in asked:
            assert_right(answer.result(60)[0], ids, kind)
        path = list(prompt)
        for token in said:
            assert token == int(reference(path, kind).argmax())
            path.append(token)
        assert len(said) == 120
        assert sum(retained) > 0
        metrics = settled(model)[0]
        assert metrics.kv_peak_bytes <= metrics.kv_budget


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_may_fill_nearly_all_of_the_budget(kind: str) -> None:
    # given a lease on half of the budget and a pack that grows towards all of it: the lease is released
    with fake_model(
        Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), kv_cache_bytes=300 * TOKEN
    ) as model:
        prompt = some_ids(1, 120)
        said = asyncio.run(model.sample(prompt, 160, [], temperature=0.0))
        assert len(said) == 160
        path = [*prompt, *said]
        for at in (121, 200, 279):
            assert path[at] == int(reference(path[:at], kind).argmax())
        metrics = settled(model)[0]
        assert metrics.kv_peak_bytes <= metrics.kv_budget


def test_the_largest_request_of_a_batch_fails_when_memory_runs_out() -> None:
    lengths = (60, 10, 15)
    ended: dict[int, Any] = {}

    async def one(model: Any, n: int) -> None:
        options = GenerationOptions(max_tokens=80, ignore_eos=True, sampling=GREEDY, seed=1)
        said = 0
        try:
            async for _ in model.generate(some_ids(n, n), options):
                said += 1
            ended[n] = said
        except MemoryBudgetError as error:
            ended[n] = error

    with fake_model(kv_cache_bytes=220 * TOKEN) as model:

        async def main() -> None:
            await asyncio.gather(*(one(model, n) for n in lengths))

        asyncio.run(main())
        assert isinstance(ended[60], MemoryBudgetError)
        assert "running requests (3 in all)" in str(ended[60])
        assert "kv_cache_bytes" in str(ended[60])
        assert ended[10] == ended[15] == 80


def test_a_smaller_budget_than_live_rows_need_is_refused_and_nothing_is_lost() -> None:
    # given an answer that is held in the middle, when two budgets are set: one that is too small, and another
    prompt, gate = some_ids(1, 50), Gate()

    async def listen(model: LanguageModel) -> list[int]:
        options = GenerationOptions(max_tokens=60, ignore_eos=True, sampling=GREEDY, seed=1)
        return [record.token_id async for record in model.generate(prompt, options)]

    async def main(model: LanguageModel) -> list[int]:
        gate.shut(after=12)
        listening = asyncio.create_task(listen(model))
        assert await asyncio.to_thread(gate.reached.wait, 30)
        budgets = [asyncio.create_task(model.set_kv_budget_async(n * TOKEN)) for n in (20, 400)]
        await asyncio.to_thread(wait_for_jobs, model, 2)
        gate.open()
        with pytest.raises(MemoryBudgetError, match="running requests hold"):
            await budgets[0]
        await budgets[1]
        return await listening

    with fake_model(Behaviour(before_forward=gate)) as model:
        said = asyncio.run(main(model))
        # then the small one is refused, the other one is set, and the answer is right to its end
        assert len(said) == 60
        for at, token in enumerate(said):
            assert token == int(reference([*prompt, *said[:at]]).argmax())
        assert settled(model)[0].kv_budget == 400 * TOKEN


def test_a_prefix_for_which_there_is_no_room_twice_is_computed_again() -> None:
    # given a text in the trie that takes more than half of the budget
    with fake_model(kv_cache_bytes=100 * TOKEN) as model:
        ids = some_ids(1, 70)
        scheduler = engine_of(model).scheduler
        model.cache_kv(ids)
        # when it is queried again with a new token after it, then it is answered all the same
        engine_of(model).call(scheduler.cache.workspaces.drop_idle).result()
        assert_right(model.next_token_logprobs_sync([*ids, 3]), [*ids, 3])
        metrics = settled(model)[0]
        assert metrics.kv_peak_bytes <= metrics.kv_budget


@pytest.mark.parametrize("name", ["load", "take", "resize", "retain"])
def test_a_call_on_a_full_device_is_retried_after_memory_was_freed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given KV in the trie, an unrelated text that may be evicted, and a device that is full at the next such call
    failures: list[str] = []
    kind = "recurrent" if name in ("load", "take") else "attention"  # copies into the trie, and out of it
    with fake_model(Behaviour(recurrent=kind == "recurrent"), kv_cache_bytes=400 * TOKEN) as model:
        scheduler, backend = engine_of(model).scheduler, engine_of(model).backend
        model.cache_kv(some_ids(1, 40))
        model.cache_kv(some_ids(2, 40))
        engine_of(model).call(scheduler.cache.workspaces.drop_idle).result()
        sound = getattr(backend, name)

        def full_once(*args: Any) -> Any:
            if not failures:
                failures.append(name)
                raise MemoryBudgetError("out of memory")
            return sound(*args)

        monkeypatch.setattr(backend, name, full_once)
        reclaimed: list[int] = []
        monkeypatch.setattr(backend, "reclaim", lambda: reclaimed.append(1))
        if name == "retain":
            workspace, _ = scheduler.cache.workspaces.place(np.array([1], np.int32))
            engine_of(model).call(lambda: workspace.compact([], [])).result()
            scheduler.cache.workspaces.leave(workspace)
        ids = [*some_ids(1, 40), 7]
        assert_right(model.next_token_logprobs_sync(ids), ids, kind)
        # then it was answered, the unrelated text was evicted, and the device got its memory back
        assert failures == [name]
        assert reclaimed == [1]
        assert model.prefix_match(some_ids(2, 40)).tokens == 0
        assert settled(model)[1].leases == 0


def test_a_failing_copy_into_the_trie_does_not_affect_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise MemoryBudgetError("out of memory")

    with fake_model(Behaviour(recurrent=True)) as model:
        with monkeypatch.context() as patch:
            patch.setattr(engine_of(model).backend, "take", full)
            ids = some_ids(1, 40)
            assert_right(model.next_token_logprobs_sync(ids), ids, "recurrent")
            assert len(asyncio.run(model.sample(ids, 70, [], temperature=0.0))) == 70
        assert settled(model)[1].tokens == 0
        model.cache_kv(some_ids(2, 10))
        assert settled(model)[1].tokens == 10


def test_arrays_are_freed_on_the_owner_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    # given payloads that record the thread on which they are freed
    died: list[int] = []
    take, split = FakeBackend.take, FakeBackend.split

    class Told(np.ndarray[Any, np.dtype[np.float64]]):
        def __del__(self) -> None:
            if self.base is None:
                died.append(threading.get_ident())

    def told(payload: Any) -> Any:
        kv = Told(payload.rows.shape)
        kv[:] = payload.rows
        return type(payload)(kv, payload.state)

    monkeypatch.setattr(FakeBackend, "take", lambda *args: told(take(*args)))
    monkeypatch.setattr(FakeBackend, "split", lambda *args: tuple(told(part) for part in split(*args)))
    with fake_model(Behaviour(recurrent=True), kv_cache_bytes=200 * TOKEN) as model:
        owner = engine_of(model).call(threading.get_ident).result()
        for seed in range(6):
            model.cache_kv(some_ids(seed, 50))  # some are evicted
        asyncio.run(model.sample(some_ids(5, 20), 30, []))  # one is split
        assert died
        model.set_kv_budget(60 * TOKEN)
        model.clear_cache()
        model.cache_kv(some_ids(9, 10))
    assert len(died) > 6
    assert set(died) == {owner}


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_budget_evicts_nothing(kind: str) -> None:
    # given a text that is pinned, the vectors after it, and an answer that is held in the middle
    other, gate = some_ids(2, 100), Gate()

    async def main(model: LanguageModel) -> None:
        gate.shut(after=5)
        listening = asyncio.create_task(model.sample(some_ids(1, 50), 20, [], temperature=0.0))
        assert await asyncio.to_thread(gate.reached.wait, 30)
        asked = asyncio.create_task(model.set_kv_budget_async(20 * TOKEN))
        await asyncio.to_thread(wait_for_jobs, model, 1)
        gate.open()
        with pytest.raises(MemoryBudgetError, match="running requests hold"):
            await asked
        assert len(await listening) == 20

    behaviour = Behaviour(before_forward=gate, recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    with fake_model(behaviour) as model:
        model.cache_kv(other)
        pinned = asyncio.run(model.pin_async(other))
        assert pinned.tokens == 100
        before = settled(model)
        asyncio.run(main(model))
        # when a smaller budget than the answer needs is refused, then all of them are still there
        metrics, report = settled(model)
        assert report.pins == 1
        assert report.vector_bytes >= before[1].vector_bytes > 0
        assert model.prefix_match(other).tokens == 100
        assert (metrics.kv_evictions, metrics.kv_budget) == (0, before[0].kv_budget)
        model.unpin(pinned.pin)
