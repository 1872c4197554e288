"""The caller's side of the engine process: `spawn` starts one and returns a `LanguageModel`."""

from runtime.client.engine import EngineClient
from runtime.client.limits import EngineLimits
from runtime.client.start import spawn

__all__ = ["EngineClient", "EngineLimits", "spawn"]
