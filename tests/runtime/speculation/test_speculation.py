"""An answer is the same with and without speculation, whatever drafts the tokens and however wrong they are."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime import (
    GenerationOptions,
    Grammar,
    InvalidRequestError,
    LanguageModel,
    Metrics,
    SamplingOptions,
    SpeculativeOptions,
    TokenRecord,
    UnsupportedFeatureError,
    load,
    spawn,
)
from runtime.backends.fake import Behaviour
from runtime.scheduler.decode.draft import PromptLookup
from tests.fakes import Gate, assert_right, engine_of, fake_model, settled, some_ids
from tests.runtime.grammar.judge import accepts
from tests.tiny_models import tiny_path

TOLERANCE = 1e-4  # nats: a forward of several tokens may round differently from a forward of one
MODELS = [("hf", "llama"), ("hf", "gemma3"), ("mlx", "llama"), ("mlx", "gemma3"), ("mlx", "qwen3")]
PLAIN = GenerationOptions(max_tokens=40, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, resolve=False, seed=4)


def speculating(options: GenerationOptions = PLAIN, **more: Any) -> GenerationOptions:
    return replace(options, speculative=SpeculativeOptions(**more))


def assert_same(got: Sequence[TokenRecord], wanted: Sequence[TokenRecord]) -> None:
    assert [r.token_id for r in got] == [r.token_id for r in wanted]
    assert "".join(r.text for r in got) == "".join(r.text for r in wanted)
    assert [r.finish_reason for r in got] == [r.finish_reason for r in wanted]
    np.testing.assert_allclose(numbers(got), numbers(wanted), atol=TOLERANCE)
    assert [r.top_ids[:1] for r in got] == [r.top_ids[:1] for r in wanted]
    for one, other in zip(got, wanted, strict=True):
        # tokens that nearly tie may swap places, and the last of them with the first token that was left out
        known, last = dict(zip(other.top_ids, other.top_logprobs, strict=True)), other.top_logprobs[-1]
        assert len(one.top_ids) == len(known) > 1
        np.testing.assert_allclose(one.top_logprobs, other.top_logprobs, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(one.top_logprobs, [known.get(i, last) for i in one.top_ids], atol=TOLERANCE, rtol=0)


def numbers(records: Sequence[TokenRecord]) -> npt.NDArray[np.float64]:
    """``(n, 3)``: log-probability, entropy, and the mass that the top tokens cover."""
    return np.array([(r.logprob, r.entropy, r.covered_mass) for r in records], np.float64)


class Oracle(PromptLookup):
    """Guesses the tokens of a known answer: all right, or wrong at every third place where `spoilt`."""

    said: Sequence[int] = ()
    spoilt = False

    def propose(self, limit: int) -> list[int]:
        at = len(self._text)
        guesses = list(self.said[at : at + limit])
        return [(g + 1) % 250 if self.spoilt and i % 3 == 2 else g for i, g in enumerate(guesses)]


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Oracle]]:
    monkeypatch.setattr("runtime.scheduler.decode.decoding.PromptLookup", Oracle)
    yield Oracle
    Oracle.said, Oracle.spoilt = (), False


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("backend", "name"), MODELS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_right_guesses_save_forwards_and_wrong_ones_change_no_token(
    backend: str, name: str, temperature: float, oracle: type[Oracle]
) -> None:
    prompt = some_ids(3, 30)
    options = replace(PLAIN, sampling=SamplingOptions(temperature=temperature))
    with load(tiny_path(name), backend=backend) as model:
        plain = list(model.generate_sync(prompt, options))
        oracle.said = [*prompt, *(r.token_id for r in plain)]
        for spoilt in (False, True):
            # given guesses that are all right, or wrong at some places
            oracle.spoilt = spoilt
            model.clear_cache()
            before = model.metrics()
            # when the same request is sent
            got = list(model.generate_sync(prompt, speculating(options, num_tokens=4)))
            # then the answer is the same, in fewer forwards, and wrong guesses are counted
            assert_same(got, plain)
            after = settled(model)[0]
            forwards = after.forward_calls - before.forward_calls
            drafted = after.tokens_drafted - before.tokens_drafted
            accepted = after.tokens_accepted - before.tokens_accepted
            wrong = drafted - accepted
            assert (after.recent[-1].drafted, after.recent[-1].accepted) == (drafted, accepted)
            assert forwards <= (10 if not spoilt else 20)
            assert (wrong == 0) is not spoilt
            assert after.tokens_computed - before.tokens_computed == 30 + 39 + wrong
            # and the cache holds the tokens of the answer, not the wrong guesses
            assert model.prefix_match(oracle.said[:-1]).tokens == 69
            reused = model.metrics().tokens_computed
            np.testing.assert_allclose(
                model.next_token_logprobs_sync(oracle.said), model.next_token_logprobs_uncached(oracle.said), atol=TOLERANCE
            )
            assert model.metrics().tokens_computed == reused + 1


def test_prompt_lookup_drafts_from_the_text_itself() -> None:
    # given an answer that the prompt already contains
    with fake_model() as model:
        prompt = some_ids(1, 20)
        said = [r.token_id for r in model.generate_sync(prompt, PLAIN)]
        recurring = [*prompt, *said, *prompt]
        wanted = list(model.generate_sync(recurring, PLAIN))
        got = list(model.generate_sync(recurring, speculating(prompt_lookup_min=2)))
        assert_same(got, wanted)
        assert settled(model)[0].tokens_drafted > 0


def test_drafted_and_accepted_tokens_are_counted_per_request() -> None:
    # given answers of one repeated token: one without guesses, two with them, and one cancelled after its first token
    same = replace(PLAIN, sampling=SamplingOptions(logit_bias={7: 100.0}))
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate)) as model:
        list(model.generate_sync(some_ids(1, 20), same))
        list(model.generate_sync(some_ids(2, 20), speculating(same)))
        list(model.generate_sync(some_ids(3, 20), speculating(replace(same, max_tokens=12))))

        async def cut() -> None:
            gate.shut(after=1)  # after the first token
            async with aclosing(model.generate(some_ids(4, 20), speculating(same))) as records:
                await anext(records)
            gate.open()

        asyncio.run(cut())
        metrics = settled(model)[0]
        without, long, short, stopped = metrics.recent
        assert stopped.finish == "cancelled"
        assert (without.drafted, without.accepted, without.acceptance_rate) == (0, 0, None)
        for one in (long, short):
            assert 0 < one.accepted <= one.drafted
            assert one.acceptance_rate == one.accepted / one.drafted
        assert short.accepted < long.accepted
        assert sum(one.drafted for one in metrics.recent) == metrics.tokens_drafted
        assert sum(one.accepted for one in metrics.recent) == metrics.tokens_accepted


def test_speculation_with_several_streams_stop_strings_and_early_closes(oracle: type[Oracle]) -> None:
    prompts = [some_ids(seed, 12) for seed in range(4)]
    with fake_model(max_batch_rows=3) as model:
        plain = [list(model.generate_sync(prompt, PLAIN)) for prompt in prompts]
        oracle.said = [*prompts[0], *(r.token_id for r in plain[0])]

        async def one(prompt: list[int], n: int) -> list[TokenRecord]:
            async with aclosing(model.generate(prompt, speculating())) as records:
                return [record async for record, _ in zip_first(records, n)]

        async def main() -> list[list[TokenRecord]]:
            return list(await asyncio.gather(*(one(prompt, 40 - 10 * (i == 2)) for i, prompt in enumerate(prompts))))

        for got, wanted in zip(asyncio.run(main()), plain, strict=True):
            assert [r.token_id for r in got] == [r.token_id for r in wanted[: len(got)]]
        # a stop string in the middle of accepted guesses ends the answer there
        stop = plain[0][7].text + plain[0][8].text
        stopping = replace(PLAIN, stop=(stop,))
        assert_same(
            list(model.generate_sync(prompts[0], speculating(stopping))), list(model.generate_sync(prompts[0], stopping))
        )
        eos = replace(PLAIN, ignore_eos=False, max_tokens=5)
        assert_same(list(model.generate_sync(prompts[0], speculating(eos))), list(model.generate_sync(prompts[0], eos)))


async def zip_first(records: Any, n: int) -> Any:
    i = 0
    async for record in records:
        yield record, i
        i += 1
        if i == n:
            return


def test_a_guess_that_fails_in_a_forward_does_not_change_the_answer(oracle: type[Oracle]) -> None:
    # given a token that makes a forward fail, guessed but never generated
    with fake_model() as model:
        prompt = some_ids(1, 10)
        plain = list(model.generate_sync(prompt, PLAIN))
        oracle.said = [*prompt, *(r.token_id for r in plain)]
    bad = next(token for token in range(250) if token not in oracle.said)
    behaviour = Behaviour(raise_on={bad: ValueError("no such token")})
    with fake_model(behaviour) as model:
        oracle.said = [*oracle.said[:15], bad, *oracle.said[16:]]
        assert_same(list(model.generate_sync(prompt, speculating())), plain)
        assert_right(model.next_token_logprobs_sync(prompt), prompt)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_draft_model_does_not_change_the_answer(backend: str) -> None:
    # given the model itself as its draft: every guess is right
    prompt = some_ids(5, 300)
    with load(tiny_path("llama"), backend=backend, draft_model=str(tiny_path("llama"))) as model:
        plain = list(model.generate_sync(prompt, PLAIN))
        got = list(model.generate_sync(prompt, speculating(method="draft", num_tokens=3)))
        assert_same(got, plain)
        metrics = settled(model)[0]
        assert metrics.acceptance_rate is not None
        assert metrics.acceptance_rate > 0.9
        assert metrics.kv_bytes <= metrics.kv_budget
        # at a high temperature most guesses are wrong, and nothing else changes
        hot = replace(PLAIN, sampling=SamplingOptions(temperature=1.5))
        assert_same(list(model.generate_sync(prompt, speculating(hot))), list(model.generate_sync(prompt, hot)))
        assert settled(model)[1].leases == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_under_a_grammar_a_draft_model_changes_no_token(backend: str, temperature: float) -> None:
    # given a draft that is right at free tokens and wrong at those the grammar decides, and one that is mostly wrong
    grammar = Grammar.regex("(yes|no|maybe)(, [a-e ]{3,8}){2,3}[.!]")
    plain = GenerationOptions(
        max_tokens=60, sampling=SamplingOptions(temperature=temperature), grammar=grammar, resolve=False, seed=4
    )
    prompt = some_ids(5, 40)
    for draft in ("llama", "qwen3"):
        with load(tiny_path("llama"), backend=backend, draft_model=str(tiny_path(draft))) as model:
            wanted = list(model.generate_sync(prompt, plain))
            got = list(model.generate_sync(prompt, speculating(plain, method="draft", num_tokens=4)))
            assert_same(got, wanted)
            assert [r.origin for r in got] == [r.origin for r in wanted]
            assert accepts(grammar, "".join(r.text for r in got if r.finish_reason != "eos"))
            assert settled(model)[0].tokens_drafted > 0
            assert settled(model)[1].leases == 0


def test_a_draft_of_another_vocabulary_is_refused(tmp_path: Any) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_path("llama"), other)
    tokenizer = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(tokenizer.replace("<|im_start|>", "<|im_begin|>"))
    with pytest.raises(InvalidRequestError, match="another vocabulary"):
        load(tiny_path("llama"), backend="hf", draft_model=str(other))


def test_invalid_speculation_is_refused_before_any_compute() -> None:
    with fake_model(Behaviour(recurrent=True)) as model, pytest.raises(UnsupportedFeatureError, match="recurrent"):
        next(iter(model.generate_sync([1, 2], speculating())))
    with fake_model() as model:
        for wrong in (
            SpeculativeOptions(num_tokens=0),
            SpeculativeOptions(prompt_lookup_max=2, prompt_lookup_min=3),
            SpeculativeOptions(method="draft"),
            SpeculativeOptions(method="magic"),  # type: ignore[arg-type]  # what a caller may get wrong
        ):
            with pytest.raises(InvalidRequestError):
                next(iter(model.generate_sync([1, 2], replace(PLAIN, speculative=wrong))))
        assert model.metrics().tokens_computed == 0
    with pytest.raises(UnsupportedFeatureError, match="recurrent"):
        load(tiny_path("llama"), backend="hf", draft_model=str(tiny_path("mamba")))


@pytest.mark.slow
def test_speculation_works_over_the_pipe() -> None:
    async def main() -> tuple[list[TokenRecord], list[TokenRecord], Metrics]:
        async with await spawn(tiny_path("llama"), backend="hf", draft_model=str(tiny_path("llama"))) as model:
            prompt = some_ids(2, 20)
            plain = [r async for r in model.generate(prompt, PLAIN)]
            got = [r async for r in model.generate(prompt, speculating())]
            return plain, got, model.metrics()

    plain, got, metrics = asyncio.run(main())
    assert_same(got, plain)
    assert metrics.acceptance_rate is not None
    assert metrics.acceptance_rate > 0.9
    without, guessed = metrics.recent
    assert (without.drafted, without.accepted) == (0, 0)
    assert (guessed.drafted, guessed.accepted) == (metrics.tokens_drafted, metrics.tokens_accepted)


def test_little_memory_stops_the_speculation_but_not_the_answer() -> None:
    prompt = some_ids(5, 100)
    with load(tiny_path("llama"), backend="hf", draft_model=str(tiny_path("llama"))) as model:
        assert isinstance(model, LanguageModel)
        plain = list(model.generate_sync(prompt, PLAIN))
        # given a KV budget for this stream and little else
        model.clear_cache()
        model.set_kv_budget(220 * engine_of(model).backend.slot_bytes)
        got = list(model.generate_sync(prompt, speculating()))
        assert_same(got, plain)
        assert settled(model)[0].kv_peak_bytes <= settled(model)[0].kv_budget
