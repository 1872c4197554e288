"""The window: wires the parts to the desk, and ends everything when it is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QByteArray, QUrl, Signal
from PySide6.QtGui import QCloseEvent, QDesktopServices, QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QMainWindow, QMenu

from ui.about import AboutBox
from ui.actions import Actions, connect, copy_focused
from ui.desk import Desk
from ui.frame import Frame
from ui.port import Workbench
from ui.port_settings import AppSettings
from ui.port_setup import SessionSetup, TextFile
from ui.settings import SettingsWindow
from ui.setup import MODEL, SAMPLING, SetupDesk, SetupPopover
from ui.shown import typed_text
from ui.stage import Stage
from ui.theme.scheme import Scheme, apply_theme
from ui.transcript import Measure, Mode
from ui.transferring import Transfers

logger = logging.getLogger(__name__)
BEAMS = 4  # by the menu; the inspector has more


@dataclass(frozen=True, slots=True)
class WindowState:
    """What a window is opened with and leaves behind. `geometry` is Qt's own, base64."""

    geometry: str = ""
    sidebar: bool = True
    inspector: bool = True
    mode: str = Mode.TOKENS.value
    drafts: Sequence[Sequence[int | str]] = ()  # session id (0: a session without turns) and what was not sent
    colours: str = Measure.SURPRISAL.value


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
        self._ending: asyncio.Task[None] | None = None
        self._ended = False
        self._text_percent = 100
        self.setWindowTitle("Elsewise")
        self.setMinimumSize(560, 420)
        self.desk = Desk(workbench, self)
        self.parts = Frame(sidebar=state.sidebar, inspector=state.inspector)
        self.parts.composer.remember(state.drafts)
        self.setCentralWidget(self.parts)
        self.acts = Actions(self)
        self.stage = Stage(self, self.desk, self.parts, self.acts)
        self.transfers = Transfers(workbench, self.desk, self.parts.status, self.parts.composer.notice, self)
        self.setup = SetupDesk(self.desk, workbench)
        self.popover = SetupPopover(self.setup, self.parts.top.model, self.parts)
        self._wire_parts()
        self.settings = SettingsWindow(self.desk, workbench, self)
        self._wire_setup()
        self._wire_actions()
        self.resize(1360, 860)
        if state.geometry:
            self.restoreGeometry(QByteArray.fromBase64(state.geometry.encode()))
        self.stage.set_mode(Mode(state.mode) if state.mode in set(Mode) else Mode.TOKENS)  # a newer version's may be unknown
        self.stage.colour_by(Measure(state.colours) if state.colours in set(Measure) else Measure.SURPRISAL)
        self.stage.refresh()

    def start(self, session_id: int | None = None) -> None:
        """Fills the window: the given session, else the first of the list. Call inside the running loop."""
        self.desk.start(session_id)
        self.parts.composer.setFocus()

    # ---- wiring -------------------------------------------------------------------------------------------------

    def _wire_parts(self) -> None:
        desk, parts = self.desk, self.parts
        sessions, view, composer = parts.sidebar.sessions, parts.transcript, parts.composer
        sessions.chosen.connect(desk.open)
        sessions.renamed.connect(desk.rename)
        sessions.pinned.connect(desk.pin)
        sessions.trashed.connect(self._trash)
        sessions.restored.connect(desk.restore)
        sessions.searched.connect(desk.search)
        sessions.tagged.connect(desk.shelf.tag)
        sessions.arranged.connect(desk.shelf.arrange)
        sessions.moved.connect(desk.shelf.move)
        sessions.folder_wanted.connect(desk.shelf.create_folder)
        sessions.folder_renamed.connect(desk.shelf.rename_folder)
        sessions.folder_removed.connect(desk.shelf.remove_folder)
        sessions.trash_wanted.connect(desk.show_trash)
        sessions.emptied.connect(desk.shelf.empty)
        parts.sidebar.tree.selected.connect(desk.select)
        parts.sidebar.tree.compare_wanted.connect(desk.compare)
        desk.compared.connect(parts.show_comparison)
        desk.session_shown.connect(lambda _view: parts.compare.dismiss())
        composer.sent.connect(self._send)
        composer.stopped.connect(desk.stop)
        composer.drafted.connect(desk.compose)
        composer.settled.connect(desk.score_draft)
        composer.attach_wanted.connect(desk.read_file)
        composer.leave_out_wanted.connect(desk.leave_out)
        composer.larger_wanted.connect(desk.grow_context)
        composer.new_wanted.connect(self._new_session)
        composer.pin_wanted.connect(self._pin_file)
        parts.top.mode_chosen.connect(self.stage.set_mode)
        parts.top.step_wanted.connect(desk.step_variant)
        parts.top.model_chosen.connect(desk.choose_model)
        parts.top.backend_chosen.connect(desk.choose_backend)
        view.token_pinned.connect(self.stage.show_pin)
        view.alternative_chosen.connect(self._branch)
        view.preview_wanted.connect(desk.ask_preview)
        view.preview_left.connect(desk.drop_preview)
        desk.preview_found.connect(view.show_preview)
        parts.inspector.token.preview_wanted.connect(view.preview)
        parts.sidebar.tree.prune_wanted.connect(desk.prune)
        view.variant_requested.connect(desk.select)
        view.edit_requested.connect(self._edit)
        view.regenerate_requested.connect(self._regenerate)
        view.repeat_requested.connect(self._regenerate_exactly)
        view.continue_requested.connect(self._continue)
        view.copy_requested.connect(self._copy)
        view.earlier_requested.connect(self.desk.show_earlier)
        view.link_requested.connect(parts.link.ask)
        view.found_changed.connect(parts.finder.show_place)
        parts.finder.wanted.connect(view.look_for)
        parts.finder.step_wanted.connect(view.find_next)
        parts.finder.closed.connect(view.setFocus)
        parts.link.copy_wanted.connect(self._copy)
        parts.link.open_wanted.connect(self._open_link)
        parts.inspector.alternative_chosen.connect(self._branch)
        parts.inspector.token_chosen.connect(self.stage.pin)
        parts.inspector.columns_wanted.connect(self._find_columns_at)
        parts.columns.kept.connect(desk.keep_column)
        parts.columns.stopped.connect(desk.stop)
        parts.columns.closed.connect(desk.close_columns)
        why = parts.inspector.why
        why.drawing_wanted.connect(desk.ask_drawing)
        why.row_wanted.connect(desk.ask_row)
        desk.drawing_found.connect(why.show_drawing)
        desk.row_found.connect(why.show_row)
        desk.row_refused.connect(why.say)
        for number in range(1, 10):
            # Text fields keep their digits: they claim printable keys before shortcuts do.
            key = QShortcut(QKeySequence(str(number)), self)
            key.activated.connect(lambda number=number: parts.inspector.token.alternatives.press(number))

    def _wire_setup(self) -> None:
        desk, popover = self.desk, self.popover
        self.parts.top.setup_wanted.connect(popover.toggle)
        self.parts.composer.format_wanted.connect(self._open_settings)
        self.parts.composer.setup_wanted.connect(lambda: popover.toggle(SAMPLING))
        self.parts.cards.answered.connect(desk.answer_call)
        popover.model.models_wanted.connect(desk.ask_models)
        self.settings.shown.connect(lambda view: self.apply(view.values))
        self.settings.colours_wanted.connect(self.stage.colour_by)
        for news in (desk.session_shown, desk.models_listed, desk.activity_changed, desk.status_changed):
            news.connect(self._refresh_setup)

    def apply(self, values: AppSettings) -> None:
        """Looks as the settings say."""
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        apply_theme(application, Scheme(values.scheme))
        if self._text_percent != values.text_percent:
            self._text_percent = values.text_percent
            self.parts.transcript.set_text_scale(values.text_percent / 100)

    def _open_settings(self) -> None:
        self.settings.show_colours(self.parts.transcript.measure)
        self.settings.open()

    def _pin_file(self, file: TextFile) -> None:
        """Before every turn, beside what is pinned already."""

        async def pin(workbench: Workbench, session_id: int) -> SessionSetup:
            held = (await workbench.setup(session_id)).files
            setup = await workbench.pin_files(session_id, [*(each for each in held if each.name != file.name), file])
            self.parts.composer.detach(file)
            return setup

        self.parts.composer.notice.clear()
        self.setup.change(pin, self.parts.composer.notice.say)

    def _refresh_setup(self) -> None:
        """What holds may be another thing for another session, path or model; nobody asks while nobody looks."""
        if self.popover.isVisible():
            self.setup.ask()

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
        connect(acts.pin, self._pin_shown)
        connect(acts.trash, self._trash_shown)
        connect(acts.settings, self._open_settings)
        connect(acts.close, self.close)
        connect(acts.quit, self.close)
        connect(acts.undo, desk.undo)
        connect(acts.copy, copy_focused)
        connect(acts.find, self.parts.finder.open)
        connect(acts.find_next, partial(self.parts.finder.step, +1))
        connect(acts.find_previous, partial(self.parts.finder.step, -1))
        connect(acts.search, self._search)
        connect(acts.read, lambda: self.stage.set_mode(Mode.READ))
        connect(acts.tokens, lambda: self.stage.set_mode(Mode.TOKENS))
        connect(acts.sidebar, lambda: self.parts.show_sidebar(acts.sidebar.isChecked()))
        connect(acts.inspector, lambda: self.parts.show_inspector(acts.inspector.isChecked()))
        for measure, action in acts.colours.items():
            connect(action, partial(self.stage.colour_by, measure))
        self.parts.status.legend.measure_chosen.connect(self.stage.colour_by)
        acts.template.toggled.connect(self.parts.transcript.set_template_visible)
        acts.pruned.toggled.connect(self.parts.sidebar.show_pruned)
        connect(acts.prune, self.parts.sidebar.tree.prune_current)
        connect(acts.uncertain, self.parts.transcript.next_uncertain)
        connect(acts.stop, desk.stop)
        connect(acts.regenerate, self._regenerate)
        connect(acts.regenerate_exactly, self._regenerate_exactly)
        connect(acts.continue_answer, self._continue)
        connect(acts.setup, lambda: self.popover.toggle(MODEL))
        connect(acts.sampling, lambda: self.popover.toggle(SAMPLING))
        for count, act in acts.ways.items():
            connect(act, partial(self._find_columns, count, beams=False))
        connect(acts.beams, lambda: self._find_columns(BEAMS, beams=True))
        connect(acts.previous, lambda: desk.step_variant(-1))
        connect(acts.next, lambda: desk.step_variant(+1))
        connect(acts.compare, self._compare)
        connect(acts.import_file, self.transfers.ask_import)
        for kind, action in acts.exports.items():
            connect(action, partial(self.transfers.ask_export, kind))
        connect(acts.about, lambda: AboutBox(self).open())

    # ---- commands -----------------------------------------------------------------------------------------------

    def _send(self, text: str, replaces: int | None) -> None:
        self.parts.composer.notice.clear()
        self.desk.send(text, replaces)
        self.parts.transcript.scroll_to_end()

    def _copy(self, text: str) -> None:
        QApplication.clipboard().setText(text)

    def _open_link(self, url: QUrl) -> None:
        if not QDesktopServices.openUrl(url):
            self.parts.composer.notice.say(self.tr("no program here takes this address; click the link again to copy it"))

    def _new_session(self) -> None:
        self.desk.new_session()
        self.parts.composer.setFocus()

    def _search(self) -> None:
        self.parts.show_sidebar(True)
        self.parts.sidebar.sessions.search.setFocus()

    def _compare(self) -> None:
        other = self.parts.sidebar.tree.other()
        if other is not None:
            self.desk.compare(other)

    def _rename(self) -> None:
        if self.desk.shown is not None:
            self.parts.show_sidebar(True)
            self.parts.sidebar.sessions.rename(self.desk.shown.session_id)

    def _pin_shown(self) -> None:
        summary = self.stage.shown_summary
        if summary is not None:
            self.desk.pin(summary.session_id, not summary.pinned)

    def _trash_shown(self) -> None:
        if self.desk.shown is not None:
            self._trash(self.desk.shown.session_id)

    def _trash(self, session_id: int) -> None:
        summary = self.stage.sessions.get(session_id)
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

    def _edit(self, node_id: int) -> None:
        turn = self.desk.shown.turn(node_id) if self.desk.shown is not None else None
        if turn is not None:
            self.parts.composer.notice.clear()
            self.parts.composer.edit(node_id, typed_text(turn.run), typed_text(turn.run))

    def _regenerate(self, node_id: int = 0) -> None:
        answer = self.desk.shown.last_answer if self.desk.shown is not None else None
        if node_id or answer is not None:
            self.desk.regenerate(node_id or answer.node_id)  # type: ignore[union-attr]  # one of the two is there

    def _regenerate_exactly(self, node_id: int = 0) -> None:
        answer = self.desk.shown.last_answer if self.desk.shown is not None else None
        if node_id or answer is not None:
            self.desk.regenerate_exactly(node_id or answer.node_id)  # type: ignore[union-attr]  # one of the two is there

    def _continue(self, node_id: int = 0) -> None:
        answer = self.desk.shown.last_answer if self.desk.shown is not None else None
        if node_id or answer is not None:
            self.desk.continue_turn(node_id or answer.node_id)  # type: ignore[union-attr]  # one of the two is there

    def _find_columns_at(self, node_id: int, index: int, count: int, beams: bool) -> None:  # as the signal brings it
        self._find_columns(count, beams=beams, at=(node_id, index))

    def _find_columns(self, count: int, *, beams: bool, at: tuple[int, int] | None = None) -> None:
        """From the pinned token's place, else from the end of the last answer."""
        self.parts.composer.notice.clear()
        shown = self.desk.shown
        at = at or self.parts.transcript.pinned
        turn = shown.turn(at[0]) if shown is not None and at is not None else None
        if at is not None and turn is not None and turn.role == "assistant":
            self.desk.find_columns(at[0], at[1], count, beams=beams)
        elif shown is not None and shown.last_answer is not None:
            self.desk.find_columns(shown.last_answer.node_id, None, count, beams=beams)

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
            mode, drafts = self.stage.mode.value, parts.composer.drafts()
            colours = parts.transcript.measure.value
            self._keep_state(WindowState(geometry, parts.wants_sidebar, parts.wants_inspector, mode, drafts, colours))
        self.setEnabled(False)
        self.settings.close()
        try:
            await self.transfers.close()
            await self.desk.close()
        except Exception:  # the border: a window that cannot be closed would help nobody
            logger.exception("closing failed; what was saved before is kept")
        self._ended = True
        self.close()
        self.closed.emit()
