"""Faults in unexpected places: in a draw, in the check for finite numbers, in keeping what a cancelled search has computed."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from runtime.backends.fake import Behaviour, FakeBackend
from runtime.beams import BeamOptions
from runtime.errors import NonFiniteLogitsError, RuntimeFault
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.scheduler.decode.rows import Stream
from runtime.scheduler.jobs import RowCollector
from runtime.scheduler.kv.kv_budget import KvBudget
from runtime.scheduler.kv.prefix_cache import PrefixCache
from tests.fakes import KINDS, assert_right, engine_of, fake_model, query_job, reference, settled, some_ids
from tests.runtime.model.trouble import NativePanic, audit

GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
GUILTY = 258  # a token that only failing prompts contain


async def said(model: Any, ids: list[int]) -> list[int]:
    return [record.token_id async for record in model.generate(ids, GREEDY)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 5])
def test_a_panic_in_a_draw_ends_that_stream_alone(kind: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # given streams of which one's grammar, or sampler, panics at its first token or later
    prompts = [some_ids(seed, 5) for seed in range(4)]
    draw = Stream.draw

    def fragile(self: Stream, *given: Any) -> tuple[int, float]:
        if self.job.ids.tolist() == prompts[2] and len(self.new_ids) == at:
            raise NativePanic("the grammar's library panicked")
        return draw(self, *given)

    monkeypatch.setattr(Stream, "draw", fragile)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:

        async def main() -> list[Any]:
            return list(await asyncio.gather(*(said(model, prompt) for prompt in prompts), return_exceptions=True))

        # when they run together
        for i, (prompt, got) in enumerate(zip(prompts, asyncio.run(main()), strict=True)):
            if i == 2:
                assert type(got) is RuntimeFault
                assert isinstance(got.__cause__, NativePanic)
                continue
            path = list(prompt)
            for token in got:
                assert token == int(reference(path, kind).argmax())
                path.append(token)
            assert len(got) == GREEDY.max_tokens
        audit(model)


@pytest.mark.parametrize("error", [ZeroDivisionError("broken"), NativePanic("panic")])
def test_answers_are_right_where_the_check_for_finite_numbers_fails(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(*_: object) -> Any:
        raise error

    monkeypatch.setattr(FakeBackend, "sound", blind)
    stem = some_ids(1, 6)
    texts = [[*stem, GUILTY if i == 3 else i] for i in range(7)]
    with fake_model(Behaviour(nan_on=frozenset({GUILTY}))) as model:

        async def main() -> list[Any]:
            return list(await asyncio.gather(*map(model.next_token_logprobs, texts), return_exceptions=True))

        for i, (text, got) in enumerate(zip(texts, asyncio.run(main()), strict=True)):
            if i == 3:
                assert type(got) is NonFiniteLogitsError
            else:
                assert_right(got, text)
        audit(model)


def test_a_cancelled_search_whose_beams_cannot_be_kept_does_not_affect_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_place(*_: object) -> Any:
        raise NativePanic("no lease")

    with fake_model() as model:

        async def main() -> None:
            steps = asyncio.Event()
            search = asyncio.ensure_future(
                model.beam_generate(some_ids(1, 6), BeamOptions(3, 4000, ignore_eos=True), on_step=lambda _: steps.set())
            )
            stream = asyncio.ensure_future(said(model, some_ids(2, 6)))
            await steps.wait()
            monkeypatch.setattr(PrefixCache, "join", no_place)
            search.cancel()
            assert len(await stream) == GREEDY.max_tokens
            assert_right(await model.next_token_logprobs(some_ids(3, 5)), some_ids(3, 5))

        asyncio.run(main())
        settled(model)
        audit(model)


@pytest.mark.parametrize("error", [ZeroDivisionError("broken"), NativePanic("panic")])
def test_a_request_that_fails_while_it_is_placed_leaves_nothing_behind(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem = some_ids(1, 20)
    path = [*stem, *some_ids(2, 500)]  # its pack must grow
    with fake_model() as model:
        model.batch_next_token_logprobs_sync([[*stem, i] for i in range(4)])

        def broken(*_: object) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(KvBudget, "hint", broken)
            with pytest.raises((ZeroDivisionError, RuntimeFault)):
                asyncio.run(said(model, path))
        # then nothing is leased, no pack is in use, and the next request is served
        assert settled(model)[1].leases == 0
        assert all(workspace.users == 0 for workspace in engine_of(model).scheduler.cache.workspaces.open)
        assert asyncio.run(said(model, path))[0] == int(reference(path).argmax())
        audit(model)


def test_a_caller_without_memory_for_its_rows_fails_alone() -> None:
    # given two callers of one query, the first of which wants it as a row of an array that no machine has memory for
    ids, large, small = some_ids(1, 20), Future[Any](), Future[Any]()
    with fake_model() as model:
        job = query_job(model, ids, small)
        job.waiters.insert(0, (RowCollector(large, 1 << 46), 0))
        # when the row is computed
        engine_of(model).submit([job])
        # then the other caller gets it
        assert_right(small.result(20)[0], ids)
        with pytest.raises(MemoryError):
            large.result(20)
