"""The engine process of the window: started when needed, and restarted after it died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import runtime  # its names are imported at their first use: the window opens without them
from app.faults import STOPPED, not_loaded
from runtime import EngineDiedError, LanguageModel
from ui import EngineState, translate

log = logging.getLogger(__name__)
CANCEL_SECONDS = 1.0  # for the end of an engine that is still starting
_OWN = ("blocks", "draft_model", "context_length", "adapters", "weights")  # options of a single engine or model
SERVER_OPTIONS = ("chat_format", "chat_template_file", "context_length")  # the `LoadOptions` of a model on a server
Starter = Callable[..., Awaitable[LanguageModel]]  # (source, backend, on_progress=..., **options)


async def open_model(source: str, backend: str, **options: Any) -> LanguageModel:
    """A model in an engine process (`runtime.spawn`), or on a server if `source` is a connection's name or an address.

    A thread does the imports, so that the window does not stall.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="load-client")
    try:
        start = await asyncio.wrap_future(thread.submit(_starter, source, backend))
    finally:
        thread.shutdown(wait=False)  # if the start is cancelled, a keychain may still show a prompt
    return await start(**options)


def _starter(source: str, backend: str) -> Callable[..., Awaitable[LanguageModel]]:
    connection = runtime.find_connection(source)
    if connection is None:
        return partial(runtime.spawn, source, backend)
    given = connection.arguments()

    async def start(**options: Any) -> LanguageModel:
        own = {name: value for name, value in options.items() if name in SERVER_OPTIONS}
        return await runtime.connect_async(**given, **own)

    return start


class Supervisor:
    """Owns at most one engine process. All members belong to the window's loop.

    Args:
        source: The model: a folder, a GGUF file or a name on the shelf.
        backend: The engine.
        start: Loads the model; by default into an engine process.
        options: For `start`: `LoadOptions` by name, `log_path`.
    """

    def __init__(self, source: str, backend: str = "auto", *, start: Starter = open_model, **options: Any) -> None:
        self.source = source
        self.backend = backend
        self.options = options
        self._now: frozenset[str] = frozenset()
        self._loaded_with: tuple[str, dict[str, Any]] = (backend, {})
        self.start_engine = start
        self._model: LanguageModel | None = None
        self._starting: asyncio.Task[LanguageModel] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.state = EngineState.NONE
        self.reason = ""
        self.load_share = 0.0  # of the weights read during a start, 0 to 1

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change of `state` and `reason`."""
        self._listeners.append(listener)

    @property
    def running(self) -> LanguageModel | None:
        """The model, if it is loaded and alive."""
        return self._model

    def beside(self, source: str, backend: str, changes: Mapping[str, Any]) -> Supervisor:
        """A supervisor of a second engine, without block file and speculation."""
        options = {name: value for name, value in self.options.items() if name not in _OWN}
        if "soft_options" in options:  # `changes` may set options that are soft here
            options["soft_options"] = [name for name in options["soft_options"] if name in options]
        if "log_path" in options:
            log_path = Path(options["log_path"])
            options["log_path"] = log_path.with_stem(f"{log_path.stem}-second")
        return Supervisor(source, backend, start=self.start_engine, **{**options, **changes})

    async def model(self) -> LanguageModel:
        """The loaded model; starts the engine if it does not run.

        Raises:
            ModelLoadError, BackendUnavailableError, EngineDiedError: It cannot be loaded.
        """
        if self._model is not None and ended(self._model):
            await self.died(self._model)  # it died between two requests
        if self._model is not None:
            return self._model
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="start engine")
        return await asyncio.shield(self._starting)

    async def _start(self) -> LanguageModel:
        loading, self.load_share = translate("Workbench", "loading {0}").format(Path(self.source).name), 0.0
        self._tell(EngineState.STARTING, loading)
        on_progress = partial(self._loading, asyncio.current_task(), loading)
        loaded_with = (self.backend, self._lasting())
        try:
            self._model = await self.start_engine(self.source, self.backend, on_progress=on_progress, **self.options)
        except EngineDiedError as error:
            self._tell(EngineState.DIED, not_loaded(error))
            raise
        except Exception as error:
            self._tell(EngineState.NONE, not_loaded(error))
            raise
        finally:
            if self._starting is asyncio.current_task():
                self._starting = None
        self._loaded_with = loaded_with
        self._tell(EngineState.READY, "")
        return self._model

    def _loading(self, start: asyncio.Task[Any] | None, words: str, progress: runtime.LoadProgress) -> None:
        if self._starting is start:  # else another start has begun
            far = translate("Workbench", "{0}: reading weights, {1:,} of {2:,}").format(words, progress.done, progress.total)
            if progress.stage == "checking":
                far = translate("Workbench", "{0}: checking the numbers").format(words)
            elif progress.stage == "importing":
                far = translate("Workbench", "{0}: importing the file").format(words)
                if progress.total:
                    share = progress.done / progress.total
                    far = translate("Workbench", "{0}: importing the file, {1:.0%}").format(words, share)
            elif progress.total:
                self.load_share = progress.done / progress.total
            self._tell(EngineState.STARTING, far)

    def busy(self, busy: bool) -> None:
        """Sets the state: whether the engine computes an answer."""
        if self._model is not None:
            self._tell(EngineState.BUSY if busy else EngineState.READY, "")

    def idle(self) -> None:
        """Ends the busy state, when no answer runs any more."""
        if self.state is EngineState.BUSY:
            self.busy(False)

    async def died(self, model: LanguageModel) -> None:
        """Reports that a request to `model` raised `EngineDiedError`; the next request starts a new process."""
        if model is not self._model:  # reported before; another one may run by now
            return
        self._model = None
        self._tell(EngineState.DIED, translate("Workbench", STOPPED))
        await model.close_async()

    @property
    def needs_reload(self) -> bool:
        """Whether the running model was loaded with other options than the current ones."""
        return self._model is not None and self._loaded_with != (self.backend, self._lasting())

    def prepare(self, *, backend: str, options: Mapping[str, Any], now: Sequence[str] = ()) -> None:
        """Sets backend and options of the next start; a running model is not affected.

        Args:
            backend: The engine.
            options: `LoadOptions` by name; None leaves the choice to the engine.
            now: Options that are applied to the running model too, and need no reload.
        """
        wanted = {**self.options, **options}
        self.backend, self._now = backend, frozenset(now)
        self.options = {name: value for name, value in wanted.items() if value is not None}

    def _lasting(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name not in self._now}

    async def change(
        self, *, source: str | None = None, backend: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Ends the engine; the next request loads another model, or with another engine or options."""
        self.source = source or self.source  # before any await: a request meanwhile gets the new one
        self.backend = backend or self.backend
        wanted = {**self.options, **(options or {})}
        self.options = {name: value for name, value in wanted.items() if value is not None}
        await self._end_and_tell()

    async def stop_loading(self) -> None:
        """Cancels a start and the requests that wait for it; the next request starts the engine again."""
        if self._starting is not None:
            await self._end_and_tell()

    async def _end_and_tell(self) -> None:
        state, reason = self.state, self.reason
        await self.close()
        if self._starting is None and self._model is None and (self.state, self.reason) == (state, reason):
            self._tell(EngineState.NONE, "")  # else another request has begun a start

    async def close(self, within: float | None = None) -> None:
        """Ends the process, within 2 s or `within` seconds."""
        starting, self._starting = self._starting, None
        model, self._model = self._model, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting], timeout=CANCEL_SECONDS)
        if model is not None:
            await model.close_async(within=within)

    def _tell(self, state: EngineState, reason: str) -> None:
        self.state, self.reason = state, reason
        for listener in self._listeners:
            listener()


def ended(model: LanguageModel) -> bool:
    """Whether the model's process has ended, even if no request found that yet."""
    return isinstance(model, LanguageModel) and model.ended is not None
