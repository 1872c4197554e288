"""The adapters of a request and their scales."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from runtime.errors import AdapterError
from runtime.options.checking import is_number, shown

AdapterUse = str | tuple[str, float]  # an adapter's name, or (name, scale); a bare name has scale 1
Adapters = Sequence[AdapterUse] | None  # of a request, in order; (): the base alone, None: the model's stack
# (SHA-256 of an adapter's numbers, scale, ids that activate it), in order; without ids it applies from the first token on
Uses = tuple[tuple[str, float, tuple[int, ...]], ...]
MOST_INVOCATION = 1024  # largest number of ids of an invocation; every path is searched for it


def check_adapters(adapters: object) -> tuple[tuple[str, float], ...]:
    """Checks the adapters of a request; returns (name, scale) pairs.

    Raises:
        AdapterError: Not a sequence of names and (name, scale) pairs, an empty name, or a scale that is not finite.
    """
    if isinstance(adapters, str) or not isinstance(adapters, list | tuple):
        raise AdapterError(f"adapters is a sequence of names or (name, scale) pairs, not {shown(adapters)}")
    return tuple(_adapter_use(use) for use in adapters)


def _adapter_use(use: object) -> tuple[str, float]:
    name, scale = use if isinstance(use, list | tuple) and len(use) == 2 else (use, 1.0)
    if not isinstance(name, str) or not name.strip():
        raise AdapterError(f"an adapter is a name or a (name, scale) pair, not {shown(use)}")
    return name, check_scale(name, scale)


def check_scale(name: str, scale: object) -> float:
    """Checks the scale of an adapter.

    Raises:
        AdapterError: Not a finite number.
    """
    if not is_number(scale):
        raise AdapterError(f"the scale of adapter {name!r} must be a finite number (1 is as trained), not {shown(scale)}")
    return float(scale)  # type: ignore[arg-type]  # a number


def digest_of_stack(uses: Uses) -> str:
    """SHA-256 over digests, scales and invocations of adapters, in order; empty for the base alone."""
    named = [use if use[2] else use[:2] for use in uses]
    return hashlib.sha256(repr(named).encode()).hexdigest() if uses else ""
