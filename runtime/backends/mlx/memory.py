"""MLX's process-wide memory limits, set once at load and put back at unload. Linux ignores them harmlessly.

Metal ends the process when it runs out of memory, and no `except` sees it. So the limits are in force before the first
weight is read, and all of them come from the same three numbers: weights, KV budget, slack.
"""

from __future__ import annotations

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


class DeviceLimits:
    """The limits in force while a model is loaded. Owner thread."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None
        self._wired = 0

    def apply(self, weights: int, kv_budget: int) -> None:
        """Keeps weights, budget and slack resident, at most what the device recommends; all in bytes.

        Called again with the same numbers it does nothing; with another budget it moves the limits.
        """
        wanted = weights + kv_budget + SLACK
        recommended = recommended_bytes() or wanted
        wired, most = min(wanted, recommended), max(wanted, recommended)
        if self._before is None:
            self._before = (mx.set_wired_limit(wired), mx.set_cache_limit(CACHE), mx.set_memory_limit(most))
        elif wired != self._wired:
            mx.set_wired_limit(wired)
            mx.set_memory_limit(most)
        self._wired = wired

    def reset(self) -> None:
        """Puts the limits back that stood before `apply`."""
        if self._before is not None:
            wired, cache, memory = self._before
            mx.set_wired_limit(wired)
            mx.set_cache_limit(cache)
            mx.set_memory_limit(memory)
            self._before = None
