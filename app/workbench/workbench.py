"""The use cases of the app (`ui.port.Workbench`): the services that all windows share, and the facade of one window."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from app.supervisor import Supervisor
from app.workbench.answers.answer import RunningAnswers
from app.workbench.answers.answers import Answers
from app.workbench.answers.continuations import Continuations
from app.workbench.answers.drawings import Drawings
from app.workbench.answers.reopening import Reopening
from app.workbench.answers.streaming import Streaming
from app.workbench.background import BackgroundTasks
from app.workbench.compare.comparison import Comparison
from app.workbench.compare.similar import SimilarSearch
from app.workbench.compare.similar_vectors import VectorCache
from app.workbench.kv.block_pins import BlockPins
from app.workbench.kv.engine_cache import EngineCache
from app.workbench.kv.saving import BlockSaver
from app.workbench.models.downloads import Downloads
from app.workbench.models.models import Models
from app.workbench.models.server import LocalServer
from app.workbench.models.settings import Settings, back_up
from app.workbench.models.shelf import Shelf
from app.workbench.prompt.drafts import MessageDrafts
from app.workbench.prompt.prompt import Tokeniser
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.sessions.branches import SessionBranches
from app.workbench.sessions.copying import Copies
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.sessions.session_list import SessionList
from app.workbench.setup.changes import SetupChanges
from app.workbench.setup.presets import Presets
from app.workbench.setup.session_adapters import Adapters
from app.workbench.setup.setups import Setups
from app.workbench.transfer.transfers import Transfers
from app.workbench.windows import Windows
from runtime import GenerationOptions, SamplingOptions
from storage import SessionStore, StoreError
from ui import Event, StatusView

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.5  # for answers to end when the app closes
KEEP_SECONDS = 0.5  # for KV to be written after that
ENGINE_SECONDS = 1.8  # from the beginning of the close until the engine is ended
TIDY_SECONDS = 2.0  # after the start, to let the first view appear first
PRESET = GenerationOptions(max_tokens=1024, sampling=SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05))

EMPTY_CALL: Mapping[str, Any] = MappingProxyType({})


class Services:
    """The services that all windows share. All members belong to the windows' loop.

    Args:
        store: The sessions.
        supervisor: The engine process.
        preset: The options of answers where session and settings choose none.
        call: Options of every answer, by the names of `GenerationOptions.from_mapping`; they take precedence.
        reopens: Whether an engine that died during an answer is restarted once.
    """

    def __init__(
        self,
        store: SessionStore,
        supervisor: Supervisor,
        preset: GenerationOptions = PRESET,
        call: Mapping[str, Any] = EMPTY_CALL,
        *,
        reopens: bool = False,
    ) -> None:
        self.store, self.supervisor = store, supervisor
        self.vocabulary = vocabulary = Vocabulary(store)
        self.windows = windows = Windows(supervisor)
        self.tasks = tasks = BackgroundTasks()
        presets = Presets(store, preset)
        self.adapters = adapters = Adapters(supervisor, tasks)
        setups = Setups(store, supervisor, presets, adapters, call)
        self.running = running = RunningAnswers(store, adapters)
        running.on_idle = supervisor.idle
        self.sessions = sessions = OpenSessions(store, supervisor, setups, adapters, running, tasks, windows)
        self.pins = BlockPins(store, supervisor, tasks)
        self.saver = BlockSaver(store, supervisor, running, self.pins, windows)
        self.downloads = downloads = Downloads(windows)
        copies = Copies(store, supervisor, sessions, setups, windows)
        tokeniser = Tokeniser(store, vocabulary)
        streaming = Streaming(store, supervisor, setups, adapters, running, windows)
        if reopens:
            Reopening(sessions, supervisor, adapters, running, tasks, windows)

        self.answers = Answers(supervisor, sessions, adapters, copies, running, streaming, tokeniser, vocabulary, windows)
        self.drafts = MessageDrafts(sessions, supervisor, running, copies, windows)
        self.branches = SessionBranches(store, sessions, setups, running, windows)
        self.continuations = Continuations(store, supervisor, sessions, setups, copies, running, adapters, tokeniser, windows)
        self.drawings = Drawings(store, supervisor, sessions, vocabulary, adapters, running)
        self.cache = EngineCache(supervisor, sessions, vocabulary, adapters, windows)
        self.setup = SetupChanges(
            supervisor, sessions, setups, presets, adapters, copies, running, downloads, vocabulary, windows
        )
        self.settings = Settings(store, supervisor, presets)
        self.server = LocalServer(supervisor, windows)
        self.models = Models(supervisor, self.settings, sessions, running, vocabulary, tasks, windows)
        self.shelf = Shelf(supervisor, self.settings, downloads, windows)
        self.transfers = Transfers(store, supervisor, windows)
        self.comparison = Comparison(supervisor, sessions, self.settings, adapters)
        self.similar = SimilarSearch(store, supervisor, sessions, adapters, VectorCache())

    @property
    def unsaved(self) -> list[str]:
        """A sentence for each answer that could not be saved; complete after `close`."""
        return self.sessions.unsaved

    def tidy_up(self) -> None:
        """Begins a background task that soon deletes unused rows and makes a backup, in slices on the store's thread."""
        self.tasks.start(self._tidy_up(), "tidy up")

    async def _tidy_up(self) -> None:
        await asyncio.sleep(TIDY_SECONDS)
        try:
            await self.sessions.tidy()
        except StoreError as fault:  # the next start tries again
            log.warning("not everything was cleared away: %s", fault)
        await back_up(self.store)

    async def close(self) -> None:
        """Saves and ends everything.

        Stops and writes answers first, then saves KV within a time limit, then ends the engine and the store. Kills an engine
        that does not answer, which ends the requests that wait for it.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + ENGINE_SECONDS
        self.sessions.closing = True
        server = asyncio.create_task(self.server.stop(), name="stop server")
        self.tasks.close()
        downloads = asyncio.create_task(self.downloads.close(), name="stop downloads")
        for answer in self.running:
            self.running.stop(answer.session.id)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.running.ended(), PATIENCE_SECONDS)
        await self.saver.close(KEEP_SECONDS)
        left = until - loop.time()
        await asyncio.gather(self.supervisor.close(left), self.comparison.close(left), server)  # clients do not delay the end
        await self.running.ended()
        await self.sessions.settle(self.running.settle)
        self.tasks.cancel()
        await self.sessions.drop_empty()
        await downloads
        await self.store.close()


class AppWorkbench:
    """The use cases for one window (`ui.port.Workbench`)."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._window = services.windows.add()
        self.sessions = SessionList(
            services.store, services.sessions, services.running, services.vocabulary, services.pins, services.windows,
            self._window,
        )  # fmt: skip
        self.answers = services.answers
        self.drafts = services.drafts
        self.branches = services.branches
        self.continuations = services.continuations
        self.drawings = services.drawings
        self.cache = services.cache
        self.setup = services.setup
        self.settings = services.settings
        self.server = services.server
        self.models = services.models
        self.shelf = services.shelf
        self.transfers = services.transfers
        self.comparison = services.comparison
        self.similar = services.similar

    @property
    def status(self) -> StatusView:
        """The engine's state, and the last answer of this window's session."""
        return self._window.status

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._window.listeners.append(listener)

    async def close(self) -> bool:
        """Closes the window; the last one saves and ends everything. Returns whether it was the last."""
        if not self.services.windows.remove(self._window):
            return False
        await self.services.close()
        return True
