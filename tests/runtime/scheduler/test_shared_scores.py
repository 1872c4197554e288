"""Texts with a common beginning: its scores are computed once, and the scores of each text are the same as alone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, NonFiniteLogitsError, Priority, PromptProgress, TokenRun, load, run_sync
from runtime.backends.fake import Behaviour
from runtime.numerics.scoring import score_logits
from tests.fakes import Gate, fake_model, some_ids, wait_for_jobs
from tests.tiny_models import tiny_path

PREFIX = some_ids(1, 100)
TEXTS = [[*PREFIX, *some_ids(seed, 5)] for seed in range(2, 12)]


async def together(model: LanguageModel, top_ks: list[int]) -> list[Any]:
    calls = (model.score_run(ids, k) for ids, k in zip(TEXTS, top_ks, strict=True))
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("top_ks", [[7] * 10, [7, 3] * 5], ids=["alike", "two kinds"])
@pytest.mark.parametrize("chunk", [512, 32])
def test_a_row_that_texts_share_is_scored_once(top_ks: list[int], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    def counted(logits: Any, targets: Any, k: int) -> Any:
        rows.append(len(logits))
        return score_logits(logits, targets, k)

    monkeypatch.setattr("runtime.scheduler.prefill.distributions.score_logits", counted)
    with fake_model(prefill_chunk_tokens=chunk) as model:
        runs: list[TokenRun] = asyncio.run(together(model, top_ks))
    kinds = len(set(top_ks))
    # each text's own rows except the last, which scores none of its tokens; of the row where they diverge every successor
    assert sum(rows) == kinds * 99 + 10 * (1 + 4)
    for ids, k, run in zip(TEXTS, top_ks, runs, strict=True):
        with fake_model(prefill_chunk_tokens=chunk) as alone:
            expected = asyncio.run(alone.score_run(ids, k))
        for column in ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass"):
            np.testing.assert_array_equal(getattr(run, column), getattr(expected, column))


def test_a_shared_nan_row_fails_every_text_that_has_it() -> None:
    with fake_model(Behaviour(nan_on=frozenset({PREFIX[40]}))) as model:
        for found in asyncio.run(together(model, [7] * 10)):
            assert isinstance(found, NonFiniteLogitsError)
            assert "40" in str(found)
        assert len(asyncio.run(model.score_run(some_ids(1, 30)))) == 30


def test_a_large_model_s_forward_gives_more_scored_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.scheduler.prefill.prompts.LOGITS_BYTES", 0)
    monkeypatch.setattr("runtime.scheduler.prefill.prompts.FEWEST_ROWS", 1)
    for most in (1 << 30, 20_000):
        monkeypatch.setattr("runtime.scheduler.prefill.prompts.MOST_LOGITS_BYTES", most)
        found: list[int] = []
        with load(tiny_path("llama"), "hf", device="cpu", threads=1) as model:
            run_sync(model.score_run(some_ids(1, 100), 5, 0, on_progress=lambda heard: found.append(heard.done)))  # noqa: B023
            rows = min(model.info.parameters // 2, most) // (4 * model.info.vocab_size)
        assert found[1] == rows < 100


def test_a_forward_gives_no_more_scored_rows_than_memory_takes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def pushed(ids: list[int], start: int = 0) -> list[int]:
        """Tokens that were done after each forward."""
        found: list[int] = []
        with fake_model() as model:
            runs.append(run_sync(model.score_run(ids, 5, start, on_progress=lambda heard: found.append(heard.done))))
        return found[1:]  # the first reports the start

    runs: list[TokenRun] = []
    text = some_ids(1, 100)
    whole = pushed(text)
    monkeypatch.setattr("runtime.scheduler.prefill.prompts.LOGITS_BYTES", 0)
    monkeypatch.setattr("runtime.scheduler.prefill.prompts.FEWEST_ROWS", 16)
    assert whole[-1] == 100
    assert pushed(text) == [16, 32, 48, 64, 80, 96, 100]
    assert pushed(text, 90)[0] > 90  # tokens before the start give no rows
    for column in ("logprob", "rank", "entropy", "top_ids", "top_logprobs"):
        np.testing.assert_allclose(getattr(runs[1], column), getattr(runs[0], column), atol=1e-5)


@pytest.mark.parametrize("slots", [160, 180, 200])
def test_tokens_that_are_computed_again_are_not_subtracted_from_the_reused_ones(slots: int) -> None:
    # given a recurrent model, and room for hardly any state beside a text that is scored in small chunks
    told, gate = list[PromptProgress](), Gate()
    behaviour = Behaviour(recurrent=True, before_forward=gate)
    with fake_model(behaviour, kv_cache_bytes=slots * 256, prefill_chunk_tokens=16) as model:

        async def both() -> None:
            gate.shut(after=3)
            text = [*PREFIX, *some_ids(2, 40)]
            score = asyncio.create_task(model.score_run(text, 5, priority=Priority.BACKGROUND, on_progress=told.append))
            assert await asyncio.to_thread(gate.reached.wait, 30)
            # when an urgent text with the same beginning takes over its state, so that it has to begin again
            urgent = asyncio.create_task(model.next_token_logprobs([*PREFIX, *some_ids(3, 40)]))
            await asyncio.to_thread(wait_for_jobs, model, 1)
            gate.open()
            await asyncio.gather(score, urgent)

        asyncio.run(both())
    # then more tokens were computed than the text has, and the reused ones never became negative
    assert (told[-1].computed or 0) > told[-1].done == 140
    assert all(progress.reused == 0 for progress in told[:3])
    assert min(progress.reused or 0 for progress in told) >= 0
