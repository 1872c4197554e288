"""Unloading waits for every use of an adapter: a beam search, embeddings, the rest of a batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import BeamOptions, Hypothesis, LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.errors import SessionClosedError
from runtime.records import Float32
from tests.fakes import Gate, Turnstile, some_ids, wait_for_close, wait_for_jobs
from tests.runtime.adapters.toys import GREEDY, wait_until_it_leaves


def while_leaving(model: LanguageModel, name: str, gate: Gate) -> threading.Thread:
    """Unloads from another thread; opens the gate once new requests for the adapter are refused."""
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
    # given more prompts than can run at a time
    prompts = [some_ids(seed, 6) for seed in range(70)]
    options = replace(GREEDY, max_tokens=3, adapters=("A",))

    async def all_of(unload: bool) -> dict[int, list[int]]:
        said: dict[int, list[int]] = {}
        leaving: asyncio.Future[None] | None = None
        async for i, record in model.generate_many(prompts, options):
            said.setdefault(i, []).append(record.token_id)
            if unload and leaving is None:  # when the adapter is unloaded after the first token of one prompt
                leaving = asyncio.ensure_future(asyncio.sleep(0) if blocking else model.unload_adapter_async("A"))
                if blocking:
                    model.unload_adapter("A")
        if leaving is not None:
            await leaving
        return said

    expected = asyncio.run(all_of(unload=False))
    model.clear_cache()
    # then every prompt is answered under it, and it is unloaded
    assert asyncio.run(all_of(unload=True)) == expected
    assert len(expected) == 70
    assert "A_lora" not in model.list_adapters()


def test_an_abandoned_batch_releases_its_adapter(model: LanguageModel) -> None:
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


def begun(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_unloading_one_adapter_while_another_is_loaded_does_not_deadlock(model: LanguageModel) -> None:
    model.unload_adapter("B")
    turnstile = Turnstile()
    turnstile.stand_before(model)
    turnstile.shut()
    options = replace(GREEDY, max_tokens=2, adapters=("A",))
    answering = begun(lambda: list(model.generate_sync(some_ids(3, 9), options)))
    turnstile.wait()
    # given an unloading that waits for the end of an answer
    leaving = begun(lambda: model.unload_adapter("A"))
    wait_for_jobs(model, 1)
    turnstile.let_through()
    turnstile.wait()
    wait_for_jobs(model, 0)
    # when another adapter is loaded, and the answer ends in the step before
    loading = begun(lambda: model.load_adapter("B"))
    wait_for_jobs(model, 1)
    turnstile.open()
    # then both end
    for thread in (answering, leaving, loading):
        thread.join(30)
        assert not thread.is_alive()
    assert {"A_lora", "B_lora"} & {*model.list_adapters()} == {"B_lora"}


def test_unloading_ends_when_the_model_is_closed(toys: dict[str, Path], gate: Gate) -> None:
    closed: list[str] = []

    def unload() -> None:
        with pytest.raises(SessionClosedError):
            model.unload_adapter("A")
        closed.append("A")

    def query() -> None:
        with suppress(SessionClosedError):
            model.next_token_logprobs_sync([1, 2, 3])

    pair = (str(toys["A"]), str(toys["B"]))
    with load((Behaviour(before_forward=gate), None), backend="fake", adapters=pair) as model:
        gate.shut()
        asking = begun(query)
        assert gate.reached.wait(30)
        leaving = begun(unload)
        wait_for_jobs(model, 1)
        # when the model is closed before the unloading was handled
        closing = begun(model.close)
        wait_for_close(model)
        gate.open()
        for thread in (asking, leaving, closing):
            thread.join(30)
            assert not thread.is_alive()
        assert closed == ["A"]
        # and later calls
        with pytest.raises(SessionClosedError):
            model.unload_adapter("B")
