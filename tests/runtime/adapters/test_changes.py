"""Stacks that change during requests: a running request keeps its own stack, and the KV of stacks is kept apart."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import BeamOptions, LanguageModel, load
from runtime.adapters.uses import Adapters
from runtime.errors import AdapterError, SessionClosedError, UnsupportedFeatureError
from runtime.options.speculation import SpeculativeOptions
from runtime.records import Float32
from tests.fakes import TOLERANCE, Gate, fake_model, settled, some_ids, wait_for_jobs
from tests.runtime.adapters.toys import GREEDY, INVOCATION, right, toy_adapter, wait_until_it_leaves


def test_a_running_answer_keeps_its_stack_and_the_next_has_the_new_one(model: LanguageModel, gate: Gate) -> None:
    ids = some_ids(1, 20)
    alone = {name: [r.token_id for r in model.generate_sync(ids, GREEDY)] for name in ("base",)}
    model.push_lora("A")
    alone["A"] = [r.token_id for r in model.generate_sync(ids, GREEDY)]
    model.clear_loras()
    model.clear_cache()

    async def both() -> tuple[list[int], list[int]]:
        async def run() -> list[int]:
            return [record.token_id async for record in model.generate(ids, GREEDY)]

        gate.shut(after=3)
        running = asyncio.create_task(run())
        assert await asyncio.to_thread(gate.reached.wait, 30)  # in the middle of the first answer
        await model.push_lora_async("A")
        later = asyncio.create_task(run())
        await asyncio.to_thread(wait_for_jobs, model, 1)
        gate.open()
        return await running, await later

    first, second = asyncio.run(both())
    assert first == alone["base"]
    assert second == alone["A"]
    assert first != second


def test_unloading_waits_for_running_requests_and_refuses_new_ones(model: LanguageModel, gate: Gate) -> None:
    ids = some_ids(2, 10)
    expected = [r.token_id for r in model.generate_sync(ids, replace(GREEDY, adapters=("A",)))]
    gate.shut()
    got: list[int] = []
    options = replace(GREEDY, adapters=("A",))
    answering = threading.Thread(target=lambda: got.extend(r.token_id for r in model.generate_sync(ids, options)))
    answering.start()
    assert gate.reached.wait(30)
    leaving = threading.Thread(target=model.unload_adapter, args=("A",))
    leaving.start()
    wait_until_it_leaves(model, leaving)
    # while it waits, no new request may use it, and it is still loaded
    with pytest.raises(AdapterError, match="is being unloaded"):
        next(model.generate_sync(ids, options))
    with pytest.raises(AdapterError, match="being unloaded"):
        model.load_adapter("A")
    assert leaving.is_alive()
    assert "A_lora" in model.list_adapters()
    gate.open()
    answering.join(30)
    leaving.join(30)
    assert got == expected
    assert "A_lora" not in model.list_adapters()
    # after loading it again, its KV is still cached
    model.load_adapter("A")
    assert model.prefix_match(ids, adapters=["A"]).tokens == len(ids)


def test_unloading_waits_for_a_request_of_the_same_loop_turn(model: LanguageModel) -> None:
    ids = some_ids(3, 9)

    async def turn() -> Float32:
        asked = asyncio.ensure_future(model.next_token_logprobs(ids, adapters=["A"]))
        await asyncio.sleep(0)  # the request exists, and is sent at the end of this turn
        model.unload_adapter("A")
        return await asked

    got = asyncio.run(turn())
    model.load_adapter("A")
    right(model, got, ids, (("A", 1.0),))


def test_the_kv_of_the_same_tokens_is_kept_apart_by_stack(model: LanguageModel) -> None:
    ids = some_ids(4, 30)
    stacks: list[tuple[tuple[str, float], ...]] = [(), (("A", 1.0),), (("A", 0.5),), (("B", 1.0),), (("A", 1.0), ("B", 1.0))]
    stacks.append((("B", 1.0), ("A", 1.0)))
    answers = [model.next_token_logprobs_sync(ids, adapters=stack) for stack in stacks]
    for stack, got in zip(stacks, answers, strict=True):
        right(model, got, ids, stack)
    assert len({got.tobytes() for got in answers[:5]}) == 5
    # and each stays cached while others are in force
    computed = model.metrics().tokens_computed
    for stack, got in zip(stacks, answers, strict=True):
        assert model.prefix_match(ids, adapters=stack).tokens == len(ids)
        np.testing.assert_array_equal(model.next_token_logprobs_sync(ids, adapters=stack), got)
    assert model.metrics().tokens_computed == computed
    # a miss is reported as held for another stack
    other = some_ids(5, 12)
    model.cache_kv(other)
    model.next_token_logprobs_sync(other, adapters=["A"])
    assert settled(model)[1].last_cause == "other"


def test_random_requests_under_random_stacks_equal_uncached_ones(model: LanguageModel) -> None:
    rng = np.random.default_rng(6)
    names = [name for name in ("A", "B", "act") if name in {a.name for a in model.info.adapters}]
    texts = [some_ids(seed, 24) for seed in range(3)]
    texts.append([*texts[0][:12], *INVOCATION, *texts[1][:9]])  # with the invocation of the activated adapter

    async def storm() -> None:
        async def one() -> None:
            text = texts[rng.integers(len(texts))][: int(rng.integers(1, 24))]
            stack = tuple((str(n), float(rng.integers(1, 4)) / 2) for n in rng.permutation(names)[: rng.integers(0, 3)])
            got = await model.next_token_logprobs(text, adapters=stack)
            expected = await model.next_token_logprobs_uncached_async(text, adapters=stack)
            np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)

        for _ in range(8):
            await asyncio.gather(*(one() for _ in range(6)))

    asyncio.run(storm())


def test_speculation_is_verified_under_the_answers_own_stack(model: LanguageModel) -> None:
    ids = [7, 8, 9, 7, 8, 9, 7, 8]
    plain = replace(GREEDY, max_tokens=40, adapters=("A", ("B", 0.5)))
    if "recurrent" in model.info.attention_kinds:  # recurrent state cannot be truncated: refused under any stack
        with pytest.raises(UnsupportedFeatureError, match="recurrent state"):
            next(model.generate_sync(ids, replace(plain, speculative=SpeculativeOptions())))
        return
    expected = [record.token_id for record in model.generate_sync(ids, plain)]
    model.clear_cache()
    guessing = replace(plain, speculative=SpeculativeOptions())
    assert [record.token_id for record in model.generate_sync(ids, guessing)] == expected
    assert model.metrics().tokens_drafted > 0


def test_load_options_push_adapters_in_order(toys: dict[str, Path]) -> None:
    pairs = (str(toys["A"]), (str(toys["B"]), 0.5))
    with load("anything", backend="fake", adapters=pairs) as model:
        assert model.lora_stack == (("A", 1.0), ("B", 0.5))
        assert model.list_adapters() == ["A_lora", "B_lora"]
        assert all(adapter.bytes > 0 for adapter in model.info.adapters)
        right(model, model.next_token_logprobs_sync([1, 2, 3]), [1, 2, 3], model.lora_stack)
        assert model.pop_lora() == ("B", 0.5)
        right(model, model.next_token_logprobs_sync([1, 2, 3]), [1, 2, 3], (("A", 1.0),))
        model.close()
        with pytest.raises(SessionClosedError, match="closed"):
            model.add_adapter(toys["act"])


def test_an_adapter_on_the_shelf_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path))
    toy_adapter(tmp_path / "org--mine@v1", 9)
    with fake_model() as model:
        assert model.add_adapter("org/mine", "mine") == "mine"
        model.push_lora("org/mine@v1")
        assert model.lora_stack == (("org/mine@v1", 1.0),)
        # the same weights under two names: unloading one keeps the other
        model.load_adapter("mine")
        right(model, model.next_token_logprobs_sync([1, 2]), [1, 2], (("mine", 1.0),))
        model.unload_adapter("mine")
        right(model, model.next_token_logprobs_sync([3, 2]), [3, 2], model.lora_stack)


def test_every_kind_of_request_accepts_its_own_adapters(model: LanguageModel) -> None:
    ids, texts, beams = some_ids(8, 12), ["one text", "another"], BeamOptions(width=3, max_tokens=6, ignore_eos=True)

    async def all_of(adapters: Adapters) -> list[object]:
        vectors = await model.embed(texts, adapters=adapters)
        np.testing.assert_array_equal(model.embed_sync(texts, adapters=adapters), vectors)
        found = await model.beam_generate(ids, beams, adapters=adapters)
        return [vectors.tolist(), [one.ids for one in found], await model.batch_sample([ids], 8, [], 1.0, 5, adapters=adapters)]

    # given the answers under each stack in force
    stacks: list[tuple[tuple[str, float], ...]] = [(), (("A", 1.0),), (("B", 0.5), ("A", 1.0))]
    expected = []
    for stack in stacks:
        for name, scale in stack:
            model.push_lora(name, scale)
        expected.append(asyncio.run(all_of(None)))
        model.clear_loras()
    assert expected[0] != expected[1] != expected[2] != expected[0]
    # then a request that names the stack gets the same, whatever is in force
    model.push_lora("B")
    for stack, before in zip(stacks, expected, strict=True):
        assert asyncio.run(all_of(stack)) == before
    # and KV is cached for the named stack
    other = some_ids(9, 15)
    model.cache_kv(other, adapters=["A"])
    assert model.prefix_match(other, adapters=["A"]).tokens == 15
    assert model.prefix_match(other).tokens == 0
