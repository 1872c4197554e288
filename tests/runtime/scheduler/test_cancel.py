"""Cancelling at any moment leaves no lease, affects no other request, and keeps the computed KV."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.fakes import KINDS, Gate, assert_right, fake_model, reference, settled, some_ids

GREEDY = GenerationOptions(max_tokens=30, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_answers_are_right_beside_many_random_cancellations(kind: str, seed: int) -> None:
    # given hundreds of requests of every sort over related texts, most cancelled at random moments
    chance = random.Random(seed)
    stems = [some_ids(i, 40) for i in range(4)]
    behaviour = Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    with fake_model(behaviour, prefill_chunk_tokens=16, max_batch_rows=7) as model:

        async def stream(ids: list[int]) -> list[int]:
            return [record.token_id async for record in model.generate(ids, GREEDY)]

        async def main() -> None:
            kept: list[tuple[list[int], str, asyncio.Task[Any]]] = []
            doomed: list[asyncio.Task[Any]] = []
            for i in range(300):
                ids = [*chance.choice(stems)[: chance.randrange(1, 40)], *some_ids(i % 50, chance.randrange(0, 30))]
                what = chance.choice(["query", "query", "score", "stream"])
                work: Any = {"query": model.next_token_logprobs, "score": model.score, "stream": stream}[what]
                task = asyncio.create_task(work(ids))
                if chance.random() < 0.15:
                    kept.append((ids, what, task))
                else:
                    doomed.append(task)
                    asyncio.get_running_loop().call_later(chance.random() * 0.03, task.cancel)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.004)
            await asyncio.gather(*doomed, return_exceptions=True)
            # then the requests that were not cancelled have right answers
            for ids, what, task in kept:
                got = await task
                if what == "query":
                    assert_right(got, ids, kind)
                elif what == "score":
                    assert len(got) == len(ids)
                    for at in range(1, len(ids)):
                        assert got[at].logprob == pytest.approx(float(reference(ids[:at], kind)[ids[at]]), abs=1e-5)
                else:
                    assert len(got) == 30
                    assert got[0] == int(reference(ids, kind).argmax())
                    assert got[-1] == int(reference([*ids, *got[:-1]], kind).argmax())

        asyncio.run(main())
        report = settled(model)[1]
        assert (report.leases, report.leased_bytes) == (0, 0)
        assert model.metrics().requests_active == 0


def test_cancelled_waiters_do_not_affect_the_one_that_remains() -> None:
    gate, ids = Gate(), some_ids(1, 40)
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=4) as model:  # it runs long after the cancellations

        async def main() -> None:
            gate.shut()
            tasks = [asyncio.create_task(model.next_token_logprobs(ids)) for _ in range(3)]
            await asyncio.to_thread(gate.reached.wait)
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.sleep(0.01)
            gate.open()
            assert_right(await asyncio.wait_for(tasks[1], 10), ids)
            for task in (tasks[0], tasks[2]):
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(main())


def test_a_reset_between_queries_that_arrive_in_one_step_does_not_affect_later_queries() -> None:
    gate, ids = Gate(), some_ids(1, 40)
    with fake_model(Behaviour(before_forward=gate)) as model:

        async def main() -> None:
            # given a forward during which a reset arrives, and then another query
            gate.shut()
            first = asyncio.create_task(model.next_token_logprobs(ids))
            await asyncio.to_thread(gate.reached.wait)
            reset = asyncio.create_task(model.reset_async_queries_async())
            await asyncio.sleep(0.01)
            second = asyncio.create_task(model.next_token_logprobs(ids[:-1]))
            await asyncio.sleep(0.01)
            gate.open()
            # then both queries are dropped or answered, and the model goes on
            await asyncio.wait_for(reset, 10)
            for answer in await asyncio.gather(first, second, return_exceptions=True):
                assert isinstance(answer, asyncio.CancelledError | np.ndarray)
            assert_right(await asyncio.wait_for(model.next_token_logprobs(ids), 10), ids)

        asyncio.run(main())


def test_a_query_repeated_after_its_only_waiter_was_cancelled_is_answered() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=4) as model:
        ids = some_ids(1, 40)

        async def main() -> None:
            gate.shut()
            task = asyncio.create_task(model.next_token_logprobs(ids))
            await asyncio.to_thread(gate.reached.wait)
            task.cancel()
            await asyncio.sleep(0.01)
            again = asyncio.create_task(model.next_token_logprobs(ids))
            await asyncio.sleep(0.01)
            gate.open()
            assert_right(await again, ids)

        asyncio.run(main())
        assert model.metrics().tokens_computed == 40


def test_chunks_that_a_cancelled_request_computed_are_kept() -> None:
    # given a long prompt that is cancelled after some chunks
    gate, ids = Gate(), some_ids(1, 100)
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=20) as model:

        async def main() -> None:
            gate.shut()
            task = asyncio.create_task(model.next_token_logprobs(ids))
            await asyncio.to_thread(gate.reached.wait)
            task.cancel()
            await asyncio.sleep(0.01)
            gate.open()

        asyncio.run(main())
        metrics, report = settled(model)
        assert metrics.tokens_computed == report.tokens == 20
        assert model.prefix_match(ids).tokens == 20
        # then the next query computes only the rest
        assert_right(model.next_token_logprobs_sync(ids), ids)
        assert model.metrics().tokens_computed == 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_closed_early_keeps_its_kv(kind: str) -> None:
    prompt = some_ids(1, 10)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:

        async def main() -> list[int]:
            ids: list[int] = []
            stream = model.generate(prompt, GenerationOptions(max_tokens=500, seed=4, ignore_eos=True))
            async for record in stream:
                ids.append(record.token_id)
                if len(ids) == 20:
                    break
            await stream.aclose()
            return ids

        ids = asyncio.run(main())
        report = settled(model)[1]
        assert report.leases == 0
        path = [*prompt, *ids]
        assert report.tokens >= len(path) - 1
        if kind != "recurrent":  # a recurrent answer can be resumed only at its checkpoints
            assert model.prefix_match(path).tokens >= len(path) - 1
        before = model.metrics().tokens_computed
        assert_right(model.next_token_logprobs_sync(path), path, kind)
        assert model.metrics().tokens_computed - before <= (20 if kind == "recurrent" else 1)


def test_a_stream_publishes_its_kv_while_it_runs() -> None:
    prompt = some_ids(1, 10)
    with fake_model() as model:

        async def main() -> int:
            path = list(prompt)
            async for record in model.generate(prompt, GenerationOptions(max_tokens=10_000, seed=4, ignore_eos=True)):
                path.append(record.token_id)
                if len(path) == 200:
                    return (await model.prefix_match_async(path)).tokens
            return 0

        assert asyncio.run(main()) >= 10 + 128


def test_a_stream_dropped_before_it_began_costs_nothing() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate)) as model:

        async def main() -> None:
            gate.shut()
            first = asyncio.create_task(model.next_token_logprobs([1]))
            await asyncio.to_thread(gate.reached.wait)
            second = asyncio.create_task(model.sample(some_ids(1, 50), 50, []))
            await asyncio.sleep(0.01)
            second.cancel()
            await asyncio.sleep(0.01)
            gate.open()
            await first

        asyncio.run(main())
        assert settled(model)[0].tokens_computed == 1
