"""Backends that simulate a slow machine in an engine process: the layers of a real model sleep in every forward."""

from __future__ import annotations

import time
from typing import Any

from runtime.backends.hf import backend as hf
from runtime.options.load import LoadOptions

LAYER_SECONDS = 0.5


def load(source: Any, options: LoadOptions) -> hf.HfBackend:
    """Every layer takes half a second."""
    return _sleeping(hf.load(source, options), LAYER_SECONDS)


def load_hung(source: Any, options: LoadOptions) -> hf.HfBackend:
    """The first layer hangs."""
    return _sleeping(hf.load(source, options), 600)


def _sleeping(backend: hf.HfBackend, seconds: float) -> hf.HfBackend:
    for layer in backend.model.model.layers:
        layer.register_forward_pre_hook(lambda *_: time.sleep(seconds))
    return backend
