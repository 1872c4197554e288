"""The controller of one window: opens sessions, keeps the shown one up to date, and delivers events to its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Signal

from ui.controller.answers import AnswersController, DraftsController
from ui.controller.cache import CacheController
from ui.controller.comparison import ComparisonController, SimilarController
from ui.controller.draws import DrawsController
from ui.controller.models import ModelsController, ShelfController
from ui.controller.sessions import SessionsController
from ui.controller.tree import TreeController
from ui.core.events import EventQueue
from ui.core.shown import RUNNING, Shown
from ui.core.tasks import Tasks
from ui.core.undo import UndoStack
from ui.port import (
    BranchAdded,
    ColumnsChanged,
    ColumnTokens,
    DownloadsChanged,
    EngineState,
    Event,
    ModelsChanged,
    SessionBegun,
    SessionChanged,
    SessionCopied,
    SessionRestored,
    SessionsChanged,
    SessionsDeleted,
    SessionTrashed,
    SessionView,
    ShownInOtherWindow,
    StatusChanged,
    StatusView,
    TokensArrived,
    TurnChanged,
    WindowWanted,
    Workbench,
)

Command = Callable[[int], Coroutine[Any, Any, None]]  # gets the id of the session shown
T = TypeVar("T")


class Controller(QObject):
    """One open session and the list of sessions. Each part has the commands of one subject, and signals their results.

    Args:
        workbench: The use cases.
        parent: Owns the controller.

    Attributes:
        shown: The session shown; None before the first is open and once the window closes.
        tasks: Runs all commands.
    """

    session_shown = Signal(object)  # SessionView: another path, or the same one with other turns
    other_shown = Signal(int)  # right after `session_shown`, where it is another session than before
    activity_changed = Signal()  # an answer began or ended
    refused = Signal(str)
    turn_changed = Signal(object)  # TurnView of the path shown
    tokens_arrived = Signal(int, object)  # node id, TokenRun, already part of `shown`
    status_changed = Signal(object)  # StatusView
    copy_shown = Signal(object)  # before `session_shown`: Mapping of node ids, from the sample's to its copy's
    left = Signal()  # other windows are open: this one may hide before its tasks have ended
    front_wanted = Signal()  # another window was asked for the session shown here

    def __init__(self, workbench: Workbench, parent: QObject) -> None:
        super().__init__(parent)
        self.workbench = workbench
        self.tasks = Tasks(self.refused.emit)
        self.events = EventQueue(self._deliver, self)
        self.shown: Shown | None = None
        self._under_way: list[Callable[[int], bool]] = []
        self._reading_earlier: asyncio.Task[None] | None = None
        self.closing = False  # then no other session is shown, for the draft would go to it
        self.undo_stack = UndoStack(self.tasks, lambda: self.running, self)
        self.sessions = SessionsController(self)
        self.tree = TreeController(self)
        self.drafts = DraftsController(self)
        self.answers = AnswersController(self)
        self.draws = DrawsController(self)
        self.cache = CacheController(self)
        self.models = ModelsController(self)
        self._engine = EngineState.NONE  # as of the last status
        self.shelf = ShelfController(self)
        self.comparison = ComparisonController(self)
        self.similar = SimilarController(self)

    # ---- state ------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether an answer is under way in the session shown, or its message is being saved."""
        shown = self.shown
        return shown is not None and (shown.running or any(runs(shown.session_id) for runs in self._under_way))

    def watch(self, under_way: Callable[[int], bool]) -> None:
        """Registers a predicate: a session for which it holds counts as running."""
        self._under_way.append(under_way)

    def is_shown(self, session_id: int) -> bool:
        return self.shown is not None and self.shown.session_id == session_id

    @property
    def engine(self) -> EngineState:
        """The state of the engine, as of the last status."""
        return self.workbench.status.engine

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of token ids; empty if no session is shown or the vocabulary is unknown."""
        return [] if self.shown is None else list(self.workbench.answers.token_text(self.shown.session_id, ids))

    def find_tokens(self, text: str, most: int) -> Sequence[int]:
        """The ids of at most `most` tokens that contain a text, best match first."""
        return () if self.shown is None else self.workbench.answers.find_tokens(self.shown.session_id, text, most)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def ask(self, command: Command, refused: Callable[[str], None] | None = None) -> None:
        """Runs a command for the session shown, if there is one; `refused` gets the text of a refusal."""
        if self.shown is not None:
            self.tasks.run(command(self.shown.session_id), refused)

    def ask_latest(self, key: str, command: Command, refused: Callable[[str], None] | None = None) -> None:
        """Runs a command for the session shown, and cancels an earlier one with the same key."""
        if self.shown is not None:
            self.tasks.latest(key, command(self.shown.session_id), refused)

    def ask_shown(
        self,
        key: str,
        command: Callable[[int], Awaitable[T]],
        listener: Callable[[T], object],
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """Like `ask_latest`; `listener` gets the result, unless another session is shown by then."""

        async def work(session_id: int) -> None:
            result = await command(session_id)
            if self.is_shown(session_id):
                listener(result)

        self.ask_latest(key, work, refused)

    def open(self, session_id: int) -> None:
        if self.has_to_open(session_id):
            self.tasks.latest("open", self.open_session(session_id))

    def has_to_open(self, session_id: int) -> bool:
        """Whether another session is shown or is about to be."""
        return not self.is_shown(session_id) or self.tasks.running("open") is not None

    def new_session(self) -> None:
        self.tasks.latest("open", self.open_new())

    def show_earlier(self) -> None:
        """Reads more of the beginning of a long path, if there is more."""
        waiting = self._reading_earlier is not None and not self._reading_earlier.done()
        if self.shown is not None and self.shown.view.earlier and not waiting:
            self._reading_earlier = self.tasks.run(self._show_earlier(self.shown.session_id))

    # ---- showing ----------------------------------------------------------------------------------------------------

    async def open_session(self, session_id: int) -> None:
        """Reads a session and shows it; if another window shows it, that window comes to the front instead."""
        with suppress(ShownInOtherWindow):
            self.show_answer(await self.workbench.sessions.open(session_id))

    async def open_new(self) -> None:
        self.show_answer(await self.workbench.sessions.new())

    def show_answer(self, view: SessionView) -> None:
        """Shows a view that a command returned, after the queued events, which are older."""
        self.events.flush()
        self.show(view)

    def show(self, view: SessionView) -> None:
        if self.closing:
            return
        other = not self.is_shown(view.session_id)
        self.shown = Shown(view)
        self.session_shown.emit(view)
        if other:
            self.other_shown.emit(view.session_id)
        self.activity_changed.emit()

    async def _show_earlier(self, session_id: int) -> None:
        view = await self.workbench.sessions.show_earlier(session_id)
        if self.is_shown(session_id):
            self.show_answer(view)

    # ---- start and end ----------------------------------------------------------------------------------------------

    def start(self, session_id: int | None, *, fresh: bool = False) -> None:
        """Subscribes to events, and opens the given session, else (unless `fresh`) the first of the list, else an empty one."""
        self.workbench.subscribe(self.events.push)
        self.status_changed.emit(self.workbench.status)
        starting = self.tasks.run(self._start(session_id, fresh=fresh))
        starting.add_done_callback(self._then_list_models)  # the session that is shown goes first

    async def close(self) -> None:
        """Ends the tasks of this window, and with the last window the workbench; to be called once.

        While other windows are open, running commands go on in the background until their results are saved.
        """
        self.events.close()
        self.closing = True
        self.shown = None  # no more commands for a session
        if not await self.workbench.close():
            self.left.emit()
            await self.tasks.ended()
        await self.tasks.cancel()

    async def _start(self, session_id: int | None, *, fresh: bool) -> None:
        free = [row for row in await self.sessions.list_all() if not row.in_other_window]
        if session_id is None and free and not fresh:
            session_id = free[0].session_id
        if self.shown is None and self.tasks.running("open") is None:  # New Session may have been pressed already
            self.tasks.latest("open", self.open_new() if session_id is None else self.open_session(session_id))

    def _then_list_models(self, _ended: asyncio.Task[None]) -> None:
        opening = self.tasks.running("open")
        if opening is not None:
            opening.add_done_callback(self._then_list_models)
        elif not self.closing:
            self.models.ask()

    # ---- events -----------------------------------------------------------------------------------------------------

    def _take_status(self, status: StatusView) -> None:
        if status.engine is EngineState.READY and self._engine not in (EngineState.READY, EngineState.BUSY):
            self.models.ask()  # the entry of the running model says how it was loaded
        self._engine = status.engine
        self.status_changed.emit(status)

    def _deliver(self, event: Event) -> None:
        match event:
            case StatusChanged(status):
                self._take_status(status)
            case SessionsChanged():
                self.sessions.ask()
            case SessionTrashed(session_id):
                self.sessions.leave(session_id)
            case SessionRestored(session_id):
                self.sessions.forget_trashed(session_id)
            case SessionsDeleted(session_ids):
                self.sessions.forget(session_ids)
            case WindowWanted():
                self.front_wanted.emit()
            case SessionChanged(view):
                if self.is_shown(view.session_id):
                    if any(turn.status in RUNNING for turn in view.turns):  # the message is in the store, its answer follows
                        self.answers.saved(view.session_id)
                    self.show(view)
            case SessionCopied(source_id, view, nodes):
                if self.is_shown(source_id):
                    self.answers.go_on_in_copy(source_id, view.session_id)
                    self.copy_shown.emit(nodes)
                    self.show(view)
            case SessionBegun(session_id):
                if session_id in self.answers.sent:  # one window titles it: the one that sent the message
                    self.sessions.title_new(session_id)
            case BranchAdded(session_id, before, after):
                self.tree.remember_branch(session_id, before, after)
            case ColumnsChanged(session_id, columns):
                self.draws.take_columns(session_id, columns)
            case ColumnTokens():
                self.draws.take_tokens(event)
            case TokensArrived():
                self._take_tokens(event)
            case TurnChanged():
                self._take_turn(event)
            case DownloadsChanged(downloads):
                self.shelf.take_downloads(downloads)
            case ModelsChanged():
                self.models.ask()
                self.shelf.ask(quietly=True)

    def _take_tokens(self, event: TokensArrived) -> None:
        shown = self.shown
        if shown is not None and event.session_id == shown.session_id and shown.append(event.node_id, event.run):
            self.tokens_arrived.emit(event.node_id, event.run)

    def _take_turn(self, event: TurnChanged) -> None:
        shown = self.shown
        if shown is not None and event.session_id == shown.session_id and shown.replace_turn(event.turn):
            self.turn_changed.emit(event.turn)
            self.activity_changed.emit()
