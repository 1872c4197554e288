"""What a person can do, as the window asks for it (`ui.port.Workbench`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from app.supervisor import Supervisor
from app.workbench.answers import Answers
from app.workbench.app_settings import SettingsKeeper
from app.workbench.composing import Composing
from app.workbench.copying import Copies
from app.workbench.drawing import DrawingMembers
from app.workbench.drawn import Drawn
from app.workbench.fans import Fans
from app.workbench.keeping import Keeper
from app.workbench.making import how_made
from app.workbench.pruning import prune
from app.workbench.refusals import BUSY, stored
from app.workbench.sessions import Sessions
from app.workbench.setup.members import SetupMembers
from app.workbench.setup.setups import Setups
from app.workbench.shelf import ShelfMembers
from app.workbench.status import backend_choices, detail_of, status_of
from app.workbench.tokenise import Tokeniser
from app.workbench.transfers import TransferMembers
from app.workbench.turns import Turns
from app.workbench.vocabulary import Vocabulary
from runtime import GenerationOptions, RuntimeFault, SamplingOptions
from storage import SessionStore, StoreError
from ui import (
    AppSettings,
    BackendChoice,
    Composition,
    EngineState,
    Event,
    Made,
    ModelChoice,
    Refusal,
    SessionChanged,
    SessionSummary,
    SessionView,
    SettingsView,
    StatusChanged,
    StatusView,
    TextFile,
)

if TYPE_CHECKING:
    from runtime import ShelfEntry

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.5  # for answers to end by themselves when the app is closed
KEEP_SECONDS = 0.5  # then for KV to be written
TIDY_SECONDS = 2.0  # after the start: what the first view needs goes first
PRESET = GenerationOptions(max_tokens=1024, sampling=SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05))

EMPTY_CALL: Mapping[str, Any] = MappingProxyType({})


class AppWorkbench(SetupMembers, ShelfMembers, TransferMembers, DrawingMembers):
    """Use cases over the session store and the engine process; all members belong to the window's loop.

    Args:
        store: The sessions.
        supervisor: The engine process.
        preset: How answers are drawn where nobody says otherwise.
        call: What somebody says, by the names of `GenerationOptions.from_mapping`.
    """

    def __init__(
        self,
        store: SessionStore,
        supervisor: Supervisor,
        preset: GenerationOptions = PRESET,
        call: Mapping[str, Any] = EMPTY_CALL,
    ) -> None:
        self._store = store
        self.supervisor = supervisor
        self.vocabulary = Vocabulary(store)
        self._listeners: list[Callable[[Event], None]] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._setups = Setups(store, supervisor, preset, call, self._free_adapters)
        self._sessions = Sessions(store, supervisor, self._setups, self._tell)
        self._keeper = Keeper(supervisor)
        self._answers = Answers(store, supervisor, self._setups, call, self._tell, self._refresh_status, self._keeper.keep)
        tokeniser = Tokeniser(store, self.vocabulary)
        copies = Copies(store, supervisor, self._sessions, self._setups, self._tell)
        self._turns = Turns(self._sessions, copies, self._answers, tokeniser, self.vocabulary, self._tell, self._refresh_status)
        self._settings = SettingsKeeper(store, supervisor, self._setups.presets)
        self._composing = Composing(self._sessions, supervisor, self._answers, copies)
        self._fans = Fans(store, supervisor, self._sessions, copies, self._answers, tokeniser, self._tell, self._refresh_status)
        self._drawn = Drawn(
            store,
            supervisor,
            self._sessions,
            self.vocabulary,
            self._answers.options_of,
            self._answers.model,
            self._setups.speaker,
        )
        self.status = StatusView(EngineState.NONE)
        supervisor.subscribe(self._refresh_status)

    # ---- the window listens -------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Events go to `listener` from now on."""
        self._listeners.append(listener)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _refresh_status(self) -> None:
        self.status = status_of(self.supervisor, self._sessions.shown)
        self._tell(StatusChanged(self.status))

    # ---- sessions -----------------------------------------------------------------------------------------------------

    async def sessions(self, query: str = "") -> Sequence[SessionSummary]:
        """Pinned first, then the latest."""
        return await self._sessions.summaries(query)

    async def open_session(self, session_id: int) -> SessionView:
        """Reads a session; no model is needed."""
        await self.vocabulary.load()
        session = await self._sessions.show(session_id)
        self._refresh_status()
        return session.view()

    async def new_session(self) -> SessionView:
        """An empty one."""
        session = await self._sessions.create()
        await self.vocabulary.load()
        self._refresh_status()
        return session.view()

    async def rename_session(self, session_id: int, title: str) -> None:
        """Another title."""
        await self._sessions.rename(session_id, title)

    async def pin_session(self, session_id: int, pinned: bool) -> None:  # a state, not an option
        """To the top of the list, or back to its day."""
        await self._sessions.pin(session_id, pinned)

    async def trash_session(self, session_id: int) -> bool:
        """Into the trash; an answer that is being written there is stopped and kept: whether there was one."""
        stopped = session_id in self._answers.running
        self.stop(session_id)
        await self._sessions.trash(session_id)
        return stopped

    async def restore_session(self, session_id: int) -> None:
        """Back out of the trash."""
        await self._sessions.restore(session_id)

    async def show_earlier(self, session_id: int) -> SessionView:
        """Some more of the beginning of a long path."""
        session = self._sessions.opened(session_id)
        await self._sessions.show_earlier(session)
        return session.view()

    async def select(self, session_id: int, node_id: int) -> SessionView:
        """Shows the path through a node."""
        session = self._sessions.opened(session_id)
        self._answers.check_idle(session_id)
        await self._sessions.move(session, node_id)
        view = session.view()
        self._tell(SessionChanged(view))
        self._refresh_status()
        return view

    async def prune(self, session_id: int, node_id: int, start: int, pruned: bool) -> None:  # a state, not an option
        """Hides a branch in the outline and among the variants, or shows it again."""
        session = self._sessions.opened(session_id)
        self._answers.check_idle(session_id)
        await prune(self._store, session, (node_id, start), self._sessions.move, pruned=pruned)
        self._tell(SessionChanged(session.view()))
        self._refresh_status()

    # ---- answers ------------------------------------------------------------------------------------------------------

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn (beside `replaces`, an earlier version of it), then streams an answer."""
        await self._sessions.read_whole(session_id)
        await self._turns.send(session_id, text, replaces)

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """A sibling that has another token at `index`, and goes on from there."""
        await self._sessions.read_whole(session_id)
        await self._turns.branch(session_id, node_id, index, token_id)

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Another answer beside the model's turn."""
        await self._sessions.read_whole(session_id)
        await self._turns.regenerate(session_id, node_id)

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """The same answer once more, with what it was made with."""
        await self._sessions.read_whole(session_id)
        await self._turns.regenerate_exactly(session_id, node_id)

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        """How an answer was made, as stored with it."""
        session = self._sessions.find(session_id)
        node = session.tree.nodes.get(node_id) if session else None
        return None if node is None else how_made(node)

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Goes on with an answer that was stopped."""
        await self._sessions.read_whole(session_id)
        await self._turns.continue_turn(session_id, node_id)

    def stop(self, session_id: int) -> None:
        """What arrived is kept."""
        self._answers.stop(session_id)

    async def answer_call(self, session_id: int, node_id: int, text: str) -> None:
        """The result of a tool's call, as a turn of its own; then streams an answer."""
        await self._sessions.read_whole(session_id)
        await self._turns.answer_call(session_id, node_id, text)

    # ---- the model ----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Starts the engine in the background, so that the first answer need not wait for it."""
        self._background(self._warm_up(), "warm up")

    def tidy_up(self) -> None:
        """Clears away, in the background and a moment later, what nobody misses; the store's thread does it in slices."""
        self._background(self._tidy_up(), "tidy up")

    async def _tidy_up(self) -> None:
        await asyncio.sleep(TIDY_SECONDS)
        try:
            await self._sessions.tidy()
            await self._store.back_up_daily()
        except StoreError as fault:  # the next start tries again
            log.warning("not everything was cleared away and backed up: %s", fault)

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self._sessions.closing:  # nobody would wait for its end
            work.close()
            return
        task: asyncio.Task[object] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _warm_up(self) -> None:
        try:
            await self.vocabulary.learn(await self.supervisor.model())
            await self._find_tiers()
        except (RuntimeFault, StoreError) as fault:
            log.warning("the engine did not start: %s", fault)

    async def _find_tiers(self) -> None:
        """The engine runs now: what of the shown path it holds, and what of it is in its block file."""
        session = self._sessions.shown
        if session is not None and session.id not in self._answers.running:
            before = session.warm, session.stored
            await self._sessions.find_warm(session)
            if (session.warm, session.stored) != before:
                self._tell(SessionChanged(session.view()))
                self._refresh_status()

    async def compose(self, session_id: int, text: str, replaces: int | None = None) -> Composition:
        """Tokens and context of a draft, where it would stand; no forward."""
        return await self._composing.compose(session_id, text, replaces)

    async def score_draft(self, session_id: int, text: str, replaces: int | None = None) -> float | None:
        """Bits of a draft, behind everything else."""
        await self._sessions.read_whole(session_id)
        return await self._composing.score_draft(session_id, text, replaces)

    async def read_file(self, path: str) -> TextFile:
        """A text file to go with a message."""
        return await self._composing.read_file(path)

    async def grow_context(self) -> None:
        """All the context that the model has."""
        await self._settings.change("context_length", None)
        await self._change(options={"context_length": None})

    # ---- settings -----------------------------------------------------------------------------------------------------

    async def load_settings(self) -> AppSettings:
        """Before anything is shown or loaded."""
        return await self._settings.load()

    async def settings(self) -> SettingsView:
        """What is set."""
        await self._settings.load()
        models = [choice.source for choice in await self.models()]
        backends = [choice.name for choice in self.backends() if not choice.problem]
        return replace(self._settings.view(models, backends), data=await self._settings.facts())

    async def change_setting(self, name: str, value: object) -> SettingsView:
        """Changes one row."""
        await self._settings.change(name, value)
        return await self.settings()

    async def reload_model(self) -> SettingsView:
        """Loads the model anew with what is set."""
        await self._change()
        return await self.settings()

    async def verify_data(self) -> Sequence[str]:
        """Reads every stored row."""
        damage = await stored(self._store.verify())
        return [row.detail for row in damage]

    async def leave_out(self, session_id: int, text: str) -> int:
        """Makes room for a message."""
        await self._sessions.read_whole(session_id)
        count = await self._composing.leave_out(session_id, text)
        shown = self._sessions.shown
        if shown is not None:
            self._tell(SessionChanged(shown.view()))
        self._refresh_status()
        return count

    async def models(self) -> Sequence[ModelChoice]:
        """What is on the shelf."""
        entries = await asyncio.to_thread(_on_the_shelf)
        return [ModelChoice(e.name, e.title, detail_of(e), e.name == self.supervisor.source) for e in entries]

    async def choose_model(self, source: str) -> None:
        """From the next request on."""
        await self._change(source=source)

    def backends(self) -> Sequence[BackendChoice]:
        """The engines that are known, without the toys."""
        return backend_choices(self.supervisor.backend)

    async def choose_backend(self, name: str) -> None:
        """From the next request on."""
        await self._change(backend=name)

    async def _change(self, **changes: Any) -> None:
        if self._answers.running:
            raise Refusal(BUSY)
        await self.supervisor.change(**changes)
        self._sessions.hope()
        self.warm_up()

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:  # noqa: ARG002  # one vocabulary so far
        """Bytes of any token, without the engine."""
        return [self.vocabulary.bytes_of(token) for token in token_ids]

    async def close(self) -> None:
        """Text first: streams are stopped and written, then KV is kept as far as there is time, the engine and the store end.

        An engine that does not answer is not waited for: its end ends whoever waits for it.
        """
        self._sessions.closing = True
        for session_id in list(self._answers.running):
            self._answers.stop(session_id)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._answers.ended(), PATIENCE_SECONDS)
        await self._keeper.close(KEEP_SECONDS)
        await self.supervisor.close()
        await self._answers.ended()
        await self._sessions.settle(self._answers.settle)
        for task in list(self._tasks):
            task.cancel()
        await self._sessions.drop_empty()
        await self._store.close()


def _on_the_shelf() -> list[ShelfEntry]:
    from runtime import list_models  # knows every format: loaded here, on the thread, for the window is on the screen by now

    return list_models()
