"""Several continuations of one place, previews of alternatives, whole distributions, and depth by layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from ui.core.tasks import ignore_refusal, tell
from ui.port import BeamSearchRules, Columns, ColumnTokens

if TYPE_CHECKING:
    from ui.controller.controller import Controller

PREVIEW_TOKENS = 8
PREVIEW = "preview"
TURN_DEPTH = "turn-depth"


class DrawsController(QObject):
    """Part of `Controller`."""

    columns_changed = Signal(object)  # Columns | None of the session shown
    column_tokens = Signal(int, object, float)  # node id, TokenRun, sum of all log-probabilities of the column
    preview_found = Signal(int, int, int, object)  # node id, index, token id, Sequence[bytes]
    row_found = Signal(int, int, object)  # node id, index, (vocab,) float32
    row_refused = Signal(str)
    turn_depth_progress = Signal(int, int, int)  # node id, tokens done, in all
    turn_depth_found = Signal(int, object)  # node id, TurnDepth
    turn_depth_refused = Signal(int, str)  # node id, why
    turn_depth_stopped = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench
        self._columns: dict[int, Columns] = {}  # by session, until they are closed
        self._closed: set[int] = set()  # nodes of closed columns
        controller.watch(self._is_running)
        controller.other_shown.connect(lambda _session_id: self.stop_turn_depth())
        controller.other_shown.connect(lambda session_id: self.columns_changed.emit(self._columns.get(session_id)))

    # ---- several continuations ----------------------------------------------------------------------------------

    def find_columns(self, node_id: int, index: int | None, count: int, *, beams: BeamSearchRules | None) -> None:
        """Continues one place several times: in front of token `index`, or (None) at the end of the answer.

        The continuations are found by a beam search with the rules `beams`, or (None) sampled.
        """
        port = self._workbench.continuations
        if beams is None:
            self._controller.ask(lambda session: port.continue_many(session, node_id, index, count))
        else:
            self._controller.ask(lambda session: port.beams(session, node_id, index, count, beams))

    def close_columns(self) -> None:
        """Closes the columns; they stay in the tree as branches."""
        if self._controller.shown is not None:
            closed = self._columns.pop(self._controller.shown.session_id, None)
            self._closed |= {column.node_id for column in closed.columns} if closed is not None else set()
            self.columns_changed.emit(None)

    def take_columns(self, session_id: int, columns: Columns | None) -> None:
        """Takes the new state of a session's columns; closed ones stay closed."""
        if columns is not None and columns.columns and self._closed >= {column.node_id for column in columns.columns}:
            return
        if columns is None:
            self._columns.pop(session_id, None)
        else:
            self._columns[session_id] = columns
        if self._controller.is_shown(session_id):
            self.columns_changed.emit(columns)
            self._controller.activity_changed.emit()

    def take_tokens(self, event: ColumnTokens) -> None:
        if self._controller.is_shown(event.session_id):
            self.column_tokens.emit(event.node_id, event.run, event.logprob)

    def _is_running(self, session_id: int) -> bool:
        columns = self._columns.get(session_id)
        return columns is not None and columns.running

    # ---- one token ----------------------------------------------------------------------------------------------

    def ask_preview(self, node_id: int, index: int, token_id: int) -> None:
        """Asks for the likeliest words after another token."""

        def refused(words: str) -> None:
            self.preview_found.emit(node_id, index, token_id, ())
            self._controller.refused.emit(words)

        found, preview = partial(self.preview_found.emit, node_id, index, token_id), self._workbench.drawings.preview
        place = node_id, index, token_id, PREVIEW_TOKENS
        self._controller.ask_latest(PREVIEW, lambda session: tell(found, preview, session, *place), refused)

    def drop_preview(self) -> None:
        self._controller.tasks.drop(PREVIEW)

    def ask_row(self, node_id: int, index: int) -> None:
        """Asks the model for the whole distribution at a place."""
        found, ask = partial(self.row_found.emit, node_id, index), self._workbench.drawings.whole_row
        self._controller.ask_latest("row", lambda session: tell(found, ask, session, node_id, index), self.row_refused.emit)

    def ask_row_quietly(self, node_id: int, index: int) -> None:
        """Like `ask_row`, while words are typed: no server is asked, and a refusal is not shown."""
        found, ask = partial(self.row_found.emit, node_id, index), self._workbench.drawings.whole_row
        self._controller.ask_latest(
            "quiet-row", lambda session: tell(found, ask, session, node_id, index, here=True), ignore_refusal
        )

    def ask_turn_depth(self, node_id: int) -> None:
        """Asks the model at which layer each token of a turn was decided; one turn at a time."""
        found, ask = partial(self.turn_depth_found.emit, node_id), self._workbench.drawings.turn_depth
        progress, refused = partial(self.turn_depth_progress.emit, node_id), partial(self.turn_depth_refused.emit, node_id)
        self._controller.ask_latest(TURN_DEPTH, lambda session: tell(found, ask, session, node_id, progress), refused)

    def stop_turn_depth(self) -> None:
        self._controller.tasks.drop(TURN_DEPTH)
        self.turn_depth_stopped.emit()
