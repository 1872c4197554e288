"""Different prompts in one batch: each answer is the same as alone, whatever happens to the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runtime import SamplingOptions
from runtime.backends.fake import Behaviour
from tests.fakes import KINDS, fake_model, settled, some_ids
from tests.runtime.scheduler.test_branches import OPTIONS, PREFIX, Said, alone


@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_prompts_of_a_batch_are_the_same_as_alone(kind: str) -> None:
    prompts: list[str | list[int]] = [some_ids(5, 12), "hello", some_ids(6, 3), PREFIX, "x"]
    each = [replace(OPTIONS, seed=i, max_tokens=3 + i, stop=("q",)) for i in range(5)]
    with fake_model(Behaviour(recurrent=kind == "recurrent")) as model:

        async def main() -> Said:
            said: Said = {}
            async for i, record in model.generate_many(prompts, each):
                said.setdefault(i, []).append(record.token_id)
            return said

        said = asyncio.run(main())
        steps = settled(model)[0].forward_calls
        for i, (prompt, options) in enumerate(zip(prompts, each, strict=True)):
            ids = model.tokenize(prompt) if isinstance(prompt, str) else prompt
            assert said[i] == alone(model, ids, options)
        if kind == "attention":  # a recurrent model's prompts are separate chains
            assert steps <= 3 + max(len(ids) for ids in said.values())  # short unrelated prompts share a forward


def test_more_prompts_than_batch_rows_take_turns() -> None:
    prompts = [some_ids(i, 5) for i in range(23)]
    with fake_model(max_batch_rows=4) as model:
        most = 0

        async def main() -> Said:
            said: Said = {}
            nonlocal most
            async for i, record in model.generate_many(prompts, OPTIONS):
                said.setdefault(i, []).append(record.token_id)
                most = max(most, sum(len(ids) < (OPTIONS.max_tokens or 0) for ids in said.values()))
            return said

        said = asyncio.run(main())
        assert sorted(said) == list(range(23))
        assert most <= 4
        assert said[22] == alone(model, prompts[22], OPTIONS)


def test_a_failing_prompt_does_not_affect_the_others() -> None:
    prompts = [some_ids(5, 12), [9, 9, 200], some_ids(6, 3)]
    with fake_model(Behaviour(raise_on={200: RuntimeError("device lost")})) as model:
        said: Said = {}

        async def main() -> None:
            async for i, record in model.generate_many(prompts, replace(OPTIONS, sampling=SamplingOptions(top_k=1))):
                said.setdefault(i, []).append(record.token_id)

        with pytest.raises(RuntimeError, match="device lost") as failed:
            asyncio.run(main())
        assert failed.value.__notes__ == ["prompts 1 ended by RuntimeError: device lost"]
        assert {i: len(ids) for i, ids in said.items()} == {0: 8, 2: 8}
