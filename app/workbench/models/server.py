"""Serves the windows' model to other programs: `app.serve` on a thread of its own, started by the user."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from app.supervisor import Supervisor
from app.workbench.windows import Windows
from runtime import LanguageModel, SessionClosedError, UnsupportedFeatureError
from ui import Refusal, lacking, translate


class LocalServer:
    """Listens on 127.0.0.1 only (`ui.port.ServerCommands`). All members belong to the windows' loop.

    Args:
        supervisor: Provides the model; a request loads it if none runs.
        windows: Show the address.
    """

    def __init__(self, supervisor: Supervisor, windows: Windows) -> None:
        self._supervisor, self._windows = supervisor, windows
        self._changing = asyncio.Lock()
        self._thread: _Thread | None = None

    @property
    def address(self) -> str:
        return "" if self._thread is None else self._thread.address

    async def start(self, port: int) -> str:
        """Starts the server if necessary; returns its address.

        Raises:
            Refusal: The port is taken, or the model cannot be served.
        """
        async with self._changing:
            if self._thread is None:
                windows = asyncio.get_running_loop()
                thread = _Thread(port, lambda: asyncio.run_coroutine_threadsafe(self._model(), windows))
                try:
                    await asyncio.wrap_future(thread.ready)
                except OSError as fault:
                    words = translate("Workbench", "port {0} cannot be used: {1}; choose another one")
                    raise Refusal(words.format(port, fault.strerror)) from fault
                except UnsupportedFeatureError as fault:
                    raise Refusal(str(fault)) from fault
                self._thread = thread
                self._show()
        return self.address

    async def stop(self) -> None:
        async with self._changing:
            if self._thread is not None:
                thread, self._thread = self._thread, None
                self._show()
                thread.stop()
                await asyncio.wrap_future(thread.ended)

    def _show(self) -> None:
        self._windows.serving = self.address
        self._windows.refresh_status()

    async def _model(self) -> LanguageModel:
        model = await self._supervisor.model()
        if words := lacking("server", model.info.name, model.lacks):
            raise UnsupportedFeatureError(words)
        return model


class _Thread:
    """Runs the server, so that its clients do not slow the window down.

    Attributes:
        ready: Done when the port answers; has the exception if it cannot.
        ended: Done when the port is closed.
    """

    def __init__(self, port: int, model: Callable[[], Future[LanguageModel]]) -> None:
        self._port, self._model = port, model
        self.address, self._stopped = "", False
        self.ready: Future[None] = Future()
        self.ended: Future[None] = Future()
        self._stop: Callable[[], object] = lambda: None
        threading.Thread(target=self._run, name="server", daemon=True).start()

    def stop(self) -> None:
        """Begins to stop the server; a request meanwhile starts no engine."""
        self._stopped = True
        self._stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as fault:  # noqa: BLE001  # the border: `start` raises it
            if not self.ready.done():
                self.ready.set_exception(fault)
        finally:
            self.ended.set_result(None)

    async def _serve(self) -> None:
        from app.serve import Access, ServedModel, bind, serve  # the window opens without it

        bound = bind("127.0.0.1", self._port)
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self.address = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        self._stop = partial(loop.call_soon_threadsafe, stop.set)

        async def model() -> LanguageModel:
            if self._stopped:
                raise SessionClosedError(translate("Workbench", "the server is being stopped"))
            return await asyncio.wrap_future(self._model())

        await serve(ServedModel(model, shared=True), Access(), bound, on_ready=lambda: self.ready.set_result(None), stop=stop)
