"""Between the workbench and the widgets: what is asked, in which order, and what the answers mean for what is shown.

No widget is known here. Every command is a coroutine run by `Tasks`; news comes from the port through `EventQueue`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Signal

from ui.events import EventQueue
from ui.port import (
    Columns,
    ColumnsChanged,
    ColumnTokens,
    EngineState,
    Event,
    Made,
    SessionChanged,
    SessionCopied,
    SessionsChanged,
    SessionView,
    StatusChanged,
    TokensArrived,
    TurnChanged,
    Workbench,
)
from ui.shelf_desk import ShelfDesk
from ui.shown import Shown
from ui.tasks import Tasks

MOST_UNDO = 50
PREVIEW_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Undo:
    """One step back: its name for the menu, and what does it."""

    label: str
    work: Callable[[], Coroutine[Any, Any, None]]
    restores: int | None = None  # the session it brings back out of the trash


class Desk(QObject):
    """One open session and the list beside it.

    Args:
        workbench: The use cases.
        parent: Owns the desk.
    """

    session_shown = Signal(object)  # SessionView: another path, or the same one with other turns
    turn_changed = Signal(object)  # TurnView of the path shown
    tokens_arrived = Signal(int, object)  # node id, TokenRun, already part of `shown`
    activity_changed = Signal()  # an answer began or ended
    listed = Signal(object, object)  # Sequence[SessionSummary], Sequence[FolderView]
    trash_listed = Signal(object)  # Sequence[TrashedSession]: shown instead of the sessions
    models_listed = Signal(object)  # Sequence[ModelChoice]
    model_menu_ready = Signal(object, object)  # Sequence[ModelChoice], Sequence[BackendChoice], on request
    status_changed = Signal(object)  # StatusView
    copied = Signal(int, int)  # what was asked of the first session goes on in the second, which is shown next
    draft_saved = Signal(int, str)  # session and message: it is in the store, the draft has done its work
    composed = Signal(object)  # Composition of the draft
    compared = Signal(object)  # BranchDiff of the session that is shown
    draft_scored = Signal(str, object)  # the draft, its bits or None
    file_read = Signal(object)  # TextFile
    left_out = Signal(int)  # turns, to make room
    columns_changed = Signal(object)  # Columns | None of the session shown
    column_tokens = Signal(int, object, float)  # node id, TokenRun, sum of all log-probabilities of the column
    preview_found = Signal(int, int, int, object)  # node id, index, token id, Sequence[bytes]
    drawing_found = Signal(int, int, object)  # node id, index, Drawing | None
    row_found = Signal(int, int, object)  # node id, index, (vocab,) float32
    row_refused = Signal(str)
    refused = Signal(str)
    trashed = Signal(int, str, bool)  # session, title; whether an answer was stopped for it
    restored = Signal(int)  # out of the trash again
    undo_changed = Signal()

    def __init__(self, workbench: Workbench, parent: QObject) -> None:
        super().__init__(parent)
        self._workbench = workbench
        self.tasks = Tasks(self.refused.emit)
        self.shelf = ShelfDesk(workbench, self.tasks, self._list, self)
        self.events = EventQueue(self._deliver, self)
        self.shown: Shown | None = None
        self._sending: tuple[int, str] | None = None  # session and text, until the store has it
        self._undo: list[Undo] = []
        self._query = ""
        self._in_trash = False
        self._going_back: asyncio.Task[None] | None = None  # on its way: more of the beginning
        self._columns: dict[int, Columns] = {}  # by session, until they are closed

    # ---- state --------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """An answer is under way in the session shown, or its message is being saved."""
        if self.shown is None:
            return False
        sending = self._sending is not None and self._sending[0] == self.shown.session_id
        columns = self._columns.get(self.shown.session_id)
        return sending or self.shown.running or (columns is not None and columns.running)

    @property
    def engine(self) -> EngineState:
        """What the engine is doing, as last told."""
        return self._workbench.status.engine

    @property
    def undo_label(self) -> str:
        """What the next undo takes back; "" when there is nothing."""
        return self._undo[-1].label if self._undo else ""

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of any tokens, for showing alternatives."""
        return [] if self.shown is None else list(self._workbench.token_text(self.shown.session_id, ids))

    # ---- commands -----------------------------------------------------------------------------------------------

    def start(self, session_id: int | None) -> None:
        """Listens, lists the sessions and opens one: the given one, else the first of the list, else a new one."""
        self._workbench.subscribe(self.events.push)
        self.status_changed.emit(self._workbench.status)
        opening = self.tasks.run(self._start(session_id))
        opening.add_done_callback(self._then_list_models)  # what is looked at goes first

    def _then_list_models(self, opening: asyncio.Task[None]) -> None:
        if not opening.cancelled():
            self.tasks.run(self._list_models())

    def search(self, query: str) -> None:
        """Lists the sessions that match."""
        self._query, self._in_trash = query, False
        self.tasks.latest("list", self._list())

    def show_trash(self, shown: bool) -> None:  # a state, not an option
        """Lists the trash instead of the sessions, or the sessions again."""
        self._in_trash = shown
        self.tasks.latest("list", self._list())

    def open(self, session_id: int) -> None:
        """Shows a session."""
        if self.shown is None or self.shown.session_id != session_id:
            self.tasks.latest("open", self._open(session_id))

    def show_earlier(self) -> None:
        """Asks for more of the beginning of a long path, where there is more."""
        waiting = self._going_back is not None and not self._going_back.done()
        if self.shown is not None and self.shown.view.earlier and not waiting:
            self._going_back = self.tasks.run(self._show_earlier(self.shown.session_id))

    def new_session(self) -> None:
        """Shows an empty session."""
        self.tasks.latest("open", self._new())

    def rename(self, session_id: int, title: str) -> None:
        """Gives a session another title."""
        self.tasks.run(self._then_list(self._workbench.rename_session(session_id, title)))

    def pin(self, session_id: int, pinned: bool) -> None:  # a state, not an option
        """To the top of the list, or back to its day."""
        self.tasks.run(self._then_list(self._workbench.pin_session(session_id, pinned)))

    def trash(self, session_id: int, title: str) -> None:
        """Into the trash; can be undone."""
        self.tasks.run(self._trash(session_id, title))

    def send(self, text: str, replaces: int | None = None) -> None:
        """Sends a message, or another version of the user's turn `replaces`; the draft stays until `draft_saved`."""
        if self.shown is not None and not self.running:
            self.tasks.drop("score draft")
            self._sending = (self.shown.session_id, text)
            self.activity_changed.emit()
            self.tasks.run(self._send(self.shown.session_id, text, replaces))

    def stop(self) -> None:
        """Stops the answer that is under way."""
        if self.shown is not None:
            self._workbench.stop(self.shown.session_id)

    def branch(self, node_id: int, index: int, token_id: int) -> None:
        """Goes on with another token at that place."""
        self._with_session(lambda session: self._workbench.branch(session, node_id, index, token_id))

    def answer_call(self, node_id: int, text: str) -> None:
        """The result of the calls in an answer."""
        self._with_session(lambda session: self._workbench.answer_call(session, node_id, text))

    def regenerate(self, node_id: int) -> None:
        """Another answer beside that one."""
        self._with_session(lambda session: self._workbench.regenerate(session, node_id))

    def regenerate_exactly(self, node_id: int) -> None:
        """The same answer once more, beside that one."""
        self._with_session(lambda session: self._workbench.regenerate_exactly(session, node_id))

    def how_made(self, node_id: int) -> Made | None:
        """How an answer of the session shown was made."""
        return None if self.shown is None else self._workbench.how_made(self.shown.session_id, node_id)

    def continue_turn(self, node_id: int) -> None:
        """Goes on with an answer that was stopped."""
        self._with_session(lambda session: self._workbench.continue_turn(session, node_id))

    def find_columns(self, node_id: int, index: int | None, count: int, *, beams: bool) -> None:
        """Several continuations of one place: in front of a token, or (None) of the end of an answer."""
        ask = self._workbench.beams if beams else self._workbench.continue_many
        self._with_session(lambda session: ask(session, node_id, index, count))

    def keep_column(self, node_id: int) -> None:
        """Shows the path through that column; the others stay among the branches."""
        self.close_columns()
        self.select(node_id)

    def close_columns(self) -> None:
        """Shows the columns no more; they stay among the branches."""
        if self.shown is not None:
            self._columns.pop(self.shown.session_id, None)
            self.columns_changed.emit(None)

    def select(self, node_id: int) -> None:
        """Shows the path through that node; can be undone."""
        shown = self.shown
        if shown is None or not shown.view.turns:
            return
        before = shown.view.turns[-1].node_id
        self.tasks.latest("open", self._select(shown.session_id, node_id, before))

    def compare(self, node_id: int) -> None:
        """Compares the branch that is shown with the one through that node."""
        shown = self.shown
        if shown is not None and shown.view.turns:
            self.tasks.latest("compare", self._compare(shown.session_id, shown.view.turns[-1].node_id, node_id))

    def step_variant(self, by: int) -> None:
        """To the previous (-1) or next (+1) sibling of the deepest turn that has any."""
        fork = self.shown.fork if self.shown is not None else None
        target = fork.step(by) if fork is not None else None
        if target is not None:
            self.select(target)

    def prune(self, node_id: int, start: int, pruned: bool) -> None:  # a state, not an option
        """Puts a branch out of sight, or back; can be undone."""
        shown = self.shown
        if shown is not None and shown.view.turns:
            before = shown.view.turns[-1].node_id
            self.tasks.latest("open", self._prune(shown.session_id, (node_id, start), before, pruned=pruned))

    def undo(self) -> None:
        """Takes back the last change of the tree or the list."""
        if self._undo:
            step = self._undo.pop()
            self.undo_changed.emit()
            self.tasks.run(step.work())

    def restore(self, session_id: int) -> None:
        """Takes a session out of the trash again, whatever has been done since."""
        self._undo = [step for step in self._undo if step.restores != session_id]
        self.undo_changed.emit()
        self.tasks.run(self._restore(session_id))

    def compose(self, text: str, replaces: int | None = None) -> None:
        """Asks what the draft will cost, as a new message or as another version of the user's turn `replaces`."""
        if self.shown is not None:
            work = self._compose(self.shown.session_id, text, replaces)
            self.tasks.latest("compose", work, refused=lambda _words: None)

    def score_draft(self, text: str, replaces: int | None = None) -> None:
        """Asks how surprising the draft is, while nobody waits for an answer."""
        if self.shown is not None and not self.running and text.strip():
            work = self._score_draft(self.shown.session_id, text, replaces)
            self.tasks.latest("score draft", work, refused=lambda _words: None)

    def read_file(self, path: str) -> None:
        """Reads a text file that goes with the message."""
        self.tasks.run(self._read_file(path))

    def leave_out(self, text: str) -> None:
        """Makes room for a message."""
        self._with_session(lambda session: self._leave_out(session, text))

    def grow_context(self) -> None:
        """All the context that the model has."""
        self.tasks.run(self._workbench.grow_context())

    def ask_preview(self, node_id: int, index: int, token_id: int) -> None:
        """Asks for the likeliest words after another token."""
        if self.shown is not None:

            def refused(words: str) -> None:
                self.preview_found.emit(node_id, index, token_id, ())
                self.refused.emit(words)

            self.tasks.latest("preview", self._find_preview(self.shown.session_id, node_id, index, token_id), refused)

    def drop_preview(self) -> None:
        """Nobody waits for it any more."""
        self.tasks.drop("preview")

    def ask_drawing(self, node_id: int, index: int) -> None:
        """Looks up how a token was drawn."""
        if self.shown is not None:
            work = self._find_drawing(self.shown.session_id, node_id, index)
            self.tasks.latest("drawing", work, refused=lambda _words: None)

    def ask_row(self, node_id: int, index: int) -> None:
        """Asks the model for everything it might have said at a place."""
        if self.shown is not None:
            self.tasks.latest("row", self._find_row(self.shown.session_id, node_id, index), refused=self.row_refused.emit)

    def ask_models(self) -> None:
        """Reads the shelf for the menu."""
        self.tasks.latest("models", self._list_models(menu=True))

    def choose_model(self, source: str) -> None:
        """Another model from the next request on."""
        self.tasks.run(self._choose_model(source))

    def choose_backend(self, name: str) -> None:
        """Another engine from the next request on."""
        self.tasks.run(self._workbench.choose_backend(name))

    async def close(self) -> None:
        """Saves and ends everything; safe to call once."""
        self.events.close()
        self.shown = None  # nothing is asked any more on behalf of a session
        await self._workbench.close()
        await self.tasks.cancel()

    # ---- what they do -------------------------------------------------------------------------------------------

    async def _start(self, session_id: int | None) -> None:
        sessions = await self._workbench.sessions()
        self.listed.emit(sessions, await self._workbench.folders())
        if session_id is None and sessions:
            session_id = sessions[0].session_id
        if self.shown is None:  # someone may have pressed New session already
            await (self._new() if session_id is None else self._open(session_id))

    async def _list(self) -> None:
        if self._in_trash:
            self.trash_listed.emit(await self._workbench.trashed_sessions())
        else:
            self.listed.emit(await self._workbench.sessions(self._query), await self._workbench.folders())

    async def _then_list(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        await self._list()

    async def _open(self, session_id: int) -> None:
        self._show_answer(await self._workbench.open_session(session_id))

    async def _show_earlier(self, session_id: int) -> None:
        view = await self._workbench.show_earlier(session_id)
        if self.shown is not None and self.shown.session_id == session_id:
            self._show_answer(view)

    async def _new(self) -> None:
        self._show_answer(await self._workbench.new_session())

    async def _trash(self, session_id: int, title: str) -> None:
        stopped = await self._workbench.trash_session(session_id)
        self._remember(Undo(self.tr("Move to Trash"), lambda: self._restore(session_id), session_id))
        self.trashed.emit(session_id, title, stopped)
        await self._list()
        if self.shown is not None and self.shown.session_id == session_id:
            rest = await self._workbench.sessions()
            await (self._open(rest[0].session_id) if rest else self._new())

    async def _restore(self, session_id: int) -> None:
        await self._workbench.restore_session(session_id)
        self.restored.emit(session_id)
        await self._list()
        await self._open(session_id)

    async def _send(self, session_id: int, text: str, replaces: int | None) -> None:
        try:
            await self._workbench.send(session_id, text, replaces)
            self._saved(session_id)
        finally:
            self._sending = None
            self.activity_changed.emit()

    async def _select(self, session_id: int, node_id: int, before: int | None) -> None:
        view = await self._workbench.select(session_id, node_id)
        if before is not None:
            self._remember(Undo(self.tr("Branch Selection"), lambda: self._select(session_id, before, None)))
        self._show_answer(view)

    async def _compare(self, session_id: int, left: int, right: int) -> None:
        diff = await self._workbench.compare(session_id, left, right)
        if self.shown is not None and self.shown.session_id == session_id:
            self.compared.emit(diff)

    async def _prune(self, session_id: int, branch: tuple[int, int], before: int, *, pruned: bool) -> None:
        await self._workbench.prune(session_id, *branch, pruned)

        async def back() -> None:
            await self._workbench.prune(session_id, *branch, not pruned)
            if self.shown is not None and self.shown.session_id == session_id and pruned:
                await self._select(session_id, before, None)

        self._remember(Undo(self.tr("Prune Branch") if pruned else self.tr("Restore Branch"), back))

    async def _compose(self, session_id: int, text: str, replaces: int | None) -> None:
        self.composed.emit(await self._workbench.compose(session_id, text, replaces))

    async def _score_draft(self, session_id: int, text: str, replaces: int | None) -> None:
        self.draft_scored.emit(text, await self._workbench.score_draft(session_id, text, replaces))

    async def _read_file(self, path: str) -> None:
        self.file_read.emit(await self._workbench.read_file(path))

    async def _leave_out(self, session_id: int, text: str) -> None:
        self.left_out.emit(await self._workbench.leave_out(session_id, text))

    async def _find_preview(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        words = await self._workbench.preview(session_id, node_id, index, token_id, PREVIEW_TOKENS)
        self.preview_found.emit(node_id, index, token_id, words)

    async def _find_drawing(self, session_id: int, node_id: int, index: int) -> None:
        self.drawing_found.emit(node_id, index, await self._workbench.drawing(session_id, node_id, index))

    async def _find_row(self, session_id: int, node_id: int, index: int) -> None:
        self.row_found.emit(node_id, index, await self._workbench.whole_row(session_id, node_id, index))

    async def _list_models(self, *, menu: bool = False) -> None:
        models = await self._workbench.models()
        self.models_listed.emit(models)
        if menu:
            self.model_menu_ready.emit(models, self._workbench.backends())

    async def _choose_model(self, source: str) -> None:
        await self._workbench.choose_model(source)
        await self._list_models()

    # ---- news ---------------------------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        shown = self.shown
        match event:
            case StatusChanged(status):
                self.status_changed.emit(status)
            case SessionsChanged():
                self.tasks.latest("list", self._list())
            case SessionChanged(view):
                if shown is not None and view.session_id == shown.session_id:
                    self._saved(view.session_id)
                    self._show(view)
            case SessionCopied(source_id, view):
                if shown is not None and source_id == shown.session_id:
                    self._go_on_in_copy(source_id, view)
            case TokensArrived(session_id, node_id, run):
                if shown is not None and session_id == shown.session_id and shown.append(node_id, run):
                    self.tokens_arrived.emit(node_id, run)
            case ColumnsChanged(session_id, columns):
                self._take_columns(session_id, columns)
            case ColumnTokens(session_id, node_id, run, logprob):
                if shown is not None and session_id == shown.session_id:
                    self.column_tokens.emit(node_id, run, logprob)
            case TurnChanged(session_id, turn):
                if shown is not None and session_id == shown.session_id and shown.replace_turn(turn):
                    self.turn_changed.emit(turn)
                    self.activity_changed.emit()

    def _take_columns(self, session_id: int, columns: Columns | None) -> None:
        if columns is None:
            self._columns.pop(session_id, None)
        else:
            self._columns[session_id] = columns
        if self.shown is not None and session_id == self.shown.session_id:
            self.columns_changed.emit(columns)
            self.activity_changed.emit()

    def _go_on_in_copy(self, source_id: int, view: SessionView) -> None:
        if self._sending is not None and self._sending[0] == source_id:
            self._sending = (view.session_id, self._sending[1])
        self.copied.emit(source_id, view.session_id)
        self._show(view)

    def _saved(self, session_id: int) -> None:
        """The session has the message now: a refusal from here on is about the answer."""
        if self._sending is not None and self._sending[0] == session_id:
            text = self._sending[1]
            self._sending = None
            self.draft_saved.emit(session_id, text)

    def _show_answer(self, view: SessionView) -> None:
        """Shows a view that a command returned: news still queued is older and already part of it."""
        self.events.flush()
        self._show(view)

    def _show(self, view: SessionView) -> None:
        other = self.shown is None or self.shown.session_id != view.session_id
        self.shown = Shown(view)
        self.session_shown.emit(view)
        if other:
            self.columns_changed.emit(self._columns.get(view.session_id))
        self.activity_changed.emit()

    def _with_session(self, command: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        if self.shown is not None:
            self.tasks.run(command(self.shown.session_id))

    def _remember(self, step: Undo) -> None:
        self._undo = [*self._undo, step][-MOST_UNDO:]
        self.undo_changed.emit()
