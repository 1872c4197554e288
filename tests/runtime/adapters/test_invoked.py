"""An answer that contains an invocation sequence continues as if its tokens were a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.speculation import SpeculativeOptions
from runtime.records import TokenRecord
from tests.fakes import TOLERANCE, fake_model, settled, some_ids
from tests.runtime.adapters.makers import save_adapter
from tests.runtime.adapters.toys import INVOCATION, toy_adapter
from tests.tiny_models import tiny_path

LENGTH = 16
SEED = 18  # a seed whose draws contain the sequence


def options(invocation: list[int], seed: int, **more: object) -> GenerationOptions:
    """Options that draw only tokens of the sequence."""
    sampling = SamplingOptions(temperature=8.0, logit_bias=dict.fromkeys(invocation, 100.0))
    adapters = (("B", 0.5), "act")
    made = GenerationOptions(max_tokens=LENGTH, sampling=sampling, seed=seed, ignore_eos=True, resolve=False, adapters=adapters)
    return replace(made, **more)  # type: ignore[arg-type]  # fields of the dataclass


def says(answer: list[int], invocation: list[int]) -> list[int]:
    """The numbers of tokens after which an answer has completed the sequence."""
    n = len(invocation)
    return [at for at in range(n, len(answer) + 1) if answer[at - n : at] == invocation]


SLOW = ("overlapping", "hf-llama")  # these take as long as mlx-llama


@pytest.fixture(
    scope="module",
    params=["attention", "mlx-llama", "hf-gemma3", "hf-lfm2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LanguageModel, list[int]]]:
    root: Path = tmp_path_factory.mktemp("invoked")
    if "-" not in request.param:
        with fake_model(Behaviour(overlaps=request.param == "overlapping")) as model:
            model.load_adapter(model.add_adapter(toy_adapter(root / "B", 2)))
            model.load_adapter(model.add_adapter(toy_adapter(root / "act", 3, invocation=INVOCATION)))
            yield model, INVOCATION
        return
    backend, name = request.param.split("-")
    with load(tiny_path(name), backend=backend) as model:
        model.load_adapter(model.add_adapter(save_adapter(root / "B", name, seed=2)))
        act = save_adapter(root / "act", name, seed=3, alora_invocation_tokens=INVOCATION)
        model.load_adapter(model.add_adapter(act))
        yield model, INVOCATION


def drawn(model: LanguageModel, prompt: list[int], chosen: GenerationOptions) -> list[TokenRecord]:
    return list(model.generate_sync(prompt, chosen))


@pytest.mark.sampled(1)
def test_an_answer_with_an_invocation_equals_a_branch_and_a_score(case: tuple[LanguageModel, list[int]]) -> None:
    model, invocation = case
    prompt = [*some_ids(1, 12, 100), invocation[0]]  # the sequence may also begin in the prompt
    chosen = options(invocation, SEED)
    records = drawn(model, prompt, chosen)
    answer = [record.token_id for record in records]
    ends = [end - 1 for end in says([prompt[-1], *answer], invocation)]
    assert ends
    for cut in sorted({at for end in ends[-2:] for at in (end - 1, end, end + 1) if 0 < at < LENGTH}):
        # a branch from there without a cache gives the same answer
        model.clear_cache()
        rest = drawn(model, [*prompt, *answer[:cut]], replace(chosen, max_tokens=LENGTH - cut))
        assert [record.token_id for record in rest] == answer[cut:]
    # every number equals that of a query with the tokens before it
    for at in (0, *(end for end in ends if end < LENGTH), LENGTH - 1):
        path = [*prompt, *answer[:at]]
        expected = model.next_token_logprobs_uncached(path, adapters=chosen.adapters)[answer[at]]
        assert records[at].logprob == pytest.approx(float(expected), abs=TOLERANCE * 10)


@pytest.mark.slow
def test_the_scores_and_kv_cached_by_an_answer_with_an_invocation_are_right(case: tuple[LanguageModel, list[int]]) -> None:
    # given scores and KV cached by a stream, some of them from before an activation
    model, invocation = case
    model.clear_cache()
    prompt, chosen = some_ids(2, 10, 100), options(invocation, SEED)
    path = [*prompt, *(record.token_id for record in drawn(model, prompt, chosen))]
    warm = asyncio.run(model.score_run(path, adapters=chosen.adapters))
    assert model.prefix_match(path[:-1], adapters=chosen.adapters).tokens == len(path) - 1
    last = model.next_token_logprobs_sync(path, adapters=chosen.adapters)
    # then they equal those of the path without a cache
    model.clear_cache()
    cold = asyncio.run(model.score_run(path, adapters=chosen.adapters))
    np.testing.assert_allclose(warm.logprob, cold.logprob, atol=TOLERANCE * 10, rtol=0)
    np.testing.assert_allclose(
        last, model.next_token_logprobs_uncached(path, adapters=chosen.adapters), atol=TOLERANCE * 10, rtol=0
    )
    assert settled(model)[1].leases == 0


@pytest.mark.sampled(1)
def test_branches_batches_and_speculation_give_the_same_answer(case: tuple[LanguageModel, list[int]]) -> None:
    model, invocation = case
    prompt, chosen = some_ids(3, 12, 100), options(invocation, SEED)
    alone = {branch: [r.token_id for r in drawn(model, prompt, replace(chosen, branch=branch))] for branch in range(3)}
    assert sum(len(says(answer, invocation)) for answer in alone.values()) >= 2
    model.clear_cache()

    async def together() -> dict[int, list[int]]:
        said: dict[int, list[int]] = {}
        async for branch, record in model.continue_many(prompt, 3, chosen):
            said.setdefault(branch, []).append(record.token_id)
        return said

    assert asyncio.run(together()) == alone
    if "recurrent" not in model.info.attention_kinds:
        model.clear_cache()
        guessed = drawn(model, prompt, replace(chosen, speculative=SpeculativeOptions()))
        assert [record.token_id for record in guessed] == alone[0]
