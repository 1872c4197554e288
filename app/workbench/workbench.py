"""What a person can do, as the window asks for it (`ui.port.Workbench`)."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from app.supervisor import Supervisor
from app.workbench.answers.answer import Answer
from app.workbench.answers.answers import Turns
from app.workbench.answers.continuations import Fans
from app.workbench.answers.drawing import DrawingMembers
from app.workbench.answers.drawings import Drawn
from app.workbench.answers.reopening import Reopening
from app.workbench.answers.saying import SayingMembers
from app.workbench.answers.streaming import Answers
from app.workbench.answers.text_branch import Retelling
from app.workbench.background import Chores
from app.workbench.compare.second_engine import SecondEngine
from app.workbench.compare.second_members import SecondMembers
from app.workbench.compare.similar_members import SimilarMembers
from app.workbench.compare.similar_vectors import Vectors
from app.workbench.kv.block_pins import BlockPins
from app.workbench.kv.cache import CacheMembers, Caching
from app.workbench.kv.saving import Keeper
from app.workbench.models.damage import back_up
from app.workbench.models.downloads import Downloads
from app.workbench.models.loads import LoadMembers
from app.workbench.models.models import LoadingMembers
from app.workbench.models.settings import SettingsKeeper
from app.workbench.models.shelf import ModelMembers
from app.workbench.prompt.drafts import Composing
from app.workbench.prompt.prompt import Tokeniser
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.sessions.copying import Copies
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.sessions.session_list import ShelfMembers
from app.workbench.sessions.showing import SessionMembers
from app.workbench.setup.members import SetupMembers
from app.workbench.setup.setups import Setups
from app.workbench.status import status_of
from app.workbench.transfer.transfers import TransferMembers
from app.workbench.windows import Windows
from runtime import GenerationOptions, SamplingOptions
from storage import SessionStore, StoreError
from ui import (
    Event,
    StatusChanged,
    StatusView,
    WindowWanted,
)

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.5  # for answers to end by themselves when the app is closed
KEEP_SECONDS = 0.5  # then for KV to be written
ENGINE_SECONDS = 1.8  # after which the engine is over, by itself or not; what follows is the store's
TIDY_SECONDS = 2.0  # after the start: what the first view needs goes first
PRESET = GenerationOptions(max_tokens=1024, sampling=SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05))

EMPTY_CALL: Mapping[str, Any] = MappingProxyType({})


class AppWorkbench(
    SayingMembers,
    LoadingMembers,
    SetupMembers,
    ShelfMembers,
    TransferMembers,
    DrawingMembers,
    CacheMembers,
    ModelMembers,
    LoadMembers,
    SecondMembers,
    SimilarMembers,
    SessionMembers,
):
    """Use cases over the session store and the engine process, for one window; all members belong to the window's loop.

    `beside` gives those for one more window: they share everything but what is shown.

    Args:
        store: The sessions.
        supervisor: The engine process.
        preset: How answers are drawn where nobody says otherwise.
        call: What somebody says, by the names of `GenerationOptions.from_mapping`.
        reopens: Whether an engine that died under an answer is started again by itself, once, for the session's sake.
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
        self._store = store
        self.supervisor = supervisor
        self.vocabulary = Vocabulary(store)
        self._windows = Windows()
        self.window = self._windows.add()
        self._chores = Chores()
        self._downloads = Downloads(self._tell)
        self._plans = {}
        self._setups = Setups(store, supervisor, preset, call, self._free_adapters)
        self._sessions = Sessions(store, supervisor, self._setups, self._windows)
        self._pins = BlockPins(store, supervisor, self._chores)
        self._keeper = Keeper(store, supervisor, self._pins, self._refresh_status)
        self._answers = Answers(store, supervisor, self._setups, call, self._tell, self._refresh_status, self._ended)
        self._reopening = Reopening(
            self._sessions, supervisor, self._setups, self._chores, self._answers.running.__contains__, self._tell
        )
        self._reopens = reopens
        tokeniser = Tokeniser(store, self.vocabulary)
        copies = Copies(store, supervisor, self._sessions, self._setups, self._windows)
        self._turns = Turns(self._sessions, copies, self._answers, tokeniser, self.vocabulary, self._tell, self._refresh_status)
        self._retelling = Retelling(self._sessions, supervisor, copies, self._answers, tokeniser, self._tell)
        self._settings = SettingsKeeper(store, supervisor, self._setups.presets)
        self._composing = Composing(self._sessions, supervisor, self._answers, copies)
        tell, refresh = self._tell, self._refresh_status
        self._fans = Fans(store, supervisor, self._sessions, copies, self._answers, tokeniser, tell, refresh, self._ended)
        self._drawn = Drawn(
            store,
            supervisor,
            self._sessions,
            self.vocabulary,
            self._answers.options_of,
            self._answers.model,
            self._setups.speaker,
        )
        self._caching = Caching(supervisor, self._sessions, self.vocabulary, self._setups.speaker)
        self._second, self._comparing = SecondEngine(supervisor), asyncio.Lock()
        self._vectors = Vectors()
        supervisor.subscribe(self._refresh_status)

    # ---- the windows listen -------------------------------------------------------------------------------------------

    def beside(self) -> AppWorkbench:
        """For one more window, which is to be closed like the first; the store and the engine end with the last."""
        other = copy.copy(self)
        other.window = self._windows.add()
        other.window.status = status_of(self.supervisor, None)
        return other

    @property
    def status(self) -> StatusView:
        """The engine, and the last answer of what this window shows."""
        return self.window.status

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Events go to `listener` from now on."""
        self.window.listeners.append(listener)

    def _tell(self, event: Event) -> None:
        self._windows.tell(event)

    def _refresh_status(self) -> None:
        for window in self._windows:
            window.status = replace(status_of(self.supervisor, window.shown), disk_note=self._keeper.note)
            window.tell(StatusChanged(window.status))

    def bring_forward(self, session_id: int) -> bool:
        """Asks the other window that shows a session to come to the front; whether there is one."""
        other = self._windows.holder(session_id, but=self.window)
        if other is not None:
            other.tell(WindowWanted(session_id))
        return other is not None

    def _ended(self, answers: Sequence[Answer], tell_all: Callable[[str], None] | None = None) -> None:
        """Answers are over and written; `tell_all` says of those that were made side by side what happens to them."""
        for answer in answers:
            self._keeper.keep(answer)
        if self._reopens:
            self._reopening.after(answers, tell_all)

    # ---- the end ------------------------------------------------------------------------------------------------------

    def tidy_up(self) -> None:
        """Clears away, in the background and a moment later, what nobody misses; the store's thread does it in slices."""
        self._chores.start(self._tidy_up(), "tidy up")

    async def _tidy_up(self) -> None:
        await asyncio.sleep(TIDY_SECONDS)
        try:
            await self._sessions.tidy()
        except StoreError as fault:  # the next start tries again
            log.warning("not everything was cleared away: %s", fault)
        await back_up(self._store)

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:  # noqa: ARG002  # one vocabulary so far
        """Bytes of any token, without the engine."""
        return [self.vocabulary.bytes_of(token) for token in token_ids]

    @property
    def unsaved(self) -> Sequence[str]:
        """What became of answers that could not be written before the end, a sentence for each; known when all is closed."""
        return self._sessions.unsaved

    async def close(self) -> bool:
        """Gives the window's session up; with the last window everything is saved and ends, which is what this returns.

        Text first: streams are stopped and written, then KV is kept as far as there is time, the engine and the store end.

        An engine that does not answer is not waited for: its end ends whoever waits for it.
        """
        if not self._windows.remove(self.window):
            return False
        loop = asyncio.get_running_loop()
        until = loop.time() + ENGINE_SECONDS
        self._sessions.closing = True
        self._chores.close()
        downloads = asyncio.create_task(self._downloads.close(), name="stop downloads")
        for session_id in list(self._answers.running):
            self._answers.stop(session_id)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._answers.ended(), PATIENCE_SECONDS)
        await self._keeper.close(KEEP_SECONDS)
        left = until - loop.time()
        await asyncio.gather(self.supervisor.close(left), self._second.close(left))
        await self._answers.ended()
        await self._sessions.settle(self._answers.settle)
        self._chores.cancel()
        await self._sessions.drop_empty()
        await downloads
        await self._store.close()
        return True
