"""A token whose keys and values are NaN or infinite: requests that contain it fail, others do not, and none of its KV stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.beams import BeamOptions
from runtime.errors import NonFiniteLogitsError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.speculation import SpeculativeOptions
from runtime.scheduler.decode.draft import PromptLookup
from tests.fakes import engine_of
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.runtime.model.trouble import audit, poison
from tests.tiny_models import tiny_path

POISON = 999  # a token that `text` never gives
CASES = [
    (backend, name, value)
    for backend, names in (("hf", ("llama", "gemma3", "mistral", "lfm2")), ("mlx", ("llama", "qwen3", "mistral", "lfm2")))
    for name in names
    for value in (np.nan, np.inf)
]
INNOCENT = SamplingOptions(temperature=0.0, logit_bias={POISON: -1000.0})  # never draws it
GREEDY = GenerationOptions(max_tokens=40, sampling=INNOCENT, ignore_eos=True, top_k=0)


@contextmanager
def poisoned(backend: str, name: str, value: float, **options: Any) -> Iterator[LanguageModel]:
    """A loaded model; at the end nothing is leased, and all KV that it holds is finite."""
    with load(tiny_path(name), backend=backend, threads=1 if backend == "hf" else None, **options) as model:
        engine_of(model).call(lambda: poison(model, POISON, value)).result()
        yield model
        sound(model)
        audit(model)


def sound(model: LanguageModel) -> None:
    """Asserts that all packs and payloads hold finite numbers only."""

    def look() -> None:
        cache, backend = engine_of(model).scheduler.cache, engine_of(model).backend
        assert all(backend.sound(workspace.pack).all() for workspace in cache.workspaces.open)
        for node in cache.trie.nodes():
            arrays = cache.kv_budget.payloads.export(node.payload, 0, len(node.tokens))
            assert all(np.isfinite(a).all() for a in arrays.values()), node.tokens
            assert POISON not in node.tokens

    engine_of(model).call(look).result()


def text(seed: int, n: int) -> list[int]:
    """Tokens other than `POISON`, the same for the same seed."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, 250, n)]


def check(name: str, ids: list[int], got: Any) -> None:
    np.testing.assert_allclose(got, expected(name, ids)[-1], atol=TOLERANCE, rtol=0)


def greedy(name: str, prompt: list[int], said: list[int]) -> None:
    """Asserts that each token was the likeliest except `POISON`."""
    assert POISON not in said
    rows = np.delete(expected(name, [*prompt, *said])[len(prompt) - 1 : -1], POISON, axis=1)  # no higher id is drawn
    np.testing.assert_allclose(rows[np.arange(len(said)), said], rows.max(-1), atol=2 * TOLERANCE, rtol=0)


async def spoken(model: LanguageModel, prompt: list[int], options: GenerationOptions) -> list[int]:
    return [record.token_id async for record in model.generate(prompt, options)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("backend", "name", "value"), CASES)
def test_requests_that_contain_the_token_fail_and_others_are_not_affected(backend: str, name: str, value: float) -> None:
    with poisoned(backend, name, value, prefill_chunk_tokens=16) as model:
        prompts = [text(seed, 4 + seed) for seed in range(3)]
        queries = [text(10 + seed, 3 + seed % 3) for seed in range(7)]
        bad = [[*text(20, 2), POISON, *text(21, 1)], [POISON], [*text(22, 5), POISON, *text(23, 40)]]  # the last in chunks
        long = text(30, 45)  # beside it, in the same chunks

        async def main() -> None:
            # given running streams and a search
            streams = [asyncio.ensure_future(spoken(model, prompt, GREEDY)) for prompt in prompts]
            search = asyncio.ensure_future(model.beam_generate(text(40, 5), BeamOptions(3, 8, ignore_eos=True)))
            await asyncio.sleep(0)
            # when queries arrive, some of which contain the token
            asked = [queries[0], bad[0], *queries[1:4], bad[2], long, bad[1], *queries[4:]]
            got = await asyncio.gather(
                *(model.next_token_logprobs(ids) for ids in asked),
                model.score([*text(50, 3), POISON, *text(51, 30)]),
                model.score(text(52, 33), top_k=2),
                return_exceptions=True,
            )
            # then only those fail
            for ids, one in zip(asked, got[:-2], strict=True):
                if POISON in ids:
                    assert isinstance(one, NonFiniteLogitsError)
                else:
                    check(name, ids, one)
            assert isinstance(got[-2], NonFiniteLogitsError)
            ids, scores = text(52, 33), cast("Any", got[-1])
            rows = expected(name, ids)
            for at in range(1, 33):
                assert scores[at].logprob == pytest.approx(float(rows[at - 1][ids[at]]), abs=2e-4)
            for prompt, said in zip(prompts, await asyncio.gather(*streams), strict=True):
                assert len(said) == GREEDY.max_tokens
                greedy(name, prompt, said)
            best = (await search)[0].ids
            rows = expected(name, [*text(40, 5), *best])[4:-1]
            assert np.isfinite(rows).all()
            assert len(best) == 8

        asyncio.run(main())
        sound(model)
        # and later queries, and the same ones again, are answered as well
        for ids in (*queries, long, text(60, 3)):
            check(name, ids, model.next_token_logprobs_sync(ids))
        with pytest.raises(NonFiniteLogitsError, match=f"position {len(bad[0]) - 1}"):
            model.next_token_logprobs_sync(bad[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("backend", "name", "value"), CASES)
def test_an_answer_that_draws_the_token_fails_alone(backend: str, name: str, value: float) -> None:
    # given an answer that is forced to draw the token, beside two that do not
    with poisoned(backend, name, value) as model:
        forced = GenerationOptions(
            max_tokens=6, sampling=SamplingOptions(temperature=0.0, logit_bias={POISON: 1000.0}), ignore_eos=True, top_k=0
        )
        prompts = [text(1, 6), text(2, 9)]

        async def guilty() -> tuple[list[int], BaseException | None]:
            said: list[int] = []
            try:
                async for record in model.generate(text(3, 5), forced):
                    said.append(record.token_id)  # noqa: PERF401  # tokens before an error must be kept
            except NonFiniteLogitsError as error:
                return said, error
            return said, None

        async def main() -> None:
            # when they run together
            innocent = asyncio.gather(*(spoken(model, prompt, GREEDY) for prompt in prompts))
            found, others = await asyncio.gather(guilty(), innocent)
            # then it has drawn the token, and fails where it would continue after it
            assert found[0] == [POISON]
            assert isinstance(found[1], NonFiniteLogitsError)
            for prompt, said in zip(prompts, others, strict=True):
                assert len(said) == GREEDY.max_tokens
                greedy(name, prompt, said)
            # and a search that finds the token likeliest fails alone
            failed, well = await asyncio.gather(
                model.beam_generate([*text(4, 3), POISON], BeamOptions(2, 4, ignore_eos=True)),
                model.next_token_logprobs(text(5, 8)),
                return_exceptions=True,
            )
            assert isinstance(failed, NonFiniteLogitsError)
            check(name, text(5, 8), well)

        asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_wrong_draft_of_the_token_does_not_affect_the_answer(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(GREEDY, max_tokens=24, speculative=SpeculativeOptions(method="prompt_lookup"))
    monkeypatch.setattr(PromptLookup, "propose", lambda _, limit: [7, POISON, 8][:limit])
    with poisoned(backend, "llama", np.nan) as model:
        said = asyncio.run(spoken(model, text(6, 4), options))
        assert len(said) == 24
        greedy("llama", text(6, 4), said)
        assert model.metrics().forward_calls > 36  # those that were rolled back come in addition to the 24


def test_a_gather_with_one_bad_row_does_not_affect_the_others() -> None:
    for backend in ("hf", "mlx"):
        with poisoned(backend, "llama", np.nan) as model:
            texts = [[10 + i, 20, 30 + i] if i != 3 else [10, POISON, 3] for i in range(8)]

            async def main(model: LanguageModel = model, texts: list[list[int]] = texts) -> list[Any]:
                return list(await asyncio.gather(*map(model.next_token_logprobs, texts), return_exceptions=True))

            for i, (ids, got) in enumerate(zip(texts, asyncio.run(main()), strict=True)):
                if i == 3:
                    assert isinstance(got, NonFiniteLogitsError)
                else:
                    check("llama", ids, got)
