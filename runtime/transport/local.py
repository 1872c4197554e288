"""`LocalTransport`: a model whose engine is in this process."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any

from runtime.adapters.registry import Registry
from runtime.aio import settled
from runtime.beams import OnStep
from runtime.branches import Branches
from runtime.engine.adapter_operations import AdapterOperations
from runtime.engine.kv_files import KvFiles
from runtime.engine.operations import Operations
from runtime.engine.owner import Engine
from runtime.engine.text_side import TextSide
from runtime.errors import RuntimeFault
from runtime.info import CacheReport, Metrics, ModelInfo, OnProgress
from runtime.options.load import LoadOptions
from runtime.records import TokenRun
from runtime.shelf.model_lock import ModelLock
from runtime.transport.base import TextFacts
from runtime.transport.methods import CAPABILITIES, METHODS


class LocalTransport:
    """Calls the operations of an engine in this process.

    Args:
        engine: The owner thread with its backend.
        text: Tokenizer and template.
        options: The options of the load.
        names: Names of the model; () if they are unknown, None for the name in the backend's `info`.
        in_use: Locks that keep the shelf from removing the model's folders.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        engine: Engine,
        text: TextSide,
        options: LoadOptions,
        names: tuple[str, ...] | None,
        in_use: Sequence[ModelLock],
    ) -> None:
        info = engine.backend.info
        self.engine = engine
        self._in_use, self._loaded_at = in_use, _caller()
        self.names = (info.name,) if names is None else names
        registry = Registry(info.kv_fingerprint, info.vocab_size)
        operations = self.operations = Operations(engine, text, options, registry)
        self.adapters = AdapterOperations(engine, operations, registry, self.names)
        self.files = KvFiles(engine, operations, options)
        parts = (operations, self.adapters, self.files)
        self.state = LocalState(engine, operations)
        side = operations.text
        self.text = TextFacts(
            side.eos_token_ids,
            side.template.source if side.template else None,
            operations.byte_vocab,
            lambda: side.tokenizer.str_vocab(info.vocab_size),
            side.own.options,
            operations.ends,
        )
        self.calls: dict[str, Callable[..., Any]] = {
            name: next(getattr(part, name) for part in parts if hasattr(part, name)) for name in METHODS
        }

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def ended(self) -> RuntimeFault | None:
        return self.engine.ended

    async def call(
        self, method: str, *, on_progress: OnProgress | None = None, on_step: OnStep | None = None, **arguments: Any
    ) -> Any:
        if on_progress is not None:
            arguments["on_progress"] = on_progress
        if on_step is not None:
            arguments["on_step"] = on_step
        answer = self.calls[method](**arguments)
        return await (settled(answer) if isinstance(answer, Future) else answer)

    def stream(self, method: str, *, on_progress: OnProgress | None = None, **arguments: Any) -> Branches[TokenRun]:
        branches: Branches[TokenRun] = self.calls[method](on_progress=on_progress, **arguments)
        return branches

    def post(self, method: str, **arguments: Any) -> None:
        self.calls[method](**arguments)

    def heartbeat(self) -> tuple[int, str, int]:
        return self.engine.heartbeat()

    def close(self) -> None:
        """Ends the owner thread and frees the model."""
        self.engine.close()
        self.operations.close()
        for each in self._in_use:
            each.release()

    async def close_async(self, within: float | None) -> None:
        """Closes on another thread, however long it takes."""
        del within
        await asyncio.to_thread(self.close)

    def finalize(self) -> None:
        """Frees the model, and warns at the line that loaded it."""
        self.engine.end()
        name = self.names[0] if self.names else ""
        message = f"the model {name}, loaded here, was not closed; it is freed now. Use `with load(...) as model`, or close it"
        warnings.warn_explicit(message, ResourceWarning, *self._loaded_at)


class LocalState:
    """The snapshots of an engine in this process."""

    def __init__(self, engine: Engine, operations: Operations) -> None:
        self._engine, self._operations = engine, operations

    @property
    def info(self) -> ModelInfo:
        return self._operations.info

    @property
    def metrics(self) -> Metrics:
        return self._engine.scheduler.counters.latest

    @property
    def cache(self) -> CacheReport:
        return self._engine.report


def _caller() -> tuple[str, int]:
    """The file and the line from which the library was called."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the documented way to a frame without the whole stack
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "runtime":
        frame = frame.f_back
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
