"""MLX's process-wide memory limits, set at load and restored at unload. They have no effect on Linux.

Metal ends the process when it runs out of memory, and no `except` sees it. So the limits are in force before the first
weight is read. All of them are derived from three numbers of each model: weights, KV budget, slack.
"""

from __future__ import annotations

import threading

import mlx.core as mx
import psutil

SLACK = 256 << 20  # bytes for activations and masks
CACHE = 256 << 20  # bytes of freed buffers that MLX may cache; without a limit it caches all of them


def free_beside(weights: int) -> int:
    """Bytes that will be free for KV once `weights` more bytes are loaded; never negative."""
    available = int(psutil.virtual_memory().available)
    recommended = recommended_bytes()
    if recommended:
        available = min(available, recommended - int(mx.get_active_memory()))
    return max(available - weights, 0)


def recommended_bytes() -> int:
    """The device's recommended limit of resident memory in bytes; 0 without one (only Metal has it)."""
    return int(mx.device_info().get("max_recommended_working_set_size", 0))


class Process:
    """The limits of this process, shared by its loaded models. Any thread: each model has an owner thread.

    The models' bytes add up: all have weights, KV and the slack of a forward at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[DeviceLimits, int] = {}  # bytes
        self._before: tuple[int, int, int] | None = None  # the limits before the first model
        self._in_force = (0, 0)

    def put(self, model: DeviceLimits, wanted: int) -> None:
        """Sets the bytes that a model keeps resident."""
        with self._lock:
            self._wanted[model] = wanted
            self._set_limits()

    def drop(self, model: DeviceLimits) -> None:
        """Removes a model; with the last one, restores the limits from before the first."""
        with self._lock:
            if self._wanted.pop(model, None) is not None:
                self._set_limits()

    def _set_limits(self) -> None:
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


process = Process()


class DeviceLimits:
    """One model's part of the limits, from before its weights are read until it is unloaded."""

    def apply(self, weights: int, kv_budget: int) -> None:
        """Keeps weights, budget and slack (bytes) resident beside those of other models, within the device's recommendation.

        A second call with the same numbers does nothing; with another budget it changes the limits.
        """
        process.put(self, weights + kv_budget + SLACK)

    def reset(self) -> None:
        """Removes the model's part; with the last model, restores the limits from before the first."""
        process.drop(self)
