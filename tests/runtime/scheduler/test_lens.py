"""Lens jobs beside other work: cancellation, memory, faults, adapters that are activated in the text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, NonFiniteLogitsError, Priority, PromptProgress, RuntimeFault
from runtime.backends.fake import Behaviour
from runtime.errors import InvalidRequestError, MemoryBudgetError
from tests.fakes import KINDS, TOLERANCE, Gate, engine_of, fake_model, local, reference, settled, some_ids
from tests.runtime.adapters.toys import INVOCATION, toy_adapter

TOKEN = 256  # bytes of one token's KV in the fake model


def last_layers(model: LanguageModel, ids: list[int], places: list[int], **named: Any) -> Any:
    run = model.lens_sync(ids, places, top_k=model.info.vocab_size, **named)
    rows = np.empty((len(places), model.info.vocab_size), np.float32)
    np.put_along_axis(rows, run.top_ids[:, -1], run.top_logprobs[:, -1], axis=1)
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", [True, False])
def test_the_last_layer_of_a_lens_equals_the_answer_whatever_is_cached(kind: str, cache: bool) -> None:
    behaviour = Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    ids, places = some_ids(1, 300), [299, 0, 17, 18, 150]
    with fake_model(behaviour, cache=cache, prefill_chunk_tokens=64) as model:
        for _ in range(2):  # cold, then warm
            got = last_layers(model, ids, places)
            for row, place in zip(got, places, strict=True):
                np.testing.assert_allclose(row, reference(ids[: place + 1], kind), atol=TOLERANCE, rtol=0)


def test_progress_counts_positions() -> None:
    told: list[PromptProgress] = []
    with fake_model(prefill_chunk_tokens=32) as model:
        asyncio.run(model.lens(some_ids(1, 90), range(80), on_progress=told.append))
        assert model.metrics().recent[-1].kind == "lens"
    assert len(told) > 2
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert (told[-1].done, told[-1].total, told[-1].computed) == (80, 80, 80)


def test_a_lens_cancelled_between_two_forwards_stops_and_leaves_no_lease() -> None:
    gate, ids = Gate(), some_ids(1, 2000)
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=32) as model:
        model.next_token_logprobs_sync(ids)
        before = settled(model)[0].tokens_computed

        async def cancelled() -> None:
            gate.shut(after=1)
            task = asyncio.create_task(model.lens(ids, range(2000)))
            await asyncio.to_thread(gate.reached.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()

        asyncio.run(cancelled())
        assert settled(model)[0].tokens_computed - before <= 3 * 32
        assert settled(model)[1].leases == 0
        assert len(model.lens_sync(ids)) == 1


def test_a_path_that_cannot_fit_is_refused_and_one_that_must_wait_is_answered() -> None:
    gate, ids = Gate(), some_ids(1, 600)
    with fake_model(Behaviour(before_forward=gate), kv_cache_bytes=1000 * TOKEN) as model:
        with pytest.raises(MemoryBudgetError, match="budget"):
            model.lens_sync(some_ids(2, 1100))

        async def both() -> tuple[Any, Any]:
            other = asyncio.create_task(model.next_token_logprobs(some_ids(3, 700)))
            lens = asyncio.create_task(model.lens(ids, range(590, 600), top_k=256))
            return await asyncio.gather(other, lens)

        row, run = asyncio.run(both())
        np.testing.assert_allclose(row, reference(some_ids(3, 700)), atol=TOLERANCE, rtol=0)
        assert len(run) == 10
        assert model.cache_report().bytes <= 1000 * TOKEN


def test_a_lens_and_a_text_to_embed_that_do_not_fit_together_both_end() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), kv_cache_bytes=1000 * TOKEN, prefill_chunk_tokens=64) as model:

        async def both() -> tuple[Any, Any]:
            gate.shut(after=13)  # the first ten are the ordinary query, which goes ahead
            lens = asyncio.create_task(model.lens(some_ids(1, 600), range(100, 600)))
            await asyncio.to_thread(gate.reached.wait, 10)
            embed = asyncio.create_task(model.embed(["x" * 700]))
            await asyncio.sleep(0.05)
            gate.open()
            return await asyncio.wait_for(asyncio.gather(lens, embed), 20)

        run, vectors = asyncio.run(both())
        assert (len(run), len(vectors)) == (500, 1)
        assert settled(model)[1].leases == 0


def test_requests_that_arrive_after_a_lens_are_answered_before_it() -> None:
    gate, ended = Gate(), list[str]()

    def noting(name: str, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        task.add_done_callback(lambda _: ended.append(name))
        return task

    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=32) as model:

        async def main() -> None:
            gate.shut(after=14)  # the ordinary query, and a forward of the lens
            tasks = [noting("lens", model.lens(some_ids(1, 400), range(400)))]
            await asyncio.to_thread(gate.reached.wait, 10)
            tasks.append(noting("score", model.score(some_ids(2, 100), priority=Priority.BACKGROUND)))
            tasks.append(noting("query", model.next_token_logprobs(some_ids(3, 100))))
            await asyncio.sleep(0.05)
            gate.open()
            await asyncio.gather(*tasks)

        asyncio.run(main())
    assert ended[-1] == "lens"


def test_a_lens_of_more_than_64_tokens_is_refused() -> None:
    with fake_model() as model, pytest.raises(InvalidRequestError, match="more than 64"):
        model.lens_sync(some_ids(1, 5), tokens=range(65))


@pytest.mark.parametrize(
    ("reading", "option", "reason"),
    [
        ("lense", "top_k", "'lense': did you mean 'lens'"),
        ("lens", "topk", "takes tokens, top_k, not topk"),
        ("lens", "future", "takes tokens, top_k, not future"),
    ],
)
def test_an_unknown_reading_or_option_is_named_in_the_error(reading: str, option: str, reason: str) -> None:
    ids = np.array([1, 2, 3], np.int32)
    asked: dict[str, Any] = {"ids": ids, "positions": ids[:1], "adapters": None, "options": {option: 3}}
    with fake_model() as model, pytest.raises(InvalidRequestError, match=reason):
        asyncio.run(local(model).call("read", reading=reading, **asked))


def test_a_failing_lens_does_not_affect_later_ones() -> None:
    ids = some_ids(1, 50)
    bomb = (set(range(256)) - set(ids)).pop()
    with fake_model(Behaviour(raise_on={bomb: ValueError("boom")}, nan_on=frozenset({ids[-1]}))) as model:
        with pytest.raises(NonFiniteLogitsError):
            model.lens_sync(ids)
        with pytest.raises((ValueError, RuntimeFault)):
            model.lens_sync([*ids[:20], bomb])
        good = [one for one in ids if one != ids[-1]]
        np.testing.assert_allclose(last_layers(model, good, [len(good) - 1])[0], reference(good), atol=TOLERANCE, rtol=0)


def test_a_lens_with_an_adapter_that_is_activated_in_the_text_is_right(tmp_path: Path) -> None:
    head, tail = (
        [int(i) for i in some_ids(4, 30) if i not in INVOCATION],
        [int(i) for i in some_ids(5, 20) if i not in INVOCATION],
    )
    ids = [*head, *INVOCATION, *tail]
    with fake_model() as model:
        model.load_adapter(model.add_adapter(toy_adapter(tmp_path / "act", 3, invocation=INVOCATION)))
        places = [*range(len(head) - 3, len(ids))]
        got = last_layers(model, ids, places, adapters=["act"])
        for row, place in zip(got, places, strict=True):
            want = model.next_token_logprobs_uncached(ids[: place + 1], adapters=["act"])
            if (
                place < len(head) or place >= len(head) + len(INVOCATION) - 1
            ):  # in between it is not known yet that the adapter starts
                np.testing.assert_allclose(row, want, atol=TOLERANCE, rtol=0)


def test_restored_kv_is_not_held_in_the_pack_of_a_lens(tmp_path: Path) -> None:
    ids = some_ids(1, 100)
    with fake_model() as model:
        model.cache_kv(ids)
        model.kv_snapshot(ids, tmp_path / "kv")
        model.clear_kv_cache()  # the row after the text is still cached
        assert model.kv_restore(tmp_path / "kv") == 100
        before = settled(model)[1]
        # when the restored text is read
        assert len(model.lens_sync(ids, [50, 99])) == 2
        # then the pack that it was read in is closed
        assert not engine_of(model).scheduler.cache.workspaces.open
        assert settled(model)[1].bytes == before.bytes
