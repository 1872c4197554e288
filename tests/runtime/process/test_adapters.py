"""Adapters of a model in an engine process: the same members and errors as in process, and the stack in `info`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import AdapterError, BeamOptions, LanguageModel, load, spawn
from runtime.adapters.uses import Adapters
from tests.runtime.adapters.toys import GREEDY, toy_adapter


def stack_of(model: LanguageModel) -> list[tuple[str, float]]:
    return list(model.lora_stack)


@pytest.mark.slow
def test_adapter_members_over_the_pipe_answer_as_in_process(tmp_path: Path) -> None:
    folders = {name: toy_adapter(tmp_path / name, seed) for seed, name in enumerate(("A", "B"))}
    act = toy_adapter(tmp_path / "act", 5, invocation=[44, 7])
    ids = [1, 2, 3, 44, 7, 5]
    beams = BeamOptions(3, 6, ignore_eos=True)

    async def play() -> None:
        async with await spawn("anything", backend="fake", adapters=[(str(folders["A"]), 0.5)]) as far:
            with load("anything", backend="fake") as near:
                near.push_lora(str(folders["A"]), 0.5)
                assert stack_of(far) == stack_of(near) == [("A", 0.5)]
                assert far.base_model_name == near.base_model_name
                for model in (far, near):
                    assert await model.add_adapter_async(folders["B"]) == "B"
                    await model.load_adapter_async("B")
                    await model.push_lora_async("B")
                    await model.push_lora_async(str(act), -1.0)
                    assert await model.list_adapters_async() == ["A_lora", "B_lora", "act_alora"]
                    assert model.info.adapters[1].bytes > 0
                assert far.info.adapters == near.info.adapters
                stacks: list[Adapters] = [None, (), ["A"], [("B", 2.0), "A"]]
                for stack in stacks:
                    np.testing.assert_array_equal(
                        await far.next_token_logprobs(ids, adapters=stack), near.next_token_logprobs_sync(ids, adapters=stack)
                    )
                    got = await far.score_run(ids, adapters=stack)
                    np.testing.assert_array_equal(got.logprob, (await near.score_run(ids, adapters=stack)).logprob)
                    assert await far.prefix_match_async(ids, adapters=stack) == near.prefix_match(ids, adapters=stack)
                    rows = await far.batch_next_token_logprobs([ids, ids[:2]], adapters=stack)
                    np.testing.assert_array_equal(rows[0], near.next_token_logprobs_sync(ids, adapters=stack))
                    uncached = await far.next_token_logprobs_uncached_async(ids, adapters=stack)
                    np.testing.assert_allclose(uncached, rows[0], atol=1e-5, rtol=0)
                    vectors = await far.embed(["one", "two"], adapters=stack)
                    np.testing.assert_array_equal(vectors, near.embed_sync(["one", "two"], adapters=stack))
                    found = await far.beam_generate(ids, beams, adapters=stack)
                    assert found[0].ids == (await near.beam_generate(ids, beams, adapters=stack))[0].ids
                    said = await far.batch_sample([ids, ids[:4]], 6, [], seed=3, adapters=stack)
                    assert said[0] == await near.sample(ids, 6, [], seed=3, adapters=stack)
                    await far.cache_kv_async([9, *ids], adapters=stack)
                    assert (await far.prefix_match_async([9, *ids], adapters=stack)).tokens == 7
                with pytest.raises(AdapterError, match="no adapter is called 'b'"):
                    await far.embed(["one"], adapters=["b"])
                options = replace(GREEDY, adapters=("B",))
                far_ids = [record.token_id async for record in far.generate(ids, options)]
                assert far_ids == [record.token_id for record in near.generate_sync(ids, options)]
                assert await far.pop_lora_async() == ("act", -1.0)
                assert stack_of(far) == [("A", 0.5), ("B", 1.0)]
                await far.unload_adapter_async("B")
                assert stack_of(far) == [("A", 0.5)]
                await far.clear_loras_async()
                assert stack_of(far) == []
                with pytest.raises(AdapterError, match="B_lora is not loaded"):
                    await far.next_token_logprobs(ids, adapters=["B"])
                with pytest.raises(AdapterError, match="did you mean 'act"):
                    await far.load_adapter_async("ac")
                with pytest.raises(AdapterError, match="finite number"):
                    await far.push_lora_async("A", float("nan"))
                with pytest.raises(AdapterError, match="no such folder"):
                    await far.add_adapter_async(tmp_path / "nowhere")
                with pytest.raises(AdapterError, match="name is a text"):
                    await far.load_adapter_async(3)  # type: ignore[arg-type]  # on purpose

    asyncio.run(play())


@pytest.mark.slow
def test_the_blocking_adapter_members_work_over_the_pipe(tmp_path: Path) -> None:
    folder = toy_adapter(tmp_path / "A", 1)
    far = asyncio.run(spawn("anything", backend="fake"))
    with far:
        assert far.add_adapter(folder, "mine") == "mine"
        far.load_adapter("mine")
        far.push_lora("mine", 2)
        assert far.lora_stack == (("mine", 2.0),)
        assert far.list_adapters() == ["mine_lora"]
        stacked = far.next_token_logprobs_sync([1, 2])
        assert far.pop_lora() == ("mine", 2.0)
        np.testing.assert_array_equal(far.next_token_logprobs_sync([1, 2], adapters=[("mine", 2.0)]), stacked)
        far.clear_loras()
        far.unload_adapter("mine")
        assert far.list_adapters() == []
