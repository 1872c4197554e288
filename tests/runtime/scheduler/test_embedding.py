"""Embedding jobs beside other work: slices, padding, memory, cancellation, faults."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.errors import MemoryBudgetError, NonFiniteLogitsError, RuntimeFault
from runtime.info import PromptProgress
from runtime.numerics.pooling import Pooler
from runtime.options.generation import GenerationOptions
from tests.fakes import (
    KINDS,
    Gate,
    engine_of,
    fake_model,
    generate_job,
    settled,
    some_ids,
    wait_for_close,
    wait_for_jobs,
)

BIG = 262  # bytes of one token's KV in the fake model, rounded up: 2 * 16 float64


def slices_of(model: LanguageModel, monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> None:
    """Records the shape of every padded batch."""
    plain = engine_of(model).backend.hidden_states

    def noted(tokens: Any, stacks: Any) -> Any:
        log.append(tokens.shape)
        return plain(tokens, stacks)

    monkeypatch.setattr(engine_of(model).backend, "hidden_states", noted)


@pytest.mark.slow
def test_thousands_of_texts_are_embedded_in_slices_with_little_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    # given 1,500 texts of very different lengths
    rng = np.random.default_rng(3)
    texts = ["".join(map(chr, rng.integers(97, 123, n))) for n in rng.integers(1, 40, 1500)]
    useful = sum(map(len, set(texts)))
    log: list[tuple[int, int]] = []
    with fake_model() as model:
        slices_of(model, monkeypatch, log)
        # when they are embedded
        got = model.embed_sync(texts, "mean")
        computed = model.metrics().tokens_computed
        # then every slice keeps the limits, and padding is counted and adds at most a quarter
        assert sum(rows * length for rows, length in log) == computed
        assert useful <= computed <= 1.25 * useful
        assert max(rows for rows, _ in log) <= 64
        assert max(rows * length for rows, length in log) <= 512
        # and the order is kept
        for at in (0, 7, 800, 1499):
            np.testing.assert_allclose(got[at], model.embed_sync([texts[at]], "mean")[0], atol=1e-6)
        assert settled(model)[1].working_bytes == 0


def test_texts_of_many_callers_share_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[int, int]] = []
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate)) as model:
        slices_of(model, monkeypatch, log)

        async def many() -> list[Any]:
            gate.shut()
            first = asyncio.create_task(model.embed(["zz"]))
            assert await asyncio.to_thread(gate.reached.wait, 10)
            rest = [asyncio.create_task(model.embed([word], "cls")) for word in ("abcd", "efgh", "ijkl", "mnop")]
            await asyncio.to_thread(wait_for_jobs, model, 4)
            gate.open()
            return await asyncio.gather(first, *rest)

        assert len(asyncio.run(many())) == 5
        assert log == [(1, 2), (4, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_at_most_one_slice_runs_between_two_tokens_of_a_chat(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a chat that streams, when many texts and one of 6,000 tokens are embedded
    monkeypatch.setattr("runtime.scheduler.decode.rows.PACE_SECONDS", 0.0)  # every token is reported in its step
    log: list[Any] = []
    behaviour = Behaviour(before_forward=lambda tokens: log.append(len(tokens)), recurrent=kind == "recurrent")
    with fake_model(behaviour, prefill_chunk_tokens=128) as model:
        job = generate_job(model, some_ids(0, 20), GenerationOptions(max_tokens=100_000, seed=1, ignore_eos=True))
        ended, begun = threading.Event(), threading.Event()

        def on_run(run: Any) -> None:
            log.extend(["token"] * len(run))
            begun.set()

        job.on_run, job.on_end = on_run, lambda _: ended.set()
        engine_of(model).submit([job])
        assert begun.wait(10)
        log.append("embedding")
        texts = ["y" * 6000, *(f"text number {i} of some length" for i in range(200))]
        model.embed_sync(texts)
        log.append("embedded")
        job.cancelled = True
        engine_of(model).nudge()
        assert ended.wait(10)
        # then in each gap between two tokens at most one slice was computed besides the decoding row
        part = log[log.index("embedding") : log.index("embedded")]
        part = part[: max(at for at, entry in enumerate(part) if isinstance(entry, int) and entry > 1)]  # to the last slice
        tokens = [at for at, entry in enumerate(part) if entry == "token"]
        gaps = [[rows for rows in part[a + 1 : b] if isinstance(rows, int)] for a, b in pairwise(tokens)]
        assert len(gaps) > 40
        assert max(sum(gap) for gap in gaps) <= 128 + 1
        assert settled(model)[1].leases == 0


def test_progress_counts_tokens_and_equal_texts() -> None:
    told: list[PromptProgress] = []
    with fake_model(prefill_chunk_tokens=40) as model:
        asyncio.run(model.embed(["ab", "cdef", "ab", "g" * 100], on_progress=told.append))
    assert [p.done for p in told] == sorted(p.done for p in told)
    assert told[-1] == PromptProgress(done=108, total=108, reused=2, computed=108)  # two of them padding


def test_an_embed_cancelled_between_two_slices_stops_and_leaves_nothing_behind() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=32) as model:

        async def cancelled() -> None:
            gate.shut()
            task = asyncio.create_task(model.embed(["x" * 5000, "y"]))
            await asyncio.to_thread(gate.reached.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()

        asyncio.run(cancelled())
        metrics, report = settled(model)
        assert metrics.tokens_computed <= 64
        assert (report.working_bytes, report.leases) == (0, 0)
        assert model.embed_sync(["after"]).shape == (1, 16)


def test_a_failing_text_does_not_affect_other_calls() -> None:
    gate = Gate()
    bomb = ord("!")

    def before(tokens: Any) -> None:
        gate(tokens)
        if bomb in tokens:
            raise ValueError("boom")

    with fake_model(Behaviour(before_forward=before)) as model:

        async def both() -> list[Any]:
            gate.shut()
            calls = [asyncio.create_task(model.embed([text, "same"])) for text in ("good", "bad!", "fine")]
            await asyncio.to_thread(gate.reached.wait, 10)
            gate.open()
            return await asyncio.gather(*calls, return_exceptions=True)

        good, bad, fine = asyncio.run(both())
        assert good.shape == fine.shape == (2, 16)
        assert isinstance(bad, ValueError | RuntimeFault)
        assert settled(model)[1].leases == 0


def test_states_that_are_not_finite_name_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_model() as model:
        plain = engine_of(model).backend.hidden_states

        def broken(tokens: Any, stacks: Any) -> Any:
            states = plain(tokens, stacks)
            states[(tokens == ord("#")).any(axis=1)] = np.nan
            return states

        monkeypatch.setattr(engine_of(model).backend, "hidden_states", broken)
        with pytest.raises(NonFiniteLogitsError, match=r"texts\[1\]"):
            model.embed_sync(["aa", "#b", "cc"])
        assert model.embed_sync(["aa"]).shape == (1, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_to_embed_stays_within_the_budget_or_is_refused(kind: str) -> None:
    # given room for 300 tokens
    with fake_model(Behaviour(recurrent=kind == "recurrent"), kv_cache_bytes=300 * BIG, prefill_chunk_tokens=64) as model:
        before = model.metrics().tokens_computed
        # then a text of 400 is refused up front, one of 200 is embedded, evicting what is cached
        with pytest.raises(MemoryBudgetError, match=r"texts\[1\]: 400 tokens need"):
            model.embed_sync(["a", "b" * 400])
        assert model.metrics().tokens_computed == before
        model.cache_kv(some_ids(1, 120))
        assert model.embed_sync(["c" * 200]).shape == (1, 16)
        metrics = settled(model)[0]
        assert metrics.kv_peak_bytes <= metrics.kv_budget


def test_a_long_text_waits_for_room_that_a_chat_holds() -> None:
    # given a chat that fills the budget, when a long text is embedded beside it
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), kv_cache_bytes=400 * BIG, prefill_chunk_tokens=64) as model:
        alone = model.embed_sync(["d" * 250])

        async def beside() -> Any:
            gate.shut(after=6)  # the prompt's four, and two tokens
            stream = model.generate(some_ids(2, 200), GenerationOptions(max_tokens=60, seed=1, ignore_eos=True))
            await anext(stream)
            assert await asyncio.to_thread(gate.reached.wait, 30)
            vectors = asyncio.create_task(model.embed(["d" * 250]))
            await asyncio.to_thread(wait_for_jobs, model, 1)
            gate.open()
            said = [record async for record in stream]
            assert said[-1].finish_reason == "length"
            return await vectors

        np.testing.assert_allclose(asyncio.run(beside()), alone, atol=1e-6)
        metrics, report = settled(model)
        assert metrics.kv_peak_bytes <= metrics.kv_budget
        assert report.leases == 0


def test_closing_the_model_ends_a_waiting_embed_with_an_error() -> None:
    gate = Gate()
    with load((Behaviour(before_forward=gate), None), backend="fake", prefill_chunk_tokens=32) as model:
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                model.embed_sync(["e" * 4000])
            except RuntimeFault as fault:
                failed.append(fault)

        gate.shut()
        thread = threading.Thread(target=ask)
        thread.start()
        assert gate.reached.wait(10)
        closing = threading.Thread(target=model.close)
        closing.start()
        wait_for_close(model)
        gate.open()
        thread.join(10)
        closing.join(10)
        assert "closed" in str(failed[0])


@pytest.mark.parametrize("pooling", ["last", "mean", "max", "cls"])
def test_pooling_in_pieces_equals_pooling_at_once(pooling: Any) -> None:
    states = np.random.default_rng(5).normal(size=(30, 8)).astype(np.float32)
    whole, pieces = Pooler(pooling), Pooler(pooling)
    whole.add(states)
    for piece in np.split(states, [1, 4, 20]):
        pieces.add(piece)
    np.testing.assert_allclose(pieces.vector(), whole.vector(), atol=1e-7)


def test_a_zero_vector_stays_zero() -> None:
    pool = Pooler("mean")
    pool.add(np.zeros((3, 4), np.float32))
    assert (pool.vector() == 0).all()


def test_texts_without_room_are_embedded_in_one_batch_once_the_answer_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # given texts for which there is no room beside an answer
    gate, log = Gate(), list[tuple[int, int]]()
    for name in ("workers.CHUNK_SECONDS", "prefill.prompts.ALONE_SECONDS"):
        monkeypatch.setattr(f"runtime.scheduler.{name}", 1e6)  # a slice is as large as it may be, beside others or alone
    texts = ["a" * 90, "b" * 91, "c" * 92, "d" * 93]
    with fake_model(Behaviour(before_forward=gate), kv_cache_bytes=100 * BIG) as model:
        slices_of(model, monkeypatch, log)

        async def beside() -> Any:
            gate.shut(after=2)
            stream = model.generate(some_ids(2, 85), GenerationOptions(max_tokens=12, seed=1, ignore_eos=True))
            await anext(stream)
            assert await asyncio.to_thread(gate.reached.wait, 30)
            vectors = asyncio.create_task(model.embed(texts))
            await asyncio.to_thread(wait_for_jobs, model, 1)
            gate.open()
            assert len([record async for record in stream]) > 1
            return await vectors

        assert asyncio.run(beside()).shape == (4, 16)
        # then all of them are embedded in one batch once it has ended
        assert log == [(4, 93)]


def test_two_long_texts_that_do_not_fit_together_are_both_embedded() -> None:
    texts, gate = ["e" * 250, "f" * 250], Gate()
    with fake_model(Behaviour(before_forward=gate), kv_cache_bytes=300 * BIG, prefill_chunk_tokens=64) as model:
        alone = model.embed_sync(texts)

        async def both() -> list[Any]:
            gate.shut()
            calls = [asyncio.create_task(model.embed([texts[0]]))]
            assert await asyncio.to_thread(gate.reached.wait, 30)
            calls.append(asyncio.create_task(model.embed([texts[1]])))
            await asyncio.to_thread(wait_for_jobs, model, 1)
            gate.open()
            return await asyncio.wait_for(asyncio.gather(*calls), 20)

        for one, vectors in zip(alone, asyncio.run(both()), strict=True):
            np.testing.assert_allclose(vectors[0], one, atol=1e-6)
        assert settled(model)[1].leases == 0
