"""On real backends: a stack that changes during an answer applies to the next answer; the running one keeps its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runtime import LanguageModel
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.fakes import Turnstile, some_ids
from tests.runtime.adapters.conftest import both_backends
from tests.runtime.adapters.makers import Peft
from tests.runtime.adapters.toys import wait_until_it_leaves

IDS = some_ids(31, 14)
GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
WARM = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=1.2), ignore_eos=True, top_k=0, seed=5)
Stack = tuple[tuple[str, float], ...]
BASE: Stack = ()
A: Stack = (("A", 1.0),)
AB: Stack = (("A", 0.7), ("B", 1.3))


def alone(model: LanguageModel, stack: Stack, options: GenerationOptions) -> list[int]:
    return [record.token_id for record in model.generate_sync(IDS, replace(options, adapters=stack))]


@pytest.mark.slow
@both_backends
def test_answers_keep_the_stack_that_they_began_with(llama: LanguageModel, peft: Peft) -> None:
    expected = {stack: alone(llama, stack, GREEDY) for stack in (BASE, A, AB)}
    assert len({tuple(ids) for ids in expected.values()}) == 3
    llama.clear_cache()

    gate = Turnstile()
    gate.stand_before(llama)

    async def one() -> list[int]:
        return [record.token_id async for record in llama.generate(IDS, GREEDY)]  # under the stack in force now

    async def begun() -> asyncio.Task[list[int]]:
        """Begins an answer and stops it before a forward in its middle."""
        gate.shut()
        answer = asyncio.create_task(one())
        for _ in range(5):
            await asyncio.to_thread(gate.wait)
            gate.let_through()
        await asyncio.to_thread(gate.wait)
        return answer

    async def scene() -> list[list[int]]:
        # when one begins under the base, the stack changes in its middle, and so on with others
        answers = [await begun()]
        await llama.push_lora_async("A")
        gate.open()
        answers.append(await begun())
        await llama.clear_loras_async()
        for name, scale in AB:
            await llama.push_lora_async(name, scale)
        gate.open()
        answers.append(await begun())
        assert not answers[-1].done()
        await llama.clear_loras_async()
        gate.open()
        return list(await asyncio.gather(*answers))

    # then each equals the answer alone under the stack that it began with
    assert asyncio.run(scene()) == [expected[BASE], expected[A], expected[AB]]
    # and all of them have peft's numbers
    for stack, ids in expected.items():
        for at in (1, len(ids) - 1):
            row = peft.logprobs([*IDS, *ids[:at]], *stack)[-1]
            assert row[ids[at]] >= row.max() - 1e-3


@pytest.mark.slow
@both_backends
def test_an_answer_finishes_under_an_adapter_that_is_unloaded_meanwhile(llama: LanguageModel) -> None:
    expected = {stack: alone(llama, stack, WARM) for stack in (BASE, A)}
    llama.clear_cache()

    gate = Turnstile()
    gate.stand_before(llama)

    async def under_a() -> list[int]:
        return [record.token_id async for record in llama.generate(IDS, replace(WARM, adapters=A))]

    async def scene() -> tuple[list[int], list[int]]:
        gate.shut()
        answer = asyncio.create_task(under_a())
        for _ in range(4):
            await asyncio.to_thread(gate.wait)
            gate.let_through()
        await asyncio.to_thread(gate.wait)
        # when it is unloaded in the middle
        leaving = asyncio.create_task(llama.unload_adapter_async("A"))
        await asyncio.to_thread(wait_until_it_leaves, llama)
        assert not answer.done()
        assert not leaving.done()
        gate.open()
        got = await answer
        await leaving
        assert "A_lora" not in llama.list_adapters()
        return got, [record.token_id async for record in llama.generate(IDS, WARM)]

    got, base = asyncio.run(scene())
    assert (got, base) == (expected[A], expected[BASE])
    # loaded again, it gives the same answer
    llama.load_adapter("A")
    assert alone(llama, A, WARM) == expected[A]
