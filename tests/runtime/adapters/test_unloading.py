"""Unloading waits for whoever uses an adapter: a search, embeddings, the rest of a batch."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from runtime import BeamOptions, Hypothesis, LanguageModel
from runtime.records import Float32
from tests.fakes import Gate, some_ids
from tests.runtime.adapters.toys import GREEDY, wait_until_it_leaves


def while_leaving(model: LanguageModel, name: str, gate: Gate) -> threading.Thread:
    """Unloads from another thread; returns when nothing new may use the adapter, and opens the gate then."""
    leaving = threading.Thread(target=model.unload_adapter, args=(name,))
    leaving.start()
    wait_until_it_leaves(model, leaving)
    gate.open()
    return leaving


@pytest.mark.slow
def test_unloading_waits_for_a_beam_search(model: LanguageModel, gate: Gate) -> None:
    ids, options = some_ids(7, 10), BeamOptions(width=3, max_tokens=200, ignore_eos=True)

    async def search() -> list[Hypothesis]:
        return await model.beam_generate(ids, options)

    model.push_lora("A")
    expected = asyncio.run(search())
    model.clear_loras()
    model.push_lora("A")
    got: list[Hypothesis] = []

    async def held() -> None:
        gate.shut(after=5)
        task = asyncio.create_task(search())
        assert await asyncio.to_thread(gate.reached.wait, 30)
        leaving.append(await asyncio.to_thread(while_leaving, model, "A", gate))
        got.extend(await task)

    leaving: list[threading.Thread] = []
    asyncio.run(held())
    leaving[0].join(30)
    assert [one.ids for one in got] == [one.ids for one in expected]
    assert model.list_adapters().count("A_lora") == 0


def test_unloading_waits_for_embeddings(model: LanguageModel, gate: Gate) -> None:
    texts = [f"number {i}" * 3 for i in range(80)]
    model.push_lora("A")
    expected = model.embed_sync(texts)
    gate.shut()
    got: list[Float32] = []
    embedding = threading.Thread(target=lambda: got.append(model.embed_sync(texts)))
    embedding.start()
    assert gate.reached.wait(30)
    leaving = while_leaving(model, "A", gate)
    embedding.join(30)
    leaving.join(30)
    np.testing.assert_array_equal(got[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("blocking", [False, True])
def test_unloading_waits_for_the_rest_of_a_batch(model: LanguageModel, *, blocking: bool) -> None:
    # given more prompts than run at a time
    prompts = [some_ids(seed, 6) for seed in range(70)]
    options = replace(GREEDY, max_tokens=3, adapters=("A",))

    async def all_of(unload: bool) -> dict[int, list[int]]:
        said: dict[int, list[int]] = {}
        leaving: asyncio.Future[None] | None = None
        async for i, record in model.generate_many(prompts, options):
            said.setdefault(i, []).append(record.token_id)
            if unload and leaving is None:  # when the adapter is unloaded after the first token of one
                leaving = asyncio.ensure_future(asyncio.sleep(0) if blocking else model.unload_adapter_async("A"))
                if blocking:
                    model.unload_adapter("A")
        if leaving is not None:
            await leaving
        return said

    expected = asyncio.run(all_of(unload=False))
    model.clear_cache()
    # then every prompt is answered under it, and it has gone
    assert asyncio.run(all_of(unload=True)) == expected
    assert len(expected) == 70
    assert "A_lora" not in model.list_adapters()


def test_a_batch_that_is_given_up_lets_go(model: LanguageModel) -> None:
    async def left() -> None:
        prompts = [some_ids(seed, 6) for seed in range(70)]
        async with aclosing(model.generate_many(prompts, replace(GREEDY, adapters=("A",)))) as records:
            async for _ in records:
                leaving = asyncio.ensure_future(model.unload_adapter_async("A"))
                await asyncio.sleep(0)
                break
        await asyncio.wait_for(leaving, 30)

    asyncio.run(left())
    assert "A_lora" not in model.list_adapters()
