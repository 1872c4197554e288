"""Memory that runs short during work: a retry after unused KV was evicted, no leftover pins, no copies in vain."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.errors import MemoryBudgetError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.scheduler.prefill.distributions import Distribution
from tests.fakes import Gate, assert_right, engine_of, fake_model, local, settled, some_ids, wait_for_jobs
from tests.runtime.model.trouble import audit

TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model
GREEDY = SamplingOptions(temperature=0.0)


class Full:
    """A device that is full for the next `times` forwards."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, _: Any) -> None:
        if self.left:
            self.left -= 1
            raise MemoryBudgetError("out of memory")


def test_a_forward_on_a_full_device_is_retried_once_after_unused_kv_was_evicted() -> None:
    behaviour = Behaviour()
    with fake_model(behaviour) as model:
        model.cache_kv(some_ids(1, 40))
        # when one forward finds no memory
        behaviour.before_forward = Full(1)
        assert_right(model.next_token_logprobs_sync(some_ids(2, 30)), some_ids(2, 30))
        # then it was answered all the same, and unused KV was evicted
        assert model.prefix_match(some_ids(1, 40)).tokens == 0
        # when the retry finds none either, then MemoryBudgetError is raised, and the next request is served
        behaviour.before_forward = Full(2)
        with pytest.raises(MemoryBudgetError):
            model.next_token_logprobs_sync(some_ids(3, 30))
        assert_right(model.next_token_logprobs_sync(some_ids(3, 30)), some_ids(3, 30))
        assert settled(model)[1].leases == 0


def test_kv_that_cannot_be_loaded_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_model(Behaviour(recurrent=True)) as model:
        model.cache_kv(some_ids(1, 40))
        engine = engine_of(model)
        engine.call(engine.scheduler.cache.workspaces.drop_idle).result()  # so that the next request has to load
        load = FakeBackend.load

        def full(*_: Any) -> Any:
            raise MemoryBudgetError("out of memory")

        monkeypatch.setattr(FakeBackend, "load", full)
        with pytest.raises(MemoryBudgetError):
            model.next_token_logprobs_sync([*some_ids(1, 40), 7])
        monkeypatch.setattr(FakeBackend, "load", load)
        # then no lease and no pack in use is left behind, and the same request works
        assert settled(model)[1].leases == 0
        assert all(w.users == 0 for w in engine.scheduler.cache.workspaces.open)
        assert_right(model.next_token_logprobs_sync([*some_ids(1, 40), 7]), [*some_ids(1, 40), 7], "recurrent")


def test_a_row_that_cannot_be_copied_is_answered_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Distribution] = []

    def full(row: Distribution) -> Any:
        copies.append(row)
        raise MemoryBudgetError("out of memory")

    monkeypatch.setattr(Distribution, "alone", full)
    texts = [some_ids(seed, 12) for seed in range(8)]
    with fake_model() as model:
        model.keep_vectors(4)  # so that each is kept in memory of its own
        # when the device has no room for copies of the rows after prompts and queries
        for row, text in zip(model.batch_next_token_logprobs_sync(texts), texts, strict=True):
            assert_right(row, text)
        assert len(asyncio.run(model.sample(some_ids(9, 12), 5, [], temperature=0.0))) == 5
        # then all were answered, and none is kept
        assert len(copies) >= len(texts) + 1
        assert settled(model)[1].vector_bytes == 0
        audit(model)


def test_a_pin_whose_row_cannot_be_copied_still_pins_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(row: Distribution) -> Any:
        raise MemoryBudgetError(f"out of memory for {row.vocab} numbers")

    text = some_ids(1, 40)
    with fake_model() as model:
        model.next_token_logprobs_sync(text)
        # when the device has no room for a copy of the row after the pinned text
        monkeypatch.setattr(Distribution, "alone", full)
        operations = local(model).operations
        assert operations.pin(np.array(text, np.int32), 1, None).result(20) == 40
        # then it is pinned without the row: once the row is dropped, only its last token is computed again
        model.keep_vectors(0)
        metrics, report = settled(model)
        assert (report.pins, report.vector_bytes) == (1, 0)
        assert_right(model.next_token_logprobs_sync(text), text)
        assert settled(model)[0].tokens_computed == metrics.tokens_computed + 1
        operations.unpin(1).result(20)
        audit(model)


def test_a_smaller_budget_limits_the_cached_vectors_too() -> None:
    with fake_model(kv_cache_bytes=32 << 20) as model:
        for seed in range(60):
            model.next_token_logprobs_sync(some_ids(seed, 5))
        small = 200 * TOKEN
        model.set_kv_budget(small)
        assert engine_of(model).scheduler.cache.vectors.bytes <= small // 32
        assert settled(model)[0].kv_bytes <= small
        model.cache_kv(some_ids(99, 20))
        assert settled(model)[0].kv_bytes <= small


def test_a_tail_that_the_trie_refuses_is_not_copied_at_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = FakeBackend.take

    def counted(self: FakeBackend, pack: Any, slots: Any) -> Any:
        taken.append(len(slots))
        return take(self, pack, slots)

    monkeypatch.setattr(FakeBackend, "take", counted)

    gate = Gate()

    async def main() -> int:
        made = 0
        options = GenerationOptions(max_tokens=400, ignore_eos=True, sampling=GREEDY, seed=1)
        with fake_model(Behaviour(before_forward=gate, recurrent=True)) as model:
            gate.shut(after=1)  # after the first token
            async with aclosing(model.generate_runs(some_ids(1, 30), options)) as runs:
                async for run in runs:
                    made += len(run)
                    if made == len(run):
                        assert await asyncio.to_thread(gate.reached.wait, 30)
                        clearing = asyncio.create_task(model.clear_kv_cache_async())
                        await asyncio.to_thread(wait_for_jobs, model, 1)
                        gate.open()
                        await clearing  # the path is detached: nothing can be published under it
        return made

    assert asyncio.run(main()) == 400
    assert taken == [30]  # the prompt


def test_a_tail_without_room_in_the_trie_is_copied_once_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = FakeBackend.take

    def counted(self: FakeBackend, pack: Any, slots: Any) -> Any:
        taken.append(len(slots))
        return take(self, pack, slots)

    monkeypatch.setattr(FakeBackend, "take", counted)
    # given room for the whole path, which the working pack takes
    with fake_model(Behaviour(recurrent=True), kv_cache_bytes=400 * TOKEN) as model:
        assert len(asyncio.run(model.sample(some_ids(1, 30), 330, [], temperature=0.0))) == 330
        # then a run is copied when it is full, and once more at the end
        assert len(taken) <= 1 + 330 // 64 + 1


def test_a_stream_that_outgrows_the_budget_fails_and_keeps_its_tokens() -> None:
    said: list[int] = []
    options = GenerationOptions(max_tokens=500, ignore_eos=True, sampling=GREEDY, seed=1)

    async def listen(model: LanguageModel) -> None:
        async for record in model.generate(some_ids(1, 20), options):
            said.append(record.token_id)  # noqa: PERF401  # tokens before the error must be kept

    async def main(model: LanguageModel) -> tuple[Any, Any]:
        other = model.sample(some_ids(2, 5), 40, [], temperature=0.0)
        ended, tail = await asyncio.gather(listen(model), other, return_exceptions=True)
        return ended, tail

    with fake_model(kv_cache_bytes=100 * TOKEN) as model:
        ended, tail = asyncio.run(main(model))
        # then it ends with an error and keeps its tokens, the other stream continues, and the next request is served
        assert isinstance(ended, MemoryBudgetError)
        assert "tokens need" in str(ended)
        assert len(said) >= 37  # with the other's 5 + 37 tokens the budget is full; the largest finds no room
        assert len(tail) == 40
        assert_right(model.next_token_logprobs_sync(some_ids(2, 20)), some_ids(2, 20))


def test_the_budget_is_a_share_of_what_the_device_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBackend, "free_bytes", lambda _: 4 << 30)
    with fake_model() as model:
        model.next_token_logprobs_sync([1, 2])
        assert settled(model)[1].budget == 1 << 30


def test_copies_of_rows_side_by_side_are_lent_out_of_the_budget() -> None:
    # given a recurrent model whose trie has filled its budget, and copies as large as four texts
    budget = 400 * TOKEN
    with fake_model(Behaviour(recurrent=True), kv_cache_bytes=budget) as model:
        engine = engine_of(model)
        kv_budget = engine.scheduler.cache.kv_budget
        for seed in range(12):
            model.cache_kv(some_ids(seed, 40))
        full = engine.call(lambda: kv_budget.trie.bytes).result()
        lent = engine.call(lambda: kv_budget.lend(160 * TOKEN)).result()
        # then unused KV was evicted, and no more than the budget was lent
        assert lent == 160 * TOKEN
        assert engine.call(lambda: kv_budget.bytes).result() <= budget - lent
        assert engine.call(lambda: kv_budget.trie.bytes).result() < full
        assert 0 < engine.call(lambda: kv_budget.lend(2 * budget)).result() <= budget
        assert settled(model)[0].kv_peak_bytes <= budget
        # and rows without lent memory are computed one by one
        engine.backend.widest_bytes = budget  # copies that never fit
        before = model.metrics().forward_calls
        texts = [some_ids(seed, 9) for seed in (20, 21, 22)]
        for got, text in zip(model.batch_next_token_logprobs_sync(texts), texts, strict=True):
            assert_right(got, text, "recurrent")
        assert model.metrics().forward_calls - before == 3
        assert settled(model)[0].kv_peak_bytes <= budget


def test_each_begun_forward_has_memory_lent_to_it_for_its_own_rows() -> None:
    # given a model that computes branches chain by chain, on a device that computes beside its caller
    with fake_model(Behaviour(overlaps=True), kv_cache_bytes=400 * TOKEN) as model:
        backend: Any = engine_of(model).backend
        backend.tree, backend.together, backend.widest_bytes = False, False, 128
        options = GenerationOptions(max_tokens=6, ignore_eos=True, sampling=SamplingOptions(), seed=1)
        said: list[list[int]] = [[], []]

        async def listen() -> None:
            async for branch, record in model.continue_many(some_ids(1, 8), 2, options):
                said[branch].append(record.token_id)

        # when two branches are answered
        asyncio.run(listen())
        assert said[0] != said[1]
        # then the memory lent to one forward does not limit the next, whose rows are longer: the rows share every forward
        metrics = settled(model)[0]
        assert metrics.forward_calls == 1 + 5
        assert metrics.kv_peak_bytes <= 400 * TOKEN
