"""No request continues from a state that was dropped, and a request whose state cannot be rebuilt fails alone."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
import pytest

from runtime.backends.fake import Behaviour, FakeBackend
from runtime.errors import MemoryBudgetError, NonFiniteLogitsError
from runtime.options.generation import GenerationOptions
from runtime.scheduler.decode.resume import bring_back
from runtime.scheduler.decode.rows import DecodeRow, Stream
from runtime.scheduler.jobs import GenerateJob, Job
from runtime.scheduler.kv.prefix_cache import PrefixCache
from tests.fakes import assert_right, engine_of, fake_model, reference, settled, some_ids
from tests.runtime.model.trouble import poison


def greedy(prompt: list[int], n: int) -> list[int]:
    """The greedy path of a recurrent model from the prompt, by the reference."""
    path = list(prompt)
    for _ in range(n):
        path.append(int(reference(path, "recurrent").argmax()))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_no_generation_continues_from_a_dropped_state(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # given streams whose prompts are prefixes of one path, so that each starts where another passes
    path = greedy(some_ids(1, 10), 60)
    brought_back: list[int] = []
    looked: list[int] = []
    refused: list[int] = []
    regain, compute = PrefixCache.regain, FakeBackend.compute

    def counted(self: PrefixCache, prefill: Any, ids: Any) -> tuple[int, int]:
        brought_back.append(len(ids))
        return regain(self, prefill, ids)

    def watched(self: FakeBackend, parts: Any, request: Any = None, **named: Any) -> Any:
        for part in parts:
            above = [int(p) for p in part.parents if p < self.size(part.pack)]
            looked.extend(above)
            refused.extend(p for p in above if not self.resumable(part.pack, p))
        return compute(self, parts, request, **named)

    monkeypatch.setattr(PrefixCache, "regain", counted)
    monkeypatch.setattr(FakeBackend, "compute", watched)
    with fake_model(Behaviour(recurrent=True), max_batch_rows=rows) as model:

        async def main() -> None:
            starts = [10 + i % 12 for i in range(24)]
            texts = [path[: 12 + 3 * i] for i in range(12)]
            tails = asyncio.gather(*(model.sample(path[:n], 20, [], temperature=0.0) for n in starts))
            heads = asyncio.gather(*(model.next_token_logprobs(text) for text in texts))
            # then each has the same tokens as alone
            for n, tail in zip(starts, await tails, strict=True):
                assert tail == path[n : n + 20]
            for text, row in zip(texts, await heads, strict=True):
                assert_right(row, text, "recurrent")

        asyncio.run(main())
    assert brought_back or rows == 1  # states were rebuilt; one prompt at a time hardly passes another
    assert looked
    assert refused == []


@pytest.mark.parametrize("rows", [1, 16])
def test_generations_that_start_at_the_current_end_of_another_are_right(rows: int) -> None:
    # given cached distributions along a path without its KV, and a stream that follows the path
    path = greedy(some_ids(1, 10), 30)
    behaviour = Behaviour(recurrent=True)
    ends: list[BaseException | None] = []
    said: list[list[int]] = []
    with fake_model(behaviour, max_batch_rows=rows) as model:
        engine = engine_of(model)
        scheduler = engine.scheduler
        for n in range(10, 30):
            model.next_token_logprobs_sync(path[:n])
        engine.call(partial(scheduler.cache.clear, vectors=False)).result()

        def join(_: Any) -> None:  # on the owner thread: a request submitted now starts after this forward, at its end
            if len(scheduler.decoding.rows) == 1 and len(said) < 8:
                leader = scheduler.decoding.rows[0]
                ids = np.array(path[: len(leader.path) + 1], np.int32)
                said.append(ids.tolist())
                tell = partial(lambda told, run: told.extend(run.ids.tolist()), said[-1])
                options = GenerationOptions(max_tokens=4, ignore_eos=True)
                scheduler.submit([GenerateJob(ids, leader.job.namespace, options=options, on_run=tell, on_end=ends.append)])

        behaviour.before_forward = join
        # when others start at its current end, then each continues as it would alone
        assert asyncio.run(model.sample(path[:10], 19, [], temperature=0.0)) == path[10:29]
        while model.metrics().requests_active:  # the last that joined
            settled(model)
        assert len(said) >= 2
        assert ends == [None] * len(said)
        for one in said:
            assert one == path[: len(one)]


def test_a_prompt_whose_state_cannot_be_rebuilt_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # given prompts over one stem in small chunks, of which some lose their state to the others
    stem = some_ids(0, 70)
    prompts = [[*stem[: 30 + 10 * (i % 5)], *some_ids(i, 20)] for i in range(10)]
    failed: list[bytes] = []
    regain = PrefixCache.regain

    def full(self: PrefixCache, prefill: Any, ids: Any) -> tuple[int, int]:
        if not failed:
            failed.append(prefill.job.ids.tobytes())
            raise MemoryBudgetError("out of memory")
        return regain(self, prefill, ids)

    monkeypatch.setattr(PrefixCache, "regain", full)
    with fake_model(Behaviour(recurrent=True), prefill_chunk_tokens=16, max_batch_tokens=16) as model:

        async def main() -> list[Any]:
            return list(await asyncio.gather(*(model.next_token_logprobs(p) for p in prompts), return_exceptions=True))

        # when the first of them finds no memory for it, then it gets the error, and the others their answers
        got = asyncio.run(main())
        assert [i for i, one in enumerate(got) if isinstance(one, MemoryBudgetError)] == [
            i for i, one in enumerate(prompts) if failed == [b"".join(t.to_bytes(4, "little") for t in one)]
        ]
        assert len(failed) == 1
        for one, prompt in zip(got, prompts, strict=True):
            if not isinstance(one, MemoryBudgetError):
                assert_right(one, prompt, "recurrent")
        assert all(w.users == 0 for w in engine_of(model).scheduler.cache.workspaces.open)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_generation_that_cannot_start_leaves_nothing_behind(known: bool, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a prompt, known before or not, and a stream that fails as it is made or at its first token
    ids = some_ids(1, 40)
    with fake_model() as model:
        if known:
            model.cache_kv(ids)

        def broken(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("broken sampler")

        monkeypatch.setattr(Stream if where == "after" else DecodeRow, "draw" if where == "after" else "__init__", broken)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(model.sample(ids, 4, []))
        monkeypatch.undo()
        # then nothing is pinned, no row decodes, and the next request is served
        assert settled(model)[1].leases == 0
        assert model.metrics().requests_active == 0
        assert all(w.users == 0 for w in engine_of(model).scheduler.cache.workspaces.open)
        assert asyncio.run(model.sample(ids, 1, [], temperature=0.0)) == [int(reference(ids).argmax())]


def test_a_batch_that_finds_no_memory_is_retried_whole_before_it_is_halved() -> None:
    # given a device that is full for one forward of a batch of eight
    sizes: list[int] = []

    def full_once(tokens: Any) -> None:
        sizes.append(len(tokens))
        if len(sizes) == 1:
            raise MemoryBudgetError("out of memory")

    prompts = [some_ids(seed, 5) for seed in range(8)]
    with fake_model(Behaviour(before_forward=full_once)) as model:
        for row, ids in zip(model.batch_next_token_logprobs_sync(prompts), prompts, strict=True):
            assert_right(row, ids)
    # then the same tokens are computed together
    assert sizes == [40, 40]


def test_nan_kv_found_while_a_state_is_rebuilt_is_not_kept() -> None:
    # given a state that is to be rebuilt along a path, one of whose tokens has become NaN
    ids = np.array(some_ids(1, 12), np.int32)
    with fake_model(Behaviour(recurrent=True)) as model:
        scheduler, backend = engine_of(model).scheduler, engine_of(model).backend
        job = Job(ids, model.info.kv_fingerprint)

        def act() -> tuple[int, bool]:
            place = scheduler.cache.place(job, len(ids))
            poison(model, int(ids[-1]), np.nan)
            try:
                with pytest.raises(NonFiniteLogitsError, match="position 11"):
                    bring_back(scheduler.cache, place, ids)
                return place.workspace.held, bool(backend.sound(place.workspace.pack).all())
            finally:
                scheduler.cache.leave(place)

        # then the error names its position, and nothing of it is left for other requests
        assert engine_of(model).call(act).result() == (0, True)
