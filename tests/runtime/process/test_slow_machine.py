"""A machine where one forward exceeds the step limit: progress through the layers distinguishes slow from hung."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from runtime import EngineDiedError, EngineLimits, spawn
from runtime.backends.registry import register_backend, unregister_backend
from tests.runtime.process.slow_layers import LAYER_SECONDS
from tests.tiny_models import tiny_folder, tiny_path

PROMPT = list(range(1, 40))


@pytest.fixture
def slow() -> Iterator[None]:
    register_backend("slow", "tests.runtime.process.slow_layers:load")
    register_backend("hung", "tests.runtime.process.slow_layers:load_hung")
    yield
    unregister_backend("slow")
    unregister_backend("hung")


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_a_step_over_its_limit_is_not_ended_while_its_layers_advance() -> None:
    # given a model whose forward takes longer than the step limit
    layers = tiny_folder("llama").config["num_hidden_layers"]
    limits = EngineLimits(step_seconds=2 * LAYER_SECONDS, silence_seconds=60, beat_seconds=0.05)
    assert layers * LAYER_SECONDS > limits.step_seconds

    async def main() -> None:
        async with await spawn(tiny_path("llama"), "slow", limits=limits) as client:
            assert np.isfinite(await client.next_token_logprobs(PROMPT)).all()
            assert len(await client.sample(PROMPT, 2, [], temperature=0.0)) == 2

    asyncio.run(main())


@pytest.mark.slow  # test_death covers this with a fake model
@pytest.mark.usefixtures("slow")
def test_a_step_whose_layers_do_not_advance_is_ended() -> None:
    limits = EngineLimits(step_seconds=2 * LAYER_SECONDS, silence_seconds=60, beat_seconds=0.05)

    async def main() -> None:
        async with await spawn(tiny_path("llama"), "hung", limits=limits) as client:
            with pytest.raises(EngineDiedError, match="step 1 took more than 1 s"):
                await client.next_token_logprobs(PROMPT)

    asyncio.run(main())
