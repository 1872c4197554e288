"""MLX's process-wide memory limits, set once at load and put back at unload. Linux ignores them harmlessly."""

from __future__ import annotations

import mlx.core as mx

SLACK = 256 << 20  # bytes beside weights and KV: activations, masks
CACHE = 256 << 20  # bytes of freed buffers that MLX may keep for reuse; without a limit it keeps them all


class DeviceLimits:
    """The limits in force while a model is loaded."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def apply(self, weights: int, kv_budget: int) -> None:
        """Keeps weights, budget and slack resident, at most what the device recommends; all in bytes."""
        wanted = weights + kv_budget + SLACK
        recommended = int(mx.device_info().get("max_recommended_working_set_size", 0)) or wanted
        wired = min(wanted, recommended)
        self.reset()
        self._before = (mx.set_wired_limit(wired), mx.set_cache_limit(CACHE), mx.set_memory_limit(max(wanted, recommended)))

    def reset(self) -> None:
        """Puts the limits back that stood before `apply`."""
        if self._before is not None:
            wired, cache, memory = self._before
            mx.set_wired_limit(wired)
            mx.set_cache_limit(cache)
            mx.set_memory_limit(memory)
            self._before = None
