"""Device memory settings: MLX's limits, set once at load and restored, and freed memory returned above a threshold.

Linux ignores the limits, so spies record them; the numbers and their order are those that Metal would get.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import psutil
import pytest
import torch

from runtime import load
from runtime.backends.hf import backend as hf
from runtime.backends.mlx import backend as mlx
from runtime.backends.mlx import memory
from runtime.backends.mlx.memory import DeviceLimits
from runtime.backends.packs import packed
from runtime.errors import ModelLoadError
from runtime.options.load import LoadOptions
from tests.fakes import engine_of
from tests.tiny_models import tiny_folder, tiny_path

GIB = 1 << 30
SETTERS = ("set_wired_limit", "set_cache_limit", "set_memory_limit")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The limits set on a device of 8 GiB, in order, in a process without other models; the old values are 1, 2 and 3."""
    monkeypatch.setattr(memory, "process", memory.Process())
    calls: list[tuple[str, int]] = []

    def spy(name: str, before: int) -> None:
        def watched(limit: int) -> int:
            calls.append((name, limit))
            return before

        monkeypatch.setattr(mx, name, watched)

    for at, name in enumerate(SETTERS):
        spy(name, at + 1)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 8 * GIB})
    return calls


BACK = [("set_wired_limit", 1), ("set_cache_limit", 2), ("set_memory_limit", 3)]


def limits(wired: int, most: int = 8 * GIB) -> list[tuple[str, int]]:
    return [("set_wired_limit", wired), ("set_cache_limit", memory.CACHE), ("set_memory_limit", most)]


def test_limits_follow_weights_and_budget_and_are_restored(told: list[tuple[str, int]]) -> None:
    made = DeviceLimits()
    made.apply(weights=GIB, kv_budget=2 * GIB)
    made.apply(weights=GIB, kv_budget=2 * GIB)  # the same numbers again: nothing is set
    assert told == limits(3 * GIB + memory.SLACK)
    # when the budget changes, the limits change too, and the original values are remembered
    told.clear()
    made.apply(weights=GIB, kv_budget=3 * GIB)
    assert told == [("set_wired_limit", 4 * GIB + memory.SLACK), ("set_memory_limit", 8 * GIB)]
    told.clear()
    made.reset()
    made.reset()
    assert told == BACK


def test_the_wired_limit_never_exceeds_the_recommended_size(told: list[tuple[str, int]]) -> None:
    DeviceLimits().apply(weights=6 * GIB, kv_budget=4 * GIB)
    assert told == limits(8 * GIB, 10 * GIB + memory.SLACK)


@pytest.mark.parametrize("first_leaves", [True, False])
def test_two_models_share_the_limits_whichever_is_unloaded_first(told: list[tuple[str, int]], first_leaves: bool) -> None:
    # given one model, when a second one is loaded, then the limits cover both
    first, second = DeviceLimits(), DeviceLimits()
    first.apply(weights=GIB, kv_budget=GIB)
    told.clear()
    second.apply(weights=2 * GIB, kv_budget=GIB)
    assert told == [("set_wired_limit", 5 * GIB + 2 * memory.SLACK), ("set_memory_limit", 8 * GIB)]
    # and a change of one budget changes the common limits
    told.clear()
    first.apply(weights=GIB, kv_budget=5 * GIB)
    assert told == [("set_wired_limit", 8 * GIB), ("set_memory_limit", 9 * GIB + 2 * memory.SLACK)]
    first.apply(weights=GIB, kv_budget=GIB)
    # when one is unloaded, then the limits are those of the other
    told.clear()
    going, staying, left = (first, second, 3 * GIB) if first_leaves else (second, first, 2 * GIB)
    going.reset()
    assert told == [("set_wired_limit", left + memory.SLACK), ("set_memory_limit", 8 * GIB)]
    # and after the last the original limits are restored
    told.clear()
    staying.reset()
    assert told == BACK
    # and a later model starts from the original limits
    told.clear()
    second.apply(weights=GIB, kv_budget=GIB)
    second.reset()
    assert told == [*limits(2 * GIB + memory.SLACK), *BACK]


@pytest.mark.slow
@pytest.mark.parametrize("first_leaves", [True, False])
def test_two_loaded_models_share_the_limits(told: list[tuple[str, int]], first_leaves: bool) -> None:
    first = load(tiny_path("llama"), backend="mlx", kv_cache_bytes=GIB)
    weights = 4 * first.info.parameters
    second = load(tiny_path("llama"), backend="mlx", kv_cache_bytes=2 * GIB)
    assert told[3:] == [("set_wired_limit", 2 * weights + 3 * GIB + 2 * memory.SLACK), ("set_memory_limit", 8 * GIB)]
    told.clear()
    with second if first_leaves else first:
        (first if first_leaves else second).close()
        left = weights + (2 if first_leaves else 1) * GIB
        assert told == [("set_wired_limit", left + memory.SLACK), ("set_memory_limit", 8 * GIB)]
        told.clear()
    assert told == BACK


def test_a_draft_model_adds_only_its_weights_to_the_limits(told: list[tuple[str, int]]) -> None:
    # given a model and its draft model, whose KV counts against the model's budget
    with load(tiny_path("llama"), backend="mlx", kv_cache_bytes=GIB, draft_model=str(tiny_path("llama"))) as model:
        weights = 4 * model.info.parameters
        assert told[-2:] == [("set_wired_limit", 2 * weights + GIB + 2 * memory.SLACK), ("set_memory_limit", 8 * GIB)]
        told.clear()
    assert told[-3:] == BACK


def test_a_load_sets_the_limits_once_before_the_weights_are_read(
    told: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[int] = []
    sound = mx.eval

    def watched(*args: Any) -> None:
        evaluated.append(len(told))
        sound(*args)

    monkeypatch.setattr(mx, "eval", watched)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB, total=64 * GIB))
    with load(tiny_path("llama"), backend="mlx") as model:
        # then the limits use the cache's budget: a quarter of the recommended size without the weights
        weights, budget = 4 * model.info.parameters, engine_of(model).scheduler.cache.kv_budget.budget
        assert told == limits(weights + budget + memory.SLACK)
        assert evaluated[0] == 3
        assert budget == pytest.approx((8 * GIB - mx.get_active_memory()) / 4, rel=0.01)
        # when the budget changes while the model is loaded, the limits change
        told.clear()
        model.set_kv_budget(3 * GIB)
        assert told == [("set_wired_limit", weights + 3 * GIB + memory.SLACK), ("set_memory_limit", 8 * GIB)]
        told.clear()
    assert told == BACK


def test_a_failed_load_restores_the_limits(told: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise ModelLoadError("numbers that do not agree")

    monkeypatch.setattr(mlx, "prove", failing)
    with pytest.raises(ModelLoadError):
        mlx.load(tiny_folder("llama"), LoadOptions(kv_cache_bytes=GIB))
    assert [name for name, _ in told] == [*SETTERS, *SETTERS]
    assert told[3:] == BACK


def test_freed_memory_is_returned_above_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    # given counted cache clearings, and backends that believe they run on CUDA or MPS
    cleared: list[str] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append("mlx"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: cleared.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: cleared.append("mps"))
    made = {"mlx": mlx.load(tiny_folder("llama"), LoadOptions())}
    for device in ("cuda", "mps"):
        made[device] = hf.load(tiny_folder("llama"), LoadOptions(device="cpu"))  # type: ignore[assignment]  # both are backends
        made[device]._device = torch.device(device)  # type: ignore[attr-defined]  # noqa: SLF001  # hf's own; no GPU is there
    for name, backend in made.items():
        cleared.clear()
        # when KV is freed in small parts, then memory is returned each time the parts add up to the threshold
        part = packed.RETURN_BYTES // 4
        for count in range(1, 9):
            backend.freed(part)
            assert cleared == [name] * (count // 4)
        # and immediately when memory has run out
        backend.reclaim()
        assert cleared == [name] * 3


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_evicted_bytes_are_reported_to_the_backend_once_per_step(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    with load(tiny_path("llama"), backend=backend, threads=1 if backend == "hf" else None) as model:
        monkeypatch.setattr(engine_of(model).backend, "freed", told.append)
        monkeypatch.setattr(packed, "RETURN_BYTES", 1)
        slot = model.info.kv_bytes_per_token
        model.set_kv_budget(200 * slot)
        for first in range(2, 12):
            model.next_token_logprobs_sync([first, *range(40)])
        let_go = engine_of(model).scheduler.cache
        model.prefix_match([1])
        evicted = model.metrics().kv_evicted_bytes
        assert evicted > 100 * slot
        assert sum(told) == evicted + let_go.workspaces.closed_bytes
        assert len(told) <= 24  # at most once per step
        told.clear()
        model.clear_cache()
        assert sum(told) > 0
        assert let_go.kv_budget.bytes == 0
