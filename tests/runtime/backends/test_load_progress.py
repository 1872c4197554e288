"""How far a load is: tensor by tensor, here and in an engine process, with and without weights on disk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transformers.utils import logging

from runtime import LoadProgress, load, spawn
from runtime.loading import telling
from tests.tiny_models import tiny_path

OPTIONS: list[dict[str, Any]] = [{}, {"offload": "disk", "offload_memory_bytes": 1}]


@pytest.mark.parametrize("options", OPTIONS, ids=["memory", "disk"])
def test_a_load_says_how_many_tensors_are_in_place(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "TELL_SECONDS", 0.0)
    said: list[LoadProgress] = []
    with load(tiny_path("llama"), "hf", on_progress=said.append, **options) as model:
        told = list(said)
        model.next_token_logprobs_sync([1, 2, 3])
    total = told[0].total
    assert total > 10
    assert told == [LoadProgress(done, total) for done in range(total + 1)]
    assert said == told  # nothing comes when it is loaded
    # and transformers has its own bars back
    assert logging.set_tqdm_hook(None) is None


def test_an_engine_process_says_it_too() -> None:
    async def scenario() -> None:
        said: list[LoadProgress] = []
        async with await spawn(tiny_path("llama"), "hf", on_progress=said.append):
            told = list(said)
        assert told[0].done == 0 < told[0].total == told[-1].total
        assert [progress.done for progress in told] == sorted(progress.done for progress in told)
        await asyncio.sleep(0)
        assert said == told

    asyncio.run(scenario())


def test_nobody_need_listen() -> None:
    assert list(telling.told([1, 2])) == [1, 2]
    said: list[LoadProgress] = []
    with telling.listening(said.append):
        assert list(telling.told([])) == []
        assert list(telling.told(iter([1]))) == [1]  # nobody knows how many there are
    assert said == [LoadProgress(0, 0)]
