"""Scores: every position, from one pass, cached beside the KV."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from runtime.backends.fake import Behaviour
from runtime.errors import InvalidRequestError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Origin, TokenRecord
from tests.fakes import KINDS, TOLERANCE, fake_model, reference, settled, some_ids


def check(records: Sequence[TokenRecord], ids: Sequence[int], kind: str = "attention", *, k: int = 10, start: int = 0) -> None:
    """Checks every number of every position against the reference."""
    assert [r.token_id for r in records] == list(ids[start:])
    for at, record in enumerate(records, start):
        if at == 0:
            assert (record.logprob, record.rank, record.entropy, record.covered_mass) == (None, None, None, None)
            assert record.top_ids == ()
            continue
        row = reference(ids[:at], kind)
        own = row[ids[at]]
        assert record.logprob == pytest.approx(float(own), abs=TOLERANCE)
        assert record.rank == 1 + int((row > own + TOLERANCE).sum())
        assert record.entropy == pytest.approx(float(-(np.exp(row) * row).sum()), abs=1e-4)
        assert record.top_ids == tuple(np.argsort(-row, kind="stable")[:k].tolist())
        assert record.top_logprobs == pytest.approx(np.sort(row)[::-1][:k].tolist(), abs=TOLERANCE)
        assert record.covered_mass == pytest.approx(float(np.exp(np.sort(row)[::-1][:k]).sum()), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [5, 512])
def test_every_position_has_every_number(kind: str, chunk: int) -> None:
    ids = some_ids(1, 60)
    with fake_model(
        Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), prefill_chunk_tokens=chunk
    ) as model:
        check(asyncio.run(model.score(ids)), ids, kind)
        metrics = model.metrics()
        assert (metrics.tokens_computed, metrics.tokens_rescored) == (60, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_scoring_a_text_again_computes_nothing(kind: str) -> None:
    ids = some_ids(1, 60)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        first = asyncio.run(model.score(ids))
        for k, start in ((10, 0), (3, 0), (10, 31)):
            check(asyncio.run(model.score(ids, top_k=k, start=start)), ids, kind, k=k, start=start)
        assert asyncio.run(model.score(ids)) == first
        assert model.metrics().tokens_computed == 60
        assert (model.metrics().last_reused, model.metrics().last_computed) == (60, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_only_kv_without_scores_is_computed_again(kind: str) -> None:
    # given KV that a query left without scores
    ids = some_ids(1, 60)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        model.cache_kv(ids[:40])
        check(asyncio.run(model.score(ids)), ids, kind)
        # then the tokens computed again are counted, exactly
        metrics = model.metrics()
        assert metrics.tokens_computed == 60 + 40
        assert metrics.tokens_rescored == 40
        # and the scores are cached from now on
        check(asyncio.run(model.score(ids)), ids, kind)
        assert model.metrics().tokens_computed == 100


def test_scoring_a_longer_text_computes_only_its_new_tokens() -> None:
    ids = some_ids(1, 80)
    with fake_model() as model:
        asyncio.run(model.score(ids[:50]))
        check(asyncio.run(model.score(ids)), ids)
        # then the row that scores the first new token is the only one computed again
        assert model.metrics().tokens_computed <= 81
        assert model.metrics().tokens_computed == 80 + model.metrics().tokens_rescored


def test_more_alternatives_than_are_cached_are_computed() -> None:
    ids = some_ids(1, 30)
    with fake_model() as model:
        asyncio.run(model.score(ids, top_k=2))
        check(asyncio.run(model.score(ids, top_k=20)), ids, k=20)
        assert model.metrics().tokens_rescored == 30
        check(asyncio.run(model.score(ids, top_k=20)), ids, k=20)
        assert model.metrics().tokens_computed == 60


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_end_is_scored_when_a_start_is_given(kind: str) -> None:
    ids = some_ids(1, 60)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        check(asyncio.run(model.score(ids, start=50)), ids, kind, start=50)
        assert model.metrics().tokens_computed == 60
        check(asyncio.run(model.score(ids, start=50)), ids, kind, start=50)
        assert model.metrics().tokens_computed == 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_answer_is_scored_already(kind: str) -> None:
    # given an answer, whose records the trie keeps with its KV
    prompt = some_ids(1, 20)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        options = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)

        async def main() -> list[TokenRecord]:
            return [record async for record in model.generate(prompt, options)]

        records = asyncio.run(main())
        path = [*prompt, *(r.token_id for r in records)]
        check(asyncio.run(model.score(path, start=20)), path, kind, start=20)
        # then only the last token is new: it was drawn, but never computed
        metrics = model.metrics()
        assert metrics.tokens_computed - metrics.tokens_rescored == len(path)
        assert metrics.tokens_rescored <= (1 if kind == "attention" else 11)  # recurrent: back to the prompt's end


def test_scores_and_queries_over_one_text_at_once_are_right() -> None:
    ids = some_ids(1, 60)
    with fake_model(prefill_chunk_tokens=16) as model:

        async def main() -> None:
            scores = asyncio.gather(*(model.score(ids, start=s) for s in (0, 10, 59)), model.score(ids[:33]))
            rows = asyncio.gather(*(model.next_token_logprobs(ids[:n]) for n in (5, 33, 60)))
            for records, (path, start) in zip(await scores, ((ids, 0), (ids, 10), (ids, 59), (ids[:33], 0)), strict=True):
                check(records, path, start=start)
            for row, n in zip(await rows, (5, 33, 60), strict=True):
                np.testing.assert_allclose(row, reference(ids[:n]), atol=TOLERANCE)

        asyncio.run(main())
        assert model.metrics().tokens_computed <= 60 * 1.1


def test_one_token_has_nothing_before_it() -> None:
    with fake_model() as model:
        (record,) = asyncio.run(model.score([65]))
        assert (record.text, record.logprob, record.origin) == ("A", None, Origin.TYPED)
        assert model.metrics().tokens_computed == 0


@pytest.mark.parametrize(("options", "says"), [({"start": 5}, "start"), ({"start": -1}, "start"), ({"top_k": -1}, "top_k")])
def test_invalid_score_arguments_are_refused(options: dict[str, int], says: str) -> None:
    with fake_model() as model, pytest.raises(InvalidRequestError, match=says):
        asyncio.run(model.score([1, 2, 3], options.get("top_k", 10), options.get("start", 0)))


def test_scores_count_in_the_budget() -> None:
    with fake_model() as model:
        ids = some_ids(1, 100)
        model.cache_kv(ids)
        bare = settled(model)[1].bytes
        asyncio.run(model.score(ids, top_k=10))
        report = settled(model)[1]
        assert report.bytes >= bare + 100 * 10 * 8
        assert report.tokens == 100
