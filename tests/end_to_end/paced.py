"""A third backend: transformers at a walking pace, so that a person (or a test) can stop it, kill it, watch it."""

from __future__ import annotations

import time
from typing import Any

from runtime.backends.base import Backend
from runtime.backends.hf.backend import load as load_hf
from runtime.loading.folder import ModelFolder
from runtime.options import LoadOptions

PACE_SECONDS = 0.03


def load(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> Backend:
    """The registry's factory."""
    backend = load_hf(source, options)
    forward = backend.forward

    def paced(*arguments: Any) -> Any:
        time.sleep(PACE_SECONDS)
        return forward(*arguments)

    backend.forward = paced  # type: ignore[method-assign]  # the one thing that differs
    return backend
