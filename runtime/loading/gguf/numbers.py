"""Sizes out of a GGUF's metadata, each within what a model can have."""

from __future__ import annotations

import numpy as np

from runtime.errors import ModelLoadError
from runtime.loading.gguf.layout import GgufHeader


def whole(header: GgufHeader, key: str, limit: int, default: int | None = None) -> int:
    """A whole number from 1 to `limit`.

    Raises:
        ModelLoadError: Missing and without a default, another kind, or out of range.
    """
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise fault(header, f"{key} is {'missing' if value is None else repr(value)[:60]}; 1 to {limit:,} is possible")
    return value


def positive(header: GgufHeader, key: str, default: float | None = None) -> float:
    """A positive number, as the model's own config has it: 1e-05, not 9.999999747378752e-06.

    Raises:
        ModelLoadError: Missing and without a default, another kind, or out of range.
    """
    value = header.metadata.get(key, default)
    if not isinstance(value, float) or not 0 < value < 1e12:
        raise fault(header, f"{key} is {'missing' if value is None else repr(value)[:60]}, not a positive number")
    return float(str(np.float32(value)))


def fault(header: GgufHeader, what: str) -> ModelLoadError:
    """The error for a file, which it names."""
    return ModelLoadError(f"{header.path}: {what}")
