"""The window: wires the parts to the desk, and ends everything when it is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QByteArray, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QMainWindow, QMenu

from runtime import TokenRun
from ui.about import AboutBox
from ui.actions import Actions, connect
from ui.desk import Desk
from ui.frame import Frame
from ui.port import EngineState, ModelChoice, SessionSummary, SessionView, StatusView, TurnStatus, TurnView, Workbench
from ui.shown import typed_text
from ui.theme.palette import Palette
from ui.theme.scheme import current_theme
from ui.transcript import Mode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WindowState:
    """What a window is opened with and leaves behind. `geometry` is Qt's own, base64."""

    geometry: str = ""
    sidebar: bool = True
    inspector: bool = True
    mode: str = Mode.TOKENS.value


class MainWindow(QMainWindow):
    """The one window. `start` needs a running event loop (qasync's); `closed` says that everything is saved and ended.

    Args:
        workbench: The use cases.
        state: How the last window was left.
        keep_state: Called with this window's state when it closes.
    """

    closed = Signal()

    def __init__(
        self,
        workbench: Workbench,
        *,
        state: WindowState | None = None,
        keep_state: Callable[[WindowState], None] | None = None,
    ) -> None:
        super().__init__()
        state = state or WindowState()
        self._keep_state = keep_state
        self._mode = Mode(state.mode) if state.mode in set(Mode) else Mode.TOKENS  # a newer version's may be unknown
        self._ending: asyncio.Task[None] | None = None
        self._ended = False
        self._sessions: dict[int, SessionSummary] = {}
        self._counted_at: tuple[EngineState, bool] | None = None
        self.setWindowTitle("Elsewise")
        self.setMinimumSize(560, 420)
        self.desk = Desk(workbench, self)
        self.parts = Frame(sidebar=state.sidebar, inspector=state.inspector)
        self.setCentralWidget(self.parts)
        self.acts = Actions(self)
        self._wire_desk()
        self._wire_parts()
        self._wire_actions()
        self.resize(1360, 860)
        if state.geometry:
            self.restoreGeometry(QByteArray.fromBase64(state.geometry.encode()))
        self.parts.transcript.set_vocabulary(self.desk.token_bytes)
        theme = current_theme()
        theme.changed.connect(self._recolour)
        self._recolour(theme.palette)
        self._set_mode(self._mode)
        self._refresh()

    def start(self, session_id: int | None = None) -> None:
        """Fills the window: the given session, else the first of the list. Call inside the running loop."""
        self.desk.start(session_id)
        self.parts.composer.setFocus()

    # ---- wiring -------------------------------------------------------------------------------------------------

    def _wire_desk(self) -> None:
        desk, parts = self.desk, self.parts
        desk.session_shown.connect(self._show_session)
        desk.turn_changed.connect(self._show_turn)
        desk.tokens_arrived.connect(self._append_tokens)
        desk.activity_changed.connect(self._refresh)
        desk.listed.connect(self._show_sessions)
        desk.models_listed.connect(self._show_model)
        desk.model_menu_ready.connect(parts.top.model.open_menu)
        desk.status_changed.connect(self._show_status)
        desk.draft_saved.connect(parts.composer.clear_sent)
        desk.composed.connect(parts.composer.show_cost)
        desk.refused.connect(parts.composer.notice.say)
        desk.trashed.connect(parts.sidebar.sessions.offer_undo)
        desk.undo_changed.connect(self._refresh)

    def _wire_parts(self) -> None:
        desk, parts = self.desk, self.parts
        sessions, view, composer = parts.sidebar.sessions, parts.transcript, parts.composer
        sessions.chosen.connect(desk.open)
        sessions.renamed.connect(desk.rename)
        sessions.trashed.connect(self._trash)
        sessions.restored.connect(desk.undo)
        sessions.searched.connect(desk.search)
        parts.sidebar.tree.selected.connect(desk.select)
        composer.sent.connect(self._send)
        composer.stopped.connect(desk.stop)
        composer.drafted.connect(desk.compose)
        composer.new_session_wanted.connect(self._new_session)
        parts.top.mode_chosen.connect(self._set_mode)
        parts.top.step_wanted.connect(desk.step_variant)
        parts.top.models_wanted.connect(desk.ask_models)
        parts.top.model_chosen.connect(desk.choose_model)
        view.token_pinned.connect(self._follow_pin)
        view.alternative_chosen.connect(self._branch)
        view.variant_requested.connect(desk.select)
        view.regenerate_requested.connect(self._regenerate)
        view.continue_requested.connect(self._continue)
        view.copy_requested.connect(lambda text: QApplication.clipboard().setText(text))
        parts.inspector.alternative_chosen.connect(self._branch)
        parts.inspector.token_chosen.connect(self._pin)
        parts.panels_changed.connect(self._refresh)
        for number in range(1, 10):
            # Text fields keep their digits: they claim printable keys before shortcuts do.
            key = QShortcut(QKeySequence(str(number)), self)
            key.activated.connect(lambda number=number: parts.inspector.token.alternatives.press(number))

    def _wire_actions(self) -> None:
        acts, desk, top = self.acts, self.desk, self.parts.top
        menu = QMenu(self)
        acts.install(menu)
        top.menu_button.setMenu(menu)
        top.menu_button.setVisible(not menu.isEmpty())
        top.new_button.clicked.connect(self._new_session)
        top.sidebar_button.clicked.connect(acts.sidebar.trigger)
        top.inspector_button.clicked.connect(acts.inspector.trigger)
        connect(acts.new_session, self._new_session)
        connect(acts.rename, self._rename)
        connect(acts.trash, self._trash_shown)
        connect(acts.close, self.close)
        connect(acts.quit, self.close)
        connect(acts.undo, desk.undo)
        connect(acts.find, self._find)
        connect(acts.read, lambda: self._set_mode(Mode.READ))
        connect(acts.tokens, lambda: self._set_mode(Mode.TOKENS))
        connect(acts.sidebar, lambda: self.parts.show_sidebar(acts.sidebar.isChecked()))
        connect(acts.inspector, lambda: self.parts.show_inspector(acts.inspector.isChecked()))
        connect(acts.uncertain, self.parts.transcript.next_uncertain)
        connect(acts.stop, desk.stop)
        connect(acts.regenerate, self._regenerate)
        connect(acts.continue_answer, self._continue)
        connect(acts.previous, lambda: desk.step_variant(-1))
        connect(acts.next, lambda: desk.step_variant(+1))
        connect(acts.about, lambda: AboutBox(self).open())

    # ---- commands -----------------------------------------------------------------------------------------------

    def _send(self, text: str, replaces: int | None) -> None:
        self.parts.composer.notice.clear()
        self.desk.send(text, replaces)

    def _new_session(self) -> None:
        self.desk.new_session()
        self.parts.composer.setFocus()

    def _find(self) -> None:
        self.parts.show_sidebar(True)
        self.parts.sidebar.sessions.search.setFocus()

    def _rename(self) -> None:
        if self.desk.shown is not None:
            self.parts.show_sidebar(True)
            self.parts.sidebar.sessions.rename(self.desk.shown.session_id)

    def _trash_shown(self) -> None:
        if self.desk.shown is not None:
            self._trash(self.desk.shown.session_id)

    def _trash(self, session_id: int) -> None:
        summary = self._sessions.get(session_id)
        if summary is not None and not summary.is_sample:
            self.desk.trash(session_id, summary.title)

    def _branch(self, node_id: int, index: int, token_id: int) -> None:
        self.parts.composer.notice.clear()
        turn = self.desk.shown.turn(node_id) if self.desk.shown is not None else None
        if turn is not None and turn.role == "user":  # words of one's own: a draft, nothing is sent
            start = typed_text(turn.run[:index]) + b"".join(self.desk.token_bytes([token_id])).decode(errors="replace")
            self.parts.composer.edit(node_id, typed_text(turn.run), start)
        else:
            self.desk.branch(node_id, index, token_id)

    def _regenerate(self, node_id: int = 0) -> None:
        answer = self.desk.shown.last_answer if self.desk.shown is not None else None
        if node_id or answer is not None:
            self.desk.regenerate(node_id or answer.node_id)  # type: ignore[union-attr]  # one of the two is there

    def _continue(self, node_id: int = 0) -> None:
        answer = self.desk.shown.last_answer if self.desk.shown is not None else None
        if node_id or answer is not None:
            self.desk.continue_turn(node_id or answer.node_id)  # type: ignore[union-attr]  # one of the two is there

    # ---- what is shown ------------------------------------------------------------------------------------------

    def _show_session(self, view: SessionView) -> None:
        parts = self.parts
        parts.transcript.set_session(view)
        parts.sidebar.show_session(view)
        parts.top.title.setText(view.title or self.tr("New session"))
        self.setWindowTitle(self.tr("{0} – Elsewise").format(view.title) if view.title else "Elsewise")
        assert self.desk.shown is not None
        parts.top.branch.show_branch(view.branch_name, self.desk.shown.fork)
        parts.composer.set_read_only(view.is_sample)
        if view.is_sample:
            parts.transcript.setFocus()  # the field that had it is gone
        parts.inspector.show_path(view.turns)
        self._show_pin()
        self.desk.compose(parts.composer.draft)

    def _show_turn(self, turn: TurnView) -> None:
        self.parts.transcript.update_turn(turn)
        self._show_path()
        pinned = self.parts.inspector.token.spot
        if pinned is not None and pinned.node_id == turn.node_id:
            self._show_pin()

    def _append_tokens(self, node_id: int, run: TokenRun) -> None:
        self.parts.transcript.append_tokens(node_id, run)

    def _show_path(self) -> None:
        if self.desk.shown is not None:
            self.parts.inspector.show_path(self.desk.shown.view.turns)

    def _show_sessions(self, sessions: Sequence[SessionSummary]) -> None:
        self._sessions = {session.session_id: session for session in sessions}
        self.parts.sidebar.sessions.show_sessions(sessions)
        shown = self.desk.shown
        summary = self._sessions.get(shown.session_id) if shown is not None else None
        if summary is not None:  # a rename reaches the title by the list
            self.parts.top.title.setText(summary.title)

    def _show_model(self, models: Sequence[ModelChoice]) -> None:
        self.parts.top.model.show_model(next((choice for choice in models if choice.loaded), None))

    def _show_status(self, status: StatusView) -> None:
        self.parts.status.show_status(status)
        self.parts.inspector.show_status(status)
        self._count_again()

    def _pin(self, node_id: int, index: int) -> None:
        self._show_pin((node_id, index))

    def _follow_pin(self, place: tuple[int, int] | None) -> None:
        """The transcript pinned a token by itself (click, keys), or lost its pin."""
        if place is None:
            self.parts.inspector.show_spot(None, self.desk.token_bytes, can_choose=False)
        else:
            self._show_pin(place)

    def _show_pin(self, place: tuple[int, int] | None = None) -> None:
        """Shows a token in the inspector; without `place` the pinned one again, as long as the path still has it."""
        inspector, shown = self.parts.inspector, self.desk.shown
        held = inspector.token.spot
        if place is None and held is not None:
            place = (held.node_id, held.index)
        spot = shown.spot(*place) if shown is not None and place is not None else None
        turn = shown.turn(spot.node_id) if shown is not None and spot is not None else None
        can_choose = turn is not None and turn.role != "system" and shown is not None and not shown.view.is_sample
        inspector.show_spot(spot, self.desk.token_bytes, can_choose=can_choose)
        if spot is not None:
            self.parts.transcript.set_pinned(spot.node_id, spot.index)
        elif held is not None:
            self.parts.transcript.clear_pin()

    def _set_mode(self, mode: Mode) -> None:
        self._mode = mode
        self.parts.transcript.set_mode(mode)
        self.parts.top.modes.show_mode(mode)
        (self.acts.read if mode is Mode.READ else self.acts.tokens).setChecked(True)

    def _recolour(self, palette: Palette) -> None:
        self.parts.transcript.set_palette_of(palette)

    def _refresh(self) -> None:
        """What can be done now."""
        acts, shown, running = self.acts, self.desk.shown, self.desk.running
        editable = shown is not None and not shown.view.is_sample
        answer = shown.last_answer if shown is not None else None
        fork = shown.fork if shown is not None else None
        self.parts.composer.set_running(running)
        acts.stop.setEnabled(running)
        acts.rename.setEnabled(editable)
        acts.trash.setEnabled(editable)
        acts.regenerate.setEnabled(editable and answer is not None and not running)
        partial = answer is not None and answer.status is TurnStatus.PARTIAL
        acts.continue_answer.setEnabled(editable and partial and not running)
        acts.previous.setEnabled(fork is not None and fork.step(-1) is not None)
        acts.next.setEnabled(fork is not None and fork.step(+1) is not None)
        undo = self.desk.undo_label
        acts.undo.setText(self.tr("Undo {0}").format(undo) if undo else self.tr("Undo"))
        acts.undo.setEnabled(bool(undo))
        acts.sidebar.setChecked(not self.parts.sidebar.isHidden())
        acts.inspector.setChecked(not self.parts.inspector.isHidden())
        self._count_again()

    def _count_again(self) -> None:
        """The context meter moves when an answer ends, and can be read only once an engine is there."""
        now = (self.desk.engine, self.desk.running)
        if self._counted_at not in (None, now):
            self.desk.compose(self.parts.composer.draft)
        self._counted_at = now

    # ---- the end ------------------------------------------------------------------------------------------------

    def closeEvent(self, event: QCloseEvent) -> None:
        """Waits for the workbench to save and end (< 2 s), then closes for good; asking twice changes nothing."""
        if self._ended:
            super().closeEvent(event)
            return
        event.ignore()
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        if self._keep_state is not None:
            geometry = bytes(self.saveGeometry().toBase64().data()).decode()
            parts = self.parts
            self._keep_state(WindowState(geometry, parts.wants_sidebar, parts.wants_inspector, self._mode.value))
        self.setEnabled(False)
        try:
            await self.desk.close()
        except Exception:  # the border: a window that cannot be closed would help nobody
            logger.exception("closing failed; what was saved before is kept")
        self._ended = True
        self.close()
        self.closed.emit()
