"""Texts longer than the context, scored in windows; and the synchronous forms of `score` and `complete`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import (
    ContextOverflowError,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    PromptProgress,
    SamplingOptions,
    load,
    spawn,
)
from tests.runtime.backends.reference import TOLERANCE, expected, random_ids
from tests.tiny_models import tiny_path

CONTEXT = 64
TEXT = [int(i) for i in random_ids(5, 300)]
GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0))


@pytest.fixture(scope="module", params=["hf", "mlx", pytest.param("spawned", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    if request.param == "spawned":
        loaded: LanguageModel = asyncio.run(spawn(tiny_path("llama"), "hf", context_length=CONTEXT, threads=1))
    else:
        loaded = load(tiny_path("llama"), request.param, context_length=CONTEXT, threads=1)
    with loaded:
        yield loaded


def by_hand(text: list[int], stride: int) -> list[float]:
    """The loop of transformers' guide to perplexity, over its own logits; NaN for the first token, which has no context."""
    found = [math.nan]
    previous_end = 0
    for begin in range(0, len(text), stride):
        end = min(begin + CONTEXT, len(text))
        window = text[begin:end]
        logprobs = expected("llama", window)  # row i: log-probabilities after token i
        found += [float(logprobs[place - begin - 1][text[place]]) for place in range(max(previous_end, 1), end)]
        previous_end = end
        if end == len(text):
            break
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("stride", "length"), [(1, 90), (17, 300), (32, 300), (CONTEXT - 1, 300)])
def test_every_token_is_scored_once_as_in_the_loop_of_transformers_guide(
    model: LanguageModel, stride: int, length: int
) -> None:
    text = TEXT[:length]
    records = asyncio.run(model.score(text, 3, stride=stride))
    assert [record.token_id for record in records] == text
    got = [math.nan if record.logprob is None else record.logprob for record in records]
    np.testing.assert_allclose(got, by_hand(text, stride), atol=TOLERANCE, rtol=0)
    assert all(len(record.top_ids) == 3 for record in records[1:])
    # and synchronous, and from a position on, the records are the same
    assert model.score_sync(text, 3, stride=stride) == records
    assert model.score_sync(text, 3, 71, stride=stride) == records[71:]


def test_a_text_that_fits_is_scored_as_without_a_stride(model: LanguageModel) -> None:
    short = TEXT[:CONTEXT]
    assert model.score_sync(short, stride=9) == model.score_sync(short) == asyncio.run(model.score(short))


def test_without_a_stride_a_longer_text_is_refused(model: LanguageModel) -> None:
    with pytest.raises(ContextOverflowError, match="300"):
        model.score_sync(TEXT)
    with pytest.raises(ContextOverflowError, match="300"):
        asyncio.run(model.score(TEXT))


@pytest.mark.parametrize("stride", [None, 32])
@pytest.mark.parametrize("start", [-1, 60, 1.5, True, "x"])
def test_a_start_outside_the_text_is_refused(model: LanguageModel, start: Any, stride: int | None) -> None:
    with pytest.raises(InvalidRequestError, match="start must lie within 0 and 59"):
        model.score_sync(TEXT[:60], 0, start, stride=stride)


@pytest.mark.parametrize("stride", [0, -1, CONTEXT, 1.5, True])
def test_a_stride_that_leaves_tokens_without_context_is_refused(model: LanguageModel, stride: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"from 1 to {CONTEXT - 1}"):
        model.score_sync(TEXT, stride=stride)


def test_a_bad_id_is_named_by_its_place_in_the_whole_text_before_anything_is_computed(model: LanguageModel) -> None:
    before = model.metrics().tokens_computed
    with pytest.raises(InvalidRequestError, match="position 200"):
        model.score_sync([*TEXT[:200], 10**6, *TEXT[201:]], stride=32)
    assert model.metrics().tokens_computed == before


def test_progress_counts_the_tokens_of_all_windows(model: LanguageModel) -> None:
    model.clear_cache()
    heard: list[PromptProgress] = []
    asyncio.run(model.score(TEXT, stride=48, on_progress=heard.append))
    done = [progress.done for progress in heard]
    assert done == sorted(done)
    assert {progress.total for progress in heard} == {done[-1]}
    assert done[-1] == 5 * CONTEXT + len(TEXT) - 5 * 48


def test_a_character_split_between_two_windows_is_whole(model: LanguageModel) -> None:
    text = "日本語 é " * 12
    ids = model.tokenize(text)
    assert len(ids) > CONTEXT
    for stride in (31, 32, 33):
        assert "".join(record.text for record in model.score_sync(ids, stride=stride)) == model.detokenize(ids)


def test_complete_sync_gives_the_answer_of_complete_also_inside_a_running_loop(model: LanguageModel) -> None:
    said = asyncio.run(model.complete("The parser", GREEDY))
    again = model.complete_sync("The parser", GREEDY)
    assert (again, again.finish_reason, again.incomplete) == (said, "length", True)

    async def inside() -> None:
        assert model.complete_sync("The parser", GREEDY) == said
        assert [r.token_id for r in model.score_sync(TEXT[:9])] == TEXT[:9]

    asyncio.run(inside())
    with pytest.raises(InvalidRequestError):
        model.complete_sync(b"bytes", GREEDY)  # type: ignore[arg-type]  # the mistake
