"""MLX's process-wide memory limits, set once at load and put back at unload. Linux ignores them harmlessly.

Metal ends the process when it runs out of memory, and no `except` sees it. So the limits are in force before the first
weight is read, and all of them come from the same three numbers of every model: weights, KV budget, slack.
"""

from __future__ import annotations

import threading

import mlx.core as mx
import psutil

SLACK = 256 << 20  # bytes beside weights and KV: activations, masks
CACHE = 256 << 20  # bytes of freed buffers that MLX may keep for reuse; without a limit it keeps them all


def free_beside(weights: int) -> int:
    """Bytes that will be free for KV once `weights` more bytes are in place: never negative."""
    available = int(psutil.virtual_memory().available)
    recommended = recommended_bytes()
    if recommended:
        available = min(available, recommended - int(mx.get_active_memory()))
    return max(available - weights, 0)


def recommended_bytes() -> int:
    """What the device recommends to hold at most; 0 where it says nothing (Metal alone does)."""
    return int(mx.device_info().get("max_recommended_working_set_size", 0))


class Process:
    """The limits of this process, which the models that are loaded in it share. Any thread: each model has an owner thread.

    What they keep resident adds up: every one has its weights, its KV and the slack of a forward, at the same moment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[DeviceLimits, int] = {}  # bytes
        self._before: tuple[int, int, int] | None = None  # what stood before the first model
        self._in_force = (0, 0)

    def put(self, model: DeviceLimits, wanted: int) -> None:
        """A model keeps so many bytes resident from now on."""
        with self._lock:
            self._wanted[model] = wanted
            self._tell()

    def drop(self, model: DeviceLimits) -> None:
        """A model is gone; after the last one everything is as it was before the first."""
        with self._lock:
            if self._wanted.pop(model, None) is not None:
                self._tell()

    def _tell(self) -> None:
        if not self._wanted:
            if self._before is not None:
                wired, cache, memory = self._before
                self._before, self._in_force = None, (0, 0)
                mx.set_wired_limit(wired)
                mx.set_cache_limit(cache)
                mx.set_memory_limit(memory)
            return
        total = sum(self._wanted.values())
        recommended = recommended_bytes() or total
        wanted = min(total, recommended), max(total, recommended)
        if wanted == self._in_force:
            return
        wired, most = wanted
        if self._before is None:
            self._before = (mx.set_wired_limit(wired), mx.set_cache_limit(CACHE), mx.set_memory_limit(most))
        else:
            mx.set_wired_limit(wired)
            mx.set_memory_limit(most)
        self._in_force = wanted


_process = Process()


class DeviceLimits:
    """One model's part of the limits, from before its weights are read until it is unloaded."""

    def apply(self, weights: int, kv_budget: int) -> None:
        """Keeps weights, budget and slack resident, beside those of other models; all in bytes.

        All together at most what the device recommends. Called again with the same numbers it does nothing; with another
        budget it moves the limits.
        """
        _process.put(self, weights + kv_budget + SLACK)

    def reset(self) -> None:
        """The model needs nothing any more. With the last one the limits are those that stood before the first."""
        _process.drop(self)
