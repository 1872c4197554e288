"""The controller of one window: its parts, and the delivery of events to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from PySide6.QtCore import QObject, Signal

from ui.controller.answers import AnswersController, DraftsController
from ui.controller.cache import CacheController
from ui.controller.comparison import ComparisonController, SimilarController
from ui.controller.draws import DrawsController
from ui.controller.models import ModelsController, ShelfController
from ui.controller.sessions import SessionsController
from ui.controller.showing import Showing
from ui.controller.tree import TreeController
from ui.core.shown import RUNNING
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
    StatusChanged,
    StatusView,
    TokensArrived,
    TurnChanged,
    WindowWanted,
    Workbench,
)


class Controller(Showing):
    """One open session and the list of sessions. Each part has the commands of one subject, and signals their results.

    Args:
        workbench: The use cases.
        parent: Owns the controller.
    """

    turn_changed = Signal(object)  # TurnView of the path shown
    tokens_arrived = Signal(int, object)  # node id, TokenRun, already part of `shown`
    status_changed = Signal(object)  # StatusView
    copy_shown = Signal(object)  # before `session_shown`: Mapping of node ids, from the sample's to its copy's
    left = Signal()  # other windows are open: this one may hide before its tasks have ended
    front_wanted = Signal()  # another window was asked for the session shown here

    def __init__(self, workbench: Workbench, parent: QObject) -> None:
        super().__init__(workbench, self._deliver, parent)
        self.undo_stack = UndoStack(self.tasks, lambda: self.running, self)
        self.sessions = SessionsController(self, self.undo_stack)
        self.tree = TreeController(self, self.undo_stack)
        self.drafts = DraftsController(self)
        self.answers = AnswersController(self, self.drafts)
        self.draws = DrawsController(self)
        self.cache = CacheController(self)
        self.models = ModelsController(self)
        self._engine = EngineState.NONE  # as of the last status
        self.shelf = ShelfController(self, self.models)
        self.comparison = ComparisonController(self)
        self.similar = SimilarController(self)

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
