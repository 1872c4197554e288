"""The engine is killed in the middle of `save_blocks`: what the next one finds is right, and the rest is computed again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from runtime import EngineDiedError, load, spawn
from tests.fakes import some_ids
from tests.runtime.process.test_blocks import blocks

ROUNDS, TOKENS = 12, 2000


@pytest.mark.slow
def test_an_engine_killed_while_it_saves_spoils_nothing(tmp_path: Path) -> None:
    rng, killed, found = random.Random(7), 0, list[int]()

    async def play(number: int) -> None:
        nonlocal killed
        ids = some_ids(number, TOKENS)
        with load("anything", "fake") as plain:
            fresh = plain.next_token_logprobs_sync([*ids, 1])
        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "b.db")) as model:
            await model.cache_kv_async(ids)
            saving = asyncio.ensure_future(model.save_blocks_async(ids))
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            killed += not saving.done()
            os.kill(model.pid, signal.SIGKILL)
            await asyncio.gather(saving, return_exceptions=True)
            with pytest.raises(EngineDiedError):
                await model.next_token_logprobs(ids)
        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "b.db")) as model:
            np.testing.assert_allclose(await model.next_token_logprobs([*ids, 1]), fresh, atol=1e-5, rtol=0)
            found.append(model.metrics().tokens_restored)
            assert found[-1] + model.metrics().tokens_computed == TOKENS + 1
            assert model.info.warnings == ()
            assert (await model.save_blocks_async(ids)).tokens == TOKENS

    for number in range(ROUNDS):
        asyncio.run(play(number))
    assert killed > ROUNDS // 3, f"killed in the middle of {killed} of {ROUNDS} saves, found {found}"
