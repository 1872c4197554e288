"""Which engines of this machine could run a model, and what it would take on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime import Fit, available_backends, default_backend, estimate_fit


def fits(config: Mapping[str, Any], weights: int, dtype: str, backends: tuple[str, ...], context: int | None) -> list[Fit]:
    """For every engine that is here and can run it, the one that would be chosen first.

    Args:
        config: ``config.json``.
        weights: Bytes on disk.
        dtype: Of most of them; empty where only the config says.
        backends: That can run it.
        context: Tokens; None for a usual number.
    """
    here = [name for name in backends if available_backends().get(name) is True]
    here.sort(key=lambda name: name != default_backend())
    return [estimate_fit(config, weights, dtype=dtype, backend=name, context=context) for name in here]
