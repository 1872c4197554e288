"""The partial results of an interrupted `embed` or `lens` are reused by the next call with the same arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, PromptProgress
from runtime.backends.fake import Behaviour
from runtime.scheduler.kv.prefix_cache import Interrupted
from tests.fakes import Gate, fake_model, settled, some_ids

TEXTS = [f"text {number:02}, forty letters and some more" for number in range(30)]
TOKENS = sum(map(len, TEXTS))  # of the fake's bytes
IDS, PLACES = some_ids(1, 200), list(range(20, 160))


def interrupt(gate: Gate, call: Coroutine[Any, Any, Any], forwards: int) -> None:
    """Cancels a call after so many forwards, in the middle of the next one."""

    async def cancelled() -> None:
        gate.shut(after=forwards)
        task = asyncio.create_task(call)
        assert await asyncio.to_thread(gate.reached.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()

    asyncio.run(cancelled())


def embedded(model: LanguageModel, pooling: Any = "last", texts: list[str] = TEXTS) -> tuple[Any, Any]:
    """The vectors, and the last progress."""
    heard: list[PromptProgress] = []
    vectors = model.embed_sync(texts, pooling, on_progress=heard.append)
    return vectors, heard[-1]


def test_an_interrupted_embed_is_resumed() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), max_batch_tokens=128) as model:
        expected, whole = embedded(model)
        assert (whole.done, whole.reused) == (TOKENS, 0)
        interrupt(gate, model.embed(TEXTS), 4)
        vectors, progress = embedded(model)
        assert progress.done == TOKENS
        assert 0 < progress.reused < TOKENS
        assert progress.computed + progress.reused == whole.computed
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        assert embedded(model)[1].reused == 0  # answered vectors are not kept
        # interrupted twice, it reuses the results of both, also in another order and with another text
        interrupt(gate, model.embed(TEXTS), 2)
        interrupt(gate, model.embed(TEXTS), 2)
        others = [*TEXTS[::-1], "new"]
        vectors, twice = embedded(model, texts=others)
        np.testing.assert_allclose(vectors[:-1], expected[::-1], atol=1e-6)
        assert twice.reused >= progress.reused
        assert settled(model)[1].leases == 0


def test_an_embed_of_texts_that_were_computed_before_an_interruption_computes_nothing() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), max_batch_tokens=128) as model:
        interrupt(gate, model.embed(TEXTS), 4)
        last = TEXTS[-1:]  # texts of one length are begun from the end of the list
        kept, progress = embedded(model, texts=last)
        assert (progress.done, progress.reused, progress.computed) == (len(last[0]), len(last[0]), 0)
        computed, progress = embedded(model, texts=last)
        assert progress.computed == len(last[0])
        np.testing.assert_allclose(kept, computed, atol=1e-6)


@pytest.mark.parametrize("how", ["clear", "another question", "no cache"])
def test_an_interrupted_embed_is_not_resumed_after_a_clear_for_another_pooling_or_without_cache(how: str) -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), max_batch_tokens=128, cache=how != "no cache") as model:
        interrupt(gate, model.embed(TEXTS), 4)
        if how == "clear":
            model.clear_cache()
        pooling = "mean" if how == "another question" else "last"
        assert embedded(model, pooling)[1].reused == 0


def test_an_interrupted_lens_is_resumed() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=32) as model:
        expected = model.lens_sync(IDS, PLACES, tokens=[3])
        interrupt(gate, model.lens(IDS, PLACES, tokens=[3]), 3)
        after = settled(model)[0].tokens_computed
        run = model.lens_sync(IDS, PLACES, tokens=[3])
        left = settled(model)[0].tokens_computed - after
        assert 0 < left < len(PLACES) - 32
        for name in ("positions", "token_ids", "logprobs", "ranks", "top_ids", "top_logprobs", "entropy"):
            np.testing.assert_allclose(getattr(run, name), getattr(expected, name), atol=1e-5)
        assert run.deviation < 1e-4
        # answered results are not kept; a call with another top_k starts afresh
        for top_k in (5, 2):
            interrupt(gate, model.lens(IDS, PLACES), 3)
            before = settled(model)[0].tokens_computed
            model.lens_sync(IDS, PLACES, top_k=top_k)
            fresh = settled(model)[0].tokens_computed - before
            assert (fresh < len(PLACES)) == (top_k == 5)


def test_the_oldest_partial_results_are_dropped_first() -> None:
    kept = Interrupted(100)
    for key in "abc":
        kept.keep(key, key.upper(), 40)
    assert [kept.take(key) for key in "abc"] == [None, "B", "C"]
    kept.keep("a", 1, 60)
    kept.keep("a", 2, 60)  # in its place
    kept.keep("large", 3, 101)
    assert (kept.take("large"), kept.take("a"), kept.take("a")) == (None, 2, None)
    kept.keep("a", 1, 100)
    kept.clear()
    kept.keep("b", 2, 100)
    assert (kept.take("a"), kept.take("b")) == (None, 2)
