"""The main window: makes its parts, connects them to the controller, from start to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QByteArray, QCoreApplication, QEvent, Qt, Signal
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QKeySequence
from PySide6.QtWidgets import QApplication, QMainWindow, QToolBar, QWidget

from ui.commands.actions import Actions
from ui.commands.escape import Closes, EscapeKey
from ui.commands.menu import come_forward, known_paths
from ui.comparison.presenters import SimilarPresenter
from ui.controller import Controller
from ui.controller.setup import SAMPLING, SetupController
from ui.port import SETTING_RULES, AppSettings, Contrast, Motion, OwnColours, Scheme, Workbench, translate_with
from ui.sidebar.sidebar import WIDTH as SIDEBAR_WIDTH
from ui.theme.fonts import FallbackFaces
from ui.theme.scheme import apply_theme
from ui.theme.text_size import resize_text
from ui.transcript import Measure, Mode
from ui.transcript.text.faces import reading_font
from ui.tree.presenter import TreePresenter
from ui.widgets.fields import files_of
from ui.widgets.labels import plain_tooltip
from ui.widgets.visible import one_line
from ui.window.frame import Frame
from ui.window.intents import Intents
from ui.window.presenter import Presenter
from ui.window.transfers import DroppedFiles, TransferQueue
from ui.window.welcome import ENDINGS, Starters, Welcome

if TYPE_CHECKING:
    from ui.settings import SettingsWindow
    from ui.setup.popover import SetupPopover


def unify(window: QMainWindow, bar: QWidget) -> None:
    """Places `bar` on top of the window as a toolbar that cannot be moved, floated or hidden."""
    toolbar = QToolBar(window)
    toolbar.setObjectName("unified")
    toolbar.setMovable(False)
    toolbar.setFloatable(False)
    toolbar.toggleViewAction().setEnabled(False)
    toolbar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
    layout = toolbar.layout()
    if layout is not None:
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
    toolbar.addWidget(bar)
    window.addToolBar(Qt.ToolBarArea.TopToolBarArea, toolbar)
    window.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)  # the window's own would offer to hide it
    window.setUnifiedTitleAndToolBarOnMac(True)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WindowState:
    """The stored state of a window. `geometry` is Qt's own, in base64."""

    geometry: str = ""
    sidebar: bool = True
    inspector: bool = True
    mode: str = Mode.TOKENS.value
    drafts: Sequence[Sequence[int | str]] = ()  # session id (0: without turns), unsent text, its files
    colours: str = Measure.SURPRISAL.value
    session: int | None = None  # the session shown
    sidebar_width: int = SIDEBAR_WIDTH  # pixels at 100 % text
    recent: Sequence[str] = ()  # imported and exported files, the last one first
    unwritten: Sequence[tuple[int, int, str]] = ()  # node id, index, and text typed in the card of that token
    results: Sequence[tuple[int, Sequence[str]]] = ()  # node id, and results typed for its calls


class MainWindow(QMainWindow):
    """A window. `start` needs a running event loop (qasync's); `closed` is emitted once everything is saved and ended.

    Args:
        workbench: The use cases, for this window.
        state: The stored state of the last window.
        keep_state: Called with this window's state when it closes.
        beside: Another window of the app, which shares its drafts.
    """

    closed = Signal()
    window_wanted = Signal(object)  # another window, with the session of that id, or (None) an empty one
    quit_wanted = Signal()  # closes all windows

    def __init__(
        self,
        workbench: Workbench,
        *,
        state: WindowState | None = None,
        keep_state: Callable[[WindowState], None] | None = None,
        beside: MainWindow | None = None,
    ) -> None:
        super().__init__()
        translate_with(QCoreApplication.translate)
        state = state or WindowState()
        self._keep_state = keep_state
        self._ending: asyncio.Task[None] | None = None
        self._ended = False
        self._zooming = asyncio.Lock()  # each step starts from the result of the previous one
        self.setWindowTitle("Elsewise")
        self.setMinimumSize(560, 420)
        self.setAcceptDrops(True)
        self.controller = Controller(workbench, self)
        self.parts = Frame(sidebar=state.sidebar, inspector=state.inspector)
        if beside is None:
            self.parts.composer.remember(state.drafts)
        else:
            self.parts.composer.share(beside.parts.composer)
        if isinstance(state.sidebar_width, int):
            self.parts.sidebar.set_width(state.sidebar_width)
        self.parts.pinned.remember(state.unwritten)
        self.parts.cards.remember(state.results)
        self.setCentralWidget(self.parts)
        unify(self, self.parts.top)
        status, notice = self.parts.status, self.parts.composer.notice
        self.transfers = TransferQueue(self.controller, status, notice, self.parts.toast, self)
        self.transfers.recent += known_paths(state.recent)
        self.acts = Actions(self)
        self.welcome = Welcome(self.controller, self.parts, self)  # first: its cards take room from the transcript
        self.presenter = Presenter(self, self.controller, self.parts, self.acts)
        self.setup = SetupController(self.controller)
        self.similar = SimilarPresenter(self.controller, self.parts, self)
        self.tree = TreePresenter(self.controller, self.parts, self)
        self.intents = Intents(self, self.controller, self.parts, self.presenter, self.similar, self.setup)
        self.starters = Starters(
            self.controller,
            self.parts,
            self.presenter,
            lambda node_id, index: self.intents.find_columns_at(node_id, index, ENDINGS, beams=False),
        )
        self.escape = EscapeKey(self)
        for rank, part, close in (
            (Closes.CARD, self.parts.pinned, self._close_card),
            (Closes.POPOVER, self.parts.link, self.parts.link.hide),
            (Closes.POPOVER, self.parts.composer.meter.panel, self.parts.composer.meter.panel.hide),
            (Closes.EDIT, self.parts.composer.version, self.parts.composer.version.dismiss),
            (Closes.SEARCH, self.parts.finder, self.parts.finder.dismiss),
            (Closes.SEARCH, self.parts.tree.finder, self.parts.tree.finder.dismiss),
            (Closes.TREE, self.parts.tree, self.tree.close),
        ):
            self.escape.add(rank, part, close)
        self.parts.sidebar.sessions.window_wanted.connect(self.window_wanted.emit)
        self.controller.front_wanted.connect(self.come_forward)
        self.controller.left.connect(self.hide)
        self._wire_setup()
        self._wire_files()
        self._install_menu()
        self.resize(1360, 860)
        if state.geometry:
            self.restoreGeometry(QByteArray.fromBase64(state.geometry.encode()))
        # values of a newer version may be unknown
        self.presenter.set_mode(Mode(state.mode) if state.mode in set(Mode) else Mode.TOKENS)
        lasting = set(Measure) - {Measure.LAYER}  # layers are not stored
        self.presenter.colour_by(Measure(state.colours) if state.colours in lasting else Measure.SURPRISAL)
        self.presenter.refresh()

    def start(self, session_id: int | None = None, *, fresh: bool = False) -> None:
        """Opens the given session, else an empty one (`fresh`) or the first of the list.

        Call inside the running loop.
        """
        self.controller.start(session_id, fresh=fresh)
        self.parts.composer.setFocus()
        self.fallbacks = FallbackFaces([reading_font()], self)

    def state(self) -> WindowState:
        """The present state, without drafts."""
        geometry = bytes(self.saveGeometry().toBase64().data()).decode()
        parts = self.parts
        shown = self.controller.shown.session_id if self.controller.shown is not None else None
        panels = parts.wants_sidebar, parts.wants_inspector
        width = parts.sidebar.wanted_width
        colours, recent = parts.transcript.measure.value, tuple(map(str, self.transfers.recent))
        typed = parts.pinned.unwritten(), parts.cards.typed
        return WindowState(geometry, *panels, self.presenter.mode.value, (), colours, shown, width, recent, *typed)

    def come_forward(self) -> None:
        """Brings the window to the front and activates it."""
        come_forward(self)

    # ---- wiring -------------------------------------------------------------------------------------------------

    @cached_property
    def popover(self) -> SetupPopover:
        """The popover of the session's settings, made when first needed."""
        from ui.setup.popover import SetupPopover

        made = SetupPopover(self.setup, self.parts.top.model, self.parts)
        self.escape.add(Closes.POPOVER, made, made.close_again)
        made.model.change_button.clicked.connect(self.controller.models.ask_menu)
        made.model.compare_button.clicked.connect(made.close_again)
        made.model.compare_button.clicked.connect(self.controller.comparison.ask_menu)
        made.model.more_button.clicked.connect(self._open_models)
        self.controller.shelf.downloads_changed.connect(made.model.adapter_field.show_downloads)
        made.model.adapter_field.show_downloads(self.controller.shelf.downloads)
        self.controller.status_changed.connect(made.show_status)
        made.show_status(self.controller.workbench.status)
        made.sampling.options.bytes_of = lambda token: b"".join(self.controller.token_bytes([token]))
        return made

    @cached_property
    def settings(self) -> SettingsWindow:
        from ui.settings import SettingsWindow

        made = SettingsWindow(self.controller, self)
        made.shown.connect(lambda view: self.apply(view.values))
        made.colours_wanted.connect(self.presenter.colour_by)
        made.appearance.show_measure(self.parts.transcript.measure)
        self.presenter.measure_changed.connect(made.appearance.show_measure)
        return made

    def _close_popover(self) -> None:
        """Closes the popover, if it was ever made."""
        if "popover" in vars(self):
            self.popover.close_again()

    def _close_card(self) -> None:
        self.parts.pinned.close_again()
        self.parts.transcript.tokens.set_ghost(None)

    def _wire_setup(self) -> None:
        controller = self.controller
        self.parts.top.model.setup_wanted.connect(lambda: self.popover.open())
        new = self.acts.new_session.triggered, self.parts.top.new_button.clicked
        for over in (self.parts.composer.sent, self.parts.top.model.chosen, *new):
            over.connect(lambda *_: self._close_popover())
        self.parts.composer.roles.clicked.connect(lambda: self.settings.open())
        self.parts.composer.setup_button.clicked.connect(lambda: self.popover.toggle(SAMPLING))
        self._wire_models()
        for news in (
            controller.session_shown,
            controller.models.listed,
            controller.activity_changed,
            controller.status_changed,
        ):
            news.connect(self._refresh_setup)

    def _wire_files(self) -> None:
        composer, self.dropped = self.parts.composer, DroppedFiles(self)
        composer.field.picture_pasted.connect(lambda: self.dropped.refuse_pictures(""))
        self.dropped.text_wanted.connect(composer.attach_wanted)
        self.dropped.session_wanted.connect(self.transfers.take)
        self.transfers.opening.connect(self.parts.sidebar.sessions.search.clear)
        self.dropped.model_wanted.connect(self.open_file)
        self.dropped.refused.connect(composer.refuse_file)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if files_of(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        event.acceptProposedAction()
        self.take_files(files_of(event.mimeData()))

    def take_files(self, paths: Sequence[Path]) -> None:
        """Takes files that were dropped on the window, or pasted into one of its fields."""
        self.parts.composer.notice.clear()
        self.dropped.take(paths)

    def _wire_models(self) -> None:
        for wanted in (
            self.controller.models.none_here,
            self.parts.top.model.more_wanted,
            self.parts.first.more_button.clicked,
        ):
            wanted.connect(self._open_models)
        self.parts.first.import_button.clicked.connect(self._import_model)
        self.controller.models.does_not_fit.connect(self._show_load)
        shelf = self.controller.shelf
        for added in (shelf.import_ended, shelf.folder_added):
            added.connect(self._show_installed)
        shelf.quantised.connect(lambda _name, made: self._show_installed(made))
        shelf.quantise_ended.connect(self._show_not_quantised)
        shelf.refused.connect(self._show_refused)
        self.parts.status.downloads.clicked.connect(lambda _checked=False: self.settings.open_models())
        self.parts.status.server.clicked.connect(self._open_server)
        self.controller.shelf.downloads_changed.connect(self.parts.status.show_downloads)
        self.presenter.mode_changed.connect(self.welcome.show_mode)
        self.presenter.mode_changed.connect(lambda _mode: self.tree.close())  # shows the conversation

    def _install_menu(self) -> None:
        """Installs the menus, and connects the buttons of the bar with their commands."""
        top = self.parts.top
        menu = top.menu_button.menu()
        self.acts.install(menu)
        top.menu_button.setVisible(not menu.isEmpty())
        top.sidebar_button.clicked.connect(self.acts.sidebar.trigger)
        top.inspector_button.clicked.connect(self.acts.inspector.trigger)
        score, token = self.acts.score, self.parts.inspector.token
        score.enabledChanged.connect(token.score_button.setEnabled)
        token.score_button.clicked.connect(score.trigger)
        for part, act in (
            (top.sidebar_button, self.acts.sidebar),
            (top.inspector_button, self.acts.inspector),
            (top.new_button, self.acts.new_session),
            (top.modes.buttons[Mode.READ], self.acts.read),
            (top.modes.buttons[Mode.TOKENS], self.acts.tokens),
            (self.parts.composer.setup_button, self.acts.sampling),
            (top.branch.back, self.acts.previous),
            (top.branch.forth, self.acts.next),
            (self.parts.sidebar.sessions.search, self.acts.search),
            *((finder.previous, self.acts.find_previous) for finder in (self.parts.finder, self.parts.tree.finder)),
            *((finder.next, self.acts.find_next) for finder in (self.parts.finder, self.parts.tree.finder)),
        ):
            keys = act.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
            part.setToolTip(plain_tooltip(self.tr("{0} ({1})").format(part.accessibleName(), keys)))

    def _refresh_setup(self) -> None:
        """Reads the session's settings again, while the popover is visible."""
        if "popover" in vars(self) and self.popover.isVisible():
            self.setup.ask()

    # ---- settings -----------------------------------------------------------------------------------------------

    def apply(self, values: AppSettings) -> None:
        """Applies the settings of the window's look."""
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        theme = apply_theme(application, Scheme(values.scheme), Contrast(values.contrast), Motion(values.motion))
        theme.show(OwnColours(values.own_colours), developer=values.developer == "on")
        resize_text(application, values.text_percent / 100)

    def _open_server(self) -> None:
        from ui.settings import SERVER

        self.settings.open(SERVER)

    @property
    def _shows_models(self) -> bool:
        """Whether the page of models is visible, which shows results itself."""
        return "settings" in vars(self) and self.settings.models.isVisible()

    def _show_installed(self, name: str) -> None:
        if name and not self._shows_models:
            self.parts.toast.say(self.tr("{0} is installed").format(one_line(name)))

    def _show_not_quantised(self, name: str, why: str) -> None:
        if why:
            self._show_refused(self.tr("{0} was not quantised: {1}").format(one_line(name), why))

    def _show_refused(self, words: str) -> None:
        if not self._shows_models:
            self.presenter.refuse(words)

    def _open_models(self) -> None:
        self.settings.open_models(get=True)

    def _import_model(self) -> None:
        self._open_models()
        self.settings.models.ask_gguf()

    def open_file(self, path: Path) -> None:
        """Imports a file of sessions or a GGUF model, or adds a model folder to the shelf."""
        if path.is_dir():
            self.settings.open_models(get=True)
            self.controller.shelf.add_folder(path)
        elif path.suffix.lower() == ".gguf":
            self.settings.open_models(get=True)
            self.controller.shelf.plan_import(path)
        else:
            self.transfers.take(path)

    def _show_load(self, name: str) -> None:
        """Opens the page of models with the load plan of a model."""
        self.settings.open_models()
        self.controller.shelf.plan_load(name)

    def zoom_text(self, by: int) -> None:
        """Changes the text size of all windows by a number of per cent; 0 resets it."""
        self.controller.tasks.run(self._zoom_text(by))

    async def _zoom_text(self, by: int) -> None:
        settings = self.controller.workbench.settings
        async with self._zooming:
            now = (await settings.view()).values.text_percent
            rule = SETTING_RULES["text_percent"]
            wanted = min(max(now + by, rule.least), rule.most) if by else AppSettings().text_percent
            if wanted == now:
                return
            view = await settings.change("text_percent", wanted)
            self.apply(view.values)
            if "settings" in vars(self):
                self.settings.show_settings(view)

    def set_full_screen(self, full: bool) -> None:  # a state, not an option
        state = self.windowState()  # a maximised window is maximised again afterwards
        self.setWindowState(state | Qt.WindowState.WindowFullScreen if full else state & ~Qt.WindowState.WindowFullScreen)

    def changeEvent(self, event: QEvent) -> None:
        """Updates the command Full Screen, for the window manager may change the state too."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.WindowStateChange:
            self.acts.full_screen.setChecked(self.isFullScreen())

    def open_shortcuts(self) -> None:
        from ui.commands.shortcuts import ShortcutsBox

        ShortcutsBox(self.acts.shortcuts_of(), self).open()

    def open_documentation(self) -> None:
        """Shows the installed documentation."""
        from ui.commands.documentation import DocumentationBox

        DocumentationBox(self).open()

    def open_about(self) -> None:
        from ui.commands.about import AboutBox

        AboutBox(self).open()

    # ---- the end ------------------------------------------------------------------------------------------------

    def closeEvent(self, event: QCloseEvent) -> None:
        """Waits for the workbench to save and end (< 2 s), then closes; a second call has no effect."""
        if self._ended:
            super().closeEvent(event)
            return
        event.ignore()
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        self.parts.composer.put_aside()
        if self._keep_state is not None:
            self._keep_state(replace(self.state(), drafts=self.parts.composer.drafts()))
        self.setEnabled(False)
        if "settings" in vars(self):
            self.settings.close()
        try:
            await self.transfers.close()
            await self.controller.close()
        except Exception:  # the border: the window closes all the same
            logger.exception("closing failed; what was saved before is kept")
        self._ended = True
        self.close()
        self.closed.emit()
