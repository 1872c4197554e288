"""Activated LoRA: base numbers and base KV up to the invocation, the adapter's from there on, as in peft."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.adapters.stacks import Tags, salted
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Float32
from tests.runtime.adapters.conftest import both_backends
from tests.runtime.adapters.makers import INVOCATION, Peft, save_adapter
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

TOLERANCE = 1e-4  # nats


def plain(seed: int, n: int) -> list[int]:
    """Ids without the invocation's first token."""
    return [int(i) if i != INVOCATION[0] else 18 for i in random_ids(seed, n)]


@pytest.mark.slow
@both_backends
def test_tokens_before_the_invocation_use_and_fill_the_kv_of_the_base(llama: LanguageModel, peft: Peft) -> None:
    prefix, after = plain(1, 40), plain(2, 6)
    ids = [*prefix, *INVOCATION, *after]
    # given a prefix computed by the base
    llama.cache_kv(prefix)
    before = llama.metrics().tokens_computed
    # when the whole is requested under the activated adapter
    got = llama.next_token_logprobs_sync(ids, adapters=["act"])
    # then the prefix was not computed again, and the numbers are peft's
    assert llama.metrics().tokens_computed - before == len(INVOCATION) + len(after)
    np.testing.assert_allclose(got, peft.logprobs(ids, ("act", 1.0))[-1], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(llama.next_token_logprobs_uncached(ids, adapters=["act"]), got, atol=TOLERANCE, rtol=0)
    # and vice versa: the prefix that the adapter's request cached serves the base
    longer = [*plain(3, 30)]
    llama.next_token_logprobs_sync([*longer, *INVOCATION], adapters=["act"])
    before = llama.metrics().tokens_computed
    np.testing.assert_allclose(
        llama.next_token_logprobs_sync([*longer, 7], adapters=()), peft.logprobs([*longer, 7])[-1], atol=TOLERANCE, rtol=0
    )
    assert llama.metrics().tokens_computed - before == 1


@both_backends
def test_kv_cached_under_one_salt_serves_no_other(llama: LanguageModel) -> None:
    ids = [*plain(8, 25), *INVOCATION, 9]
    rows = []
    for adapters, own in (((), len(ids)), (("act",), len(INVOCATION) + 1)):  # the tokens before the invocation are the base's
        for expected in (own, 0):
            for salt in ("", "a", "b"):
                before = llama.metrics().tokens_computed
                rows.append(llama.next_token_logprobs_sync(ids, adapters=adapters, cache_salt=salt))
                assert llama.metrics().tokens_computed - before == expected, (adapters, salt)
        np.testing.assert_allclose(rows[-6:], [rows[-1]] * 6, atol=1e-5, rtol=0)
    before = llama.metrics().tokens_computed
    llama.score_sync(ids, cache_salt="c")
    assert llama.metrics().tokens_computed - before == len(ids)


@pytest.mark.slow
@both_backends
def test_a_salt_is_forgotten_when_none_of_its_kv_is_left(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: dict[Hashable, set[int]] = {}
    own, ids, options = Tags.tag, plain(8, 12), GenerationOptions(max_tokens=40, ignore_eos=True, seed=3)

    def noting(tags: Tags, namespace: Hashable) -> int:
        number = own(tags, namespace)
        numbers.setdefault(namespace, set()).add(number)
        return number

    async def beside_others() -> list[int]:
        said: list[int] = []
        async with aclosing(llama.continue_many_runs(ids, 1, options, cache_salt="held")) as runs:
            async for _, run in runs:
                said += run.ids.tolist()
                await llama.next_token_logprobs(ids, cache_salt=f"other {len(said)}")
                await llama.clear_cache_async()
        return said

    expected = [record.token_id for record in llama.generate_sync(ids, options)]
    monkeypatch.setattr(Tags, "tag", noting)
    monkeypatch.setattr(Tags, "LEAST", 4)
    assert asyncio.run(beside_others()) == expected
    held, others = numbers[salted(llama.info.kv_fingerprint, "held")], len(numbers)
    assert len(held) == 1
    for _ in range(2):
        for other in range(12):
            llama.next_token_logprobs_sync(ids, cache_salt=f"again {other}")
            llama.clear_cache()
    assert others > 2
    assert any(len(given) == 2 for given in numbers.values())  # the number of a forgotten salt is not reused


@both_backends
def test_the_scores_of_every_position_equal_peft(llama: LanguageModel, peft: Peft) -> None:
    ids = [*plain(4, 12), *INVOCATION, *plain(5, 9)]
    expected = peft.logprobs(ids, ("act", 1.0))
    for _ in range(2):  # computed, then cached
        records = asyncio.run(llama.score(ids, adapters=["act"]))
        got = np.array([record.logprob for record in records[1:]], np.float32)
        np.testing.assert_allclose(got, expected[np.arange(len(ids) - 1), ids[1:]], atol=TOLERANCE, rtol=0)


@both_backends
def test_activation_begins_at_the_last_invocation_and_never_without_one(llama: LanguageModel, peft: Peft) -> None:
    twice = [*plain(6, 9), *INVOCATION, *plain(7, 9), *INVOCATION, 9, 8]
    got = llama.next_token_logprobs_sync(twice, adapters=["act"])
    np.testing.assert_allclose(got, peft.logprobs(twice, ("act", 1.0))[-1], atol=TOLERANCE, rtol=0)
    never = plain(8, 20)
    base = llama.next_token_logprobs_sync(never, adapters=())
    before = llama.metrics().tokens_computed
    np.testing.assert_array_equal(llama.next_token_logprobs_sync(never, adapters=["act"]), base)
    assert llama.metrics().tokens_computed == before  # it is the same request


@pytest.mark.slow
@both_backends
def test_requests_of_the_base_and_of_adapters_share_one_forward(llama: LanguageModel, peft: Peft) -> None:
    ids = [*plain(9, 20), *INVOCATION, *plain(10, 3)]
    stacks = [(), (("A", 1.0),), (("act", 0.5),), (("B", 2.0),), (("A", 1.0), ("B", 0.5))]

    async def ask() -> list[Float32]:
        return list(await asyncio.gather(*(llama.next_token_logprobs(ids, adapters=stack) for stack in stacks)))

    before = llama.metrics().forward_calls
    answers = asyncio.run(ask())
    assert llama.metrics().forward_calls - before == 1
    for stack, got in zip(stacks, answers, strict=True):
        np.testing.assert_allclose(got, peft.logprobs(ids, *stack)[-1], atol=TOLERANCE, rtol=0)


@both_backends
def test_an_answer_continues_under_the_activated_adapter(llama: LanguageModel, peft: Peft) -> None:
    ids = [*plain(11, 20), *INVOCATION]
    greedy = GenerationOptions(max_tokens=8, resolve=False, adapters=("act",), seed=1)
    records = list(llama.generate_sync(ids, replace(greedy, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)))
    answer = [record.token_id for record in records]
    # peft activates at the last invocation: the answer must not contain another one
    assert tuple(answer).count(INVOCATION[0]) == 0
    expected = peft.logprobs([*ids, *answer], ("act", 1.0))
    rows = expected[np.arange(len(ids) - 1, len(ids) + len(answer) - 1)]
    got = np.array([r.logprob for r in records], np.float32)
    np.testing.assert_allclose(got, rows[np.arange(len(answer)), answer], atol=TOLERANCE, rtol=0)
    # and its cached KV is found by the same stack alone
    llama.cache_kv([*ids, *answer])
    assert llama.prefix_match([*ids, *answer], adapters=["act"]).tokens >= len(ids) + len(answer) - 1
    assert llama.prefix_match([*ids, *answer], adapters=["A"]).tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "lfm2", pytest.param("mamba", marks=pytest.mark.slow)])
def test_activated_adapters_match_peft_on_sliding_window_and_recurrent_models(name: str, root: Path) -> None:
    folder = save_adapter(root / name / "act", name, seed=4, alora_invocation_tokens=INVOCATION)
    peft = Peft(name, act=folder)
    ids = [*plain(12, 30), *INVOCATION, *plain(13, 5)]
    expected = peft.logprobs(ids, ("act", 1.0))[-1]
    for backend in ("hf", "mlx"):
        with load(tiny_path(name), backend=backend) as model:
            model.load_adapter(model.add_adapter(folder, "act"))
            model.cache_kv(ids[:30])
            got = model.next_token_logprobs_sync(ids, adapters=["act"])
            np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)
            np.testing.assert_allclose(
                model.next_token_logprobs_uncached(ids, adapters=["act"]), expected, atol=TOLERANCE, rtol=0
            )
