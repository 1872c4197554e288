"""Load progress: tensor by tensor, in process and in an engine process, with and without weights on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from safetensors import safe_open
from transformers.utils import logging

from runtime import LoadProgress, load, spawn
from runtime.loading import progress
from tests.tiny_models import tiny_path

CHECKING = LoadProgress(0, 0, "checking")
WAYS: list[tuple[str, dict[str, Any]]] = [("hf", {}), ("hf", {"offload": "disk", "offload_memory_bytes": 1}), ("mlx", {})]


@pytest.mark.parametrize(("backend", "options"), WAYS, ids=["hf", "hf, disk", "mlx"])
def test_a_load_reports_the_number_of_loaded_tensors(
    backend: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    said: list[LoadProgress] = []
    with load(tiny_path("llama"), backend, on_progress=said.append, **options) as model:
        told = list(said)
        model.next_token_logprobs_sync([1, 2, 3])
    with safe_open(tiny_path("llama") / "model.safetensors", "np") as file:
        total = len(file.keys())
    assert told == [*(LoadProgress(done, total) for done in range(total + 1)), CHECKING]
    assert said == told  # no report comes after the load
    # and the progress bars of transformers are restored
    assert logging.set_tqdm_hook(None) is None


def test_the_import_of_a_gguf_file_is_reported_as_a_stage(shelf: Path, gguf: Path) -> None:
    said: list[LoadProgress] = []
    load(gguf, "hf", on_progress=said.append).close()
    stages = [progress.stage for progress in said]
    assert list(dict.fromkeys(stages)) == ["importing", "reading", "checking"]


def test_reported_tensors_have_been_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    reads: list[int] = []  # the number of tensors that mlx has evaluated, at each report
    evaluated = 0
    evaluate = mx.eval

    def counted(*arrays: Any) -> None:
        nonlocal evaluated
        evaluate(*arrays)
        evaluated += sum(isinstance(array, mx.array) for array in arrays)

    monkeypatch.setattr(mx, "eval", counted)
    said: list[LoadProgress] = []

    def hear(progress: LoadProgress) -> None:
        said.append(progress)
        reads.append(evaluated)

    load(tiny_path("llama"), "mlx", on_progress=hear).close()
    assert [progress.done for progress in said[:-1]] == reads[:-1]
    assert said[-1] == CHECKING


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_an_error_in_the_progress_callback_aborts_the_load(backend: str) -> None:
    class GivenUp(Exception):
        pass

    def give_up(progress: LoadProgress) -> None:
        raise GivenUp

    with pytest.raises(GivenUp):
        load(tiny_path("llama"), backend, on_progress=give_up)
    load(tiny_path("llama"), backend).close()  # a later load works


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_an_engine_process_reports_load_progress(backend: str) -> None:
    async def scenario() -> None:
        said: list[LoadProgress] = []
        async with await spawn(tiny_path("llama"), backend, on_progress=said.append):
            told = list(said)
        assert told[-1] == CHECKING
        assert told[0].done == 0 < told[0].total == told[-2].total
        assert [progress.done for progress in told[:-1]] == sorted(progress.done for progress in told[:-1])
        await asyncio.sleep(0)
        assert said == told

    asyncio.run(scenario())


def test_progress_without_a_listener_or_a_length_is_allowed() -> None:
    assert list(progress.reporting_progress([1, 2])) == [1, 2]
    said: list[LoadProgress] = []
    with progress.progress_listener(said.append):
        assert list(progress.reporting_progress([])) == []
        assert list(progress.reporting_progress(iter([1]))) == [1]  # the length is unknown
    assert said == [LoadProgress(0, 0)]
