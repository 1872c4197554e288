"""The commands of a window as one table: menu, words, key, function, and when they are enabled."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMenu

from ui.commands.menu import all_to_front, list_recent, list_windows, press, zoom
from ui.controller.setup import MODEL, SAMPLING, SYSTEM
from ui.core.shown import Fork, Shown
from ui.port import QT_TRANSLATE_NOOP, EngineState, SessionSummary, StatusView, TurnStatus, TurnView, translate
from ui.theme.scheme import current_theme
from ui.transcript import Measure, Mode
from ui.transcript.path import has_own_words
from ui.widgets.controls import allow
from ui.window.legend import name_of

if TYPE_CHECKING:
    from ui.window.window import MainWindow

Role = QAction.MenuRole
_MAC = sys.platform == "darwin"
STOP_KEYS = "Ctrl+."
TEXT_STEP = 10  # per cent
BEAMS = 4  # of the menu's command; the inspector offers more
FILE, EDIT, VIEW, SESSION, WINDOW, HELP = (
    QT_TRANSLATE_NOOP("Actions", "File"),
    QT_TRANSLATE_NOOP("Actions", "Edit"),
    QT_TRANSLATE_NOOP("Actions", "View"),
    QT_TRANSLATE_NOOP("Actions", "Session"),
    QT_TRANSLATE_NOOP("Actions", "Window"),
    QT_TRANSLATE_NOOP("Actions", "Help"),
)
MENUS = (FILE, EDIT, VIEW, SESSION, WINDOW, HELP)


class CommandState(Struct, frozen=True):
    """The state of the window that decides which commands are enabled."""

    shown: Shown | None
    running: bool  # an answer is under way in the session shown
    status: StatusView  # of the engine
    summary: SessionSummary | None  # of the session shown; None while it is not listed
    undo: str  # the label of the next step to undo; "" for none
    redo: str  # the label of the next step to redo; "" for none
    at_token: bool  # a token of an answer is pinned: continuations start there, else at the end of the last answer

    @property
    def own(self) -> bool:
        """Whether a session other than the sample is shown."""
        return self.shown is not None and not self.shown.view.is_sample

    @property
    def has_turns(self) -> bool:
        return self.shown is not None and bool(self.shown.view.turns)

    @property
    def has_words(self) -> bool:
        """Whether a turn has tokens other than the chat template's."""
        return self.shown is not None and any(has_own_words(turn.run) for turn in reversed(self.shown.view.turns))

    @property
    def has_branches(self) -> bool:
        """Whether the session has two branches at least."""
        return self.shown is not None and len(self.shown.view.branches) > 1

    @property
    def answer(self) -> TurnView | None:
        """The last answer of the path."""
        return self.shown.last_answer if self.shown is not None else None

    @property
    def fork(self) -> Fork | None:
        """The deepest turn of the path that has siblings."""
        return self.shown.fork if self.shown is not None else None

    @property
    def can_answer(self) -> bool:
        """Whether there is an answer, and the model can generate another one."""
        return self.answer is not None and not self.running and not self.status.lacks_model

    @property
    def can_continue(self) -> bool:
        """Whether the last answer was stopped or cut, and has text."""
        answer = self.answer
        return answer is not None and answer.status is TurnStatus.PARTIAL and has_own_words(answer.run) and self.can_answer

    def problem(self, control: str) -> str:
        """Why the model cannot do what a control needs; "" if it can."""
        if control == "branch" and not self.at_token:
            return ""
        return self.status.reason if self.status.lacks_model else self.status.lacking(control)

    def can_step(self, by: int) -> bool:
        """Whether there is a sibling `by` places away."""
        return self.fork is not None and self.fork.step(by) is not None


class Actions(QObject):
    """The actions of one window, in the menu bar on macOS, elsewhere under the menu button.

    Shortcuts are written with Ctrl, which Qt shows and takes as Cmd on macOS. Actions without `can` are always enabled, or are
    enabled by another part of the window.
    """

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._entries: list[tuple[str, QAction | None]] = []  # menu, action; None: a separator
        self._can: dict[QAction, tuple[Callable[[CommandState], bool], str]] = {}  # condition, and the control in `NEEDS`
        self._exclusive: defaultdict[str, QActionGroup] = defaultdict(lambda: QActionGroup(self))
        w, command = window, self._command
        # fmt: off
        self.new_session = command(FILE, self.tr("New Session"), lambda: w.intents.new_session(), "Ctrl+N")
        self.new_window = command(FILE, self.tr("New Window"), lambda: w.window_wanted.emit(None), "Ctrl+Shift+N")
        self.rename = command(FILE, self.tr("Rename Session…"), lambda: w.intents.rename(), can=lambda now: now.own)
        self.title = command(FILE, self.tr("Title by the Model"), lambda: w.intents.rename_by_model(),
            can=lambda now: now.own and now.has_turns and not now.running and not now.status.lacks_model)
        self.pin = command(FILE, self.tr("Pin Session"), lambda: w.controller.sessions.pin_shown(),
            can=lambda now: now.own and now.summary is not None)
        self.trash = command(FILE, self.tr("Move Session to Trash"), lambda: w.controller.sessions.trash_shown(),
            can=lambda now: now.summary is not None)
        self.settings = command(FILE, self.tr("Settings…"), lambda: w.settings.open(), "Ctrl+,",
            separated=True, role=Role.PreferencesRole)
        self.import_file = command(FILE, self.tr("Import…"), lambda: w.transfers.ask_import(), "Ctrl+O", separated=True)
        self.recent = self._submenu(FILE, self.tr("Import Recent"))
        self.exports = {form: command(FILE, translate("Exports", form.menu), partial(w.transfers.ask_export, form), form.keys,
            can=lambda now: now.has_turns) for form in w.transfers.formats}
        self.close = command(FILE, self.tr("Close"), lambda: w.close(), "Ctrl+W", separated=True)
        self.quit = command(FILE, self.tr("Quit Elsewise"), lambda: w.quit_wanted.emit(), "Ctrl+Q", role=Role.QuitRole)

        self.undo = command(EDIT, self.tr("Undo"), lambda: w.controller.undo_stack.undo(), "Ctrl+Z",
            can=lambda now: bool(now.undo))
        self.redo = command(EDIT, self.tr("Redo"), lambda: w.controller.undo_stack.redo(), "Ctrl+Shift+Z",
            can=lambda now: bool(now.redo))
        self.cut = command(EDIT, self.tr("Cut"), lambda: press(Qt.Key.Key_X), "Ctrl+X", separated=True)
        self.copy = command(EDIT, self.tr("Copy"), lambda: press(Qt.Key.Key_C), "Ctrl+C")
        self.paste = command(EDIT, self.tr("Paste"), lambda: w.intents.paste(), "Ctrl+V")
        self.select_all = command(EDIT, self.tr("Select All"), lambda: press(Qt.Key.Key_A), "Ctrl+A")
        self.find = command(EDIT, self.tr("Find in Session…"), lambda: w.intents.finder.open(), "Ctrl+F", separated=True)
        self.find_next = command(EDIT, self.tr("Find Next"), lambda: w.intents.finder.step(+1), "Ctrl+G")
        self.find_previous = command(EDIT, self.tr("Find Previous"), lambda: w.intents.finder.step(-1), "Ctrl+Shift+G")
        self.similar = command(EDIT, self.tr("Similar Turns…"), lambda: w.similar.look(), "Ctrl+Shift+S",
            can=lambda now: now.has_words, needs="similar")
        self.search = command(EDIT, self.tr("Search Sessions"), lambda: w.intents.search(), "Ctrl+Shift+F")

        self.read = command(VIEW, self.tr("Read"), lambda: w.presenter.set_mode(Mode.READ), "Ctrl+1", exclusive="mode")
        self.tokens = command(VIEW, self.tr("Tokens"), lambda: w.presenter.set_mode(Mode.TOKENS), "Ctrl+2", exclusive="mode")
        self.tree = command(VIEW, self.tr("Tree of the Session"), lambda: w.tree.toggle(), "Ctrl+T",
            can=lambda now: now.has_turns)
        self.template = command(VIEW, self.tr("Template Tokens"),
            lambda: w.parts.transcript.set_template_visible(w.acts.template.isChecked()), checkable=True)
        self.pruned = command(VIEW, self.tr("Pruned Branches"), lambda: w.intents.show_pruned(w.acts.pruned.isChecked()),
            checkable=True)
        by = self._submenu(VIEW, self.tr("Colour By"))
        self.colours = {measure: command("", name_of(measure).capitalize(),
            partial(lambda m: w.presenter.colour_by(m), measure), exclusive="colours") for measure in Measure}
        by.addActions(list(self.colours.values()))
        self.sidebar = command(VIEW, self.tr("Sidebar"), lambda: w.parts.show_sidebar(w.acts.sidebar.isChecked()),
            "Ctrl+Alt+S", separated=True, checkable=True)
        self.inspector = command(VIEW, self.tr("Inspector"), lambda: w.parts.show_inspector(w.acts.inspector.isChecked()),
            "Ctrl+Alt+I", checkable=True)
        self.full_screen = command(VIEW, self.tr("Full Screen"), lambda: w.set_full_screen(w.acts.full_screen.isChecked()),
            "Ctrl+Meta+F" if _MAC else "F11", checkable=True)
        self.larger = command(VIEW, self.tr("Larger Text"), lambda: w.zoom_text(+TEXT_STEP), "Ctrl++", separated=True)
        self.smaller = command(VIEW, self.tr("Smaller Text"), lambda: w.zoom_text(-TEXT_STEP), "Ctrl+-")
        self.usual = command(VIEW, self.tr("Usual Text Size"), lambda: w.zoom_text(0), "Ctrl+0")
        self.uncertain = command(VIEW, self.tr("Next Uncertain Token"), lambda: w.presenter.next_uncertain(),
            "Ctrl+J", separated=True)
        self.disagreement = command(VIEW, self.tr("Next Disagreement"), lambda: w.presenter.comparison.next_disagreement(),
            "Ctrl+Shift+J")

        self.stop = command(SESSION, self.tr("Stop"), lambda: w.controller.answers.stop(), STOP_KEYS,
            can=lambda now: now.running)
        self.regenerate = command(SESSION, self.tr("Regenerate"), lambda: w.controller.answers.regenerate(), "Ctrl+R",
            can=lambda now: now.can_answer)
        self.regenerate_exactly = command(SESSION, self.tr("Regenerate Exactly"),
            lambda: w.controller.answers.regenerate_exactly(),
            "Ctrl+Shift+R", can=lambda now: now.can_answer and now.answer is not None and now.answer.can_repeat)
        self.continue_answer = command(SESSION, self.tr("Continue"), lambda: w.controller.answers.continue_turn(),
            "Ctrl+Shift+Return",
            can=lambda now: now.can_continue)
        self.two_ways = command(SESSION, self.tr("2 Continuations"), lambda: w.intents.find_columns(2, beams=False),
            "Ctrl+Alt+2", can=lambda now: now.can_answer, needs="branch", separated=True)
        self.four_ways = command(SESSION, self.tr("4 Continuations"), lambda: w.intents.find_columns(4, beams=False),
            "Ctrl+Alt+4", can=lambda now: now.can_answer, needs="branch")
        self.eight_ways = command(SESSION, self.tr("8 Continuations"), lambda: w.intents.find_columns(8, beams=False),
            "Ctrl+Alt+8", can=lambda now: now.can_answer, needs="branch")
        self.beams = command(SESSION, self.tr("4 Beams"), lambda: w.intents.find_columns(BEAMS, beams=True), "Ctrl+Alt+B",
            can=lambda now: now.can_answer, needs="beams")
        self.prune = command(SESSION, self.tr("Prune Branch"), lambda: w.intents.prune(), "Ctrl+Alt+P",
            can=lambda now: now.has_branches and not now.running, separated=True)
        self.previous = command(SESSION, self.tr("Previous Variant"), lambda: w.controller.tree.step_variant(-1), "Ctrl+[",
            can=lambda now: now.can_step(-1))
        self.next = command(SESSION, self.tr("Next Variant"), lambda: w.controller.tree.step_variant(+1), "Ctrl+]",
            can=lambda now: now.can_step(+1))
        self.compare = command(SESSION, self.tr("Compare with Another Branch"), lambda: w.intents.compare(), "Ctrl+D",
            can=lambda now: now.has_branches)
        self.compare_model = command(SESSION, self.tr("Compare with a Model…"), lambda: w.controller.comparison.ask_menu(),
            "Ctrl+Shift+D", can=lambda now: now.has_turns and not now.status.lacks_model)
        self.score = command(SESSION, self.tr("Score Session"), lambda: w.transfers.score(),
            can=lambda now: now.has_turns and not now.running, needs="score")
        self.setup = command(SESSION, self.tr("Model and Adapters…"), lambda: w.popover.toggle(MODEL), "Ctrl+Shift+M",
            separated=True)
        self.system = command(SESSION, self.tr("System Prompt…"), lambda: w.popover.toggle(SYSTEM))
        self.sampling = command(SESSION, self.tr("Sampling…"), lambda: w.popover.toggle(SAMPLING), "Ctrl+Shift+P")
        self.clear_cache = command(SESSION, self.tr("Clear Cache"), lambda: w.controller.cache.clear(), separated=True,
            can=lambda now: now.status.engine in (EngineState.READY, EngineState.BUSY), needs="cache")

        self.minimise = command(WINDOW, self.tr("Minimise"), lambda: w.showMinimized(), "Ctrl+M")
        self.zoom = command(WINDOW, self.tr("Zoom"), lambda: zoom(w))
        self.all_to_front = command(WINDOW, self.tr("Bring All to Front"), all_to_front, separated=True)

        self.shortcuts = command(HELP, self.tr("Keyboard Shortcuts"), lambda: w.open_shortcuts(), "Ctrl+/")
        self.documentation = command(HELP, self.tr("Documentation"), lambda: w.open_documentation(), "F1")
        self.about = command(HELP, self.tr("About Elsewise"), lambda: w.open_about(), role=Role.AboutRole)
        # fmt: on
        if not _MAC:
            self.redo.setShortcuts([self.redo.shortcut(), QKeySequence("Ctrl+Y")])  # as in fields
        self.larger.setShortcuts([self.larger.shortcut(), QKeySequence("Ctrl+=")])  # the same key without Shift
        theme = current_theme()
        theme.developer_changed.connect(self.clear_cache.setVisible)
        self.clear_cache.setVisible(theme.developer)
        self.recent.aboutToShow.connect(lambda: list_recent(self.recent, w.transfers))
        self.windows = self._menu(WINDOW)
        list_windows(self.windows, window)

    def refresh(self, now: CommandState) -> None:
        """Enables the actions that are possible now."""
        for action, (can, needs) in self._can.items():
            allow(action, can(now), now.problem(needs) if needs else "")
        pinned = now.summary is not None and now.summary.pinned
        self.pin.setText(self.tr("Unpin Session") if pinned else self.tr("Pin Session"))
        self.undo.setText(self.tr("Undo {0}").format(now.undo) if now.undo else self.tr("Undo"))
        self.redo.setText(self.tr("Redo {0}").format(now.redo) if now.redo else self.tr("Redo"))

    def menus(self) -> list[QMenu]:
        """The menus, in their order; the caller puts them into a menu bar or a popup."""
        return [self.windows if menu == WINDOW else self._menu(menu) for menu in MENUS]

    def shortcuts_of(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """For each menu, its commands with a shortcut: words, and the keys as the system writes them."""
        rows: dict[str, list[tuple[str, str]]] = {menu: [] for menu in MENUS}
        for menu, act in self._entries:
            if menu in rows and act is not None and not act.shortcut().isEmpty():
                rows[menu].append((act.text(), act.shortcut().toString(QKeySequence.SequenceFormat.NativeText)))
        return [(translate("Actions", menu), keyed) for menu, keyed in rows.items() if keyed]

    def install(self, popup: QMenu) -> None:
        """Adds the menus to the menu bar on macOS, to `popup` elsewhere."""
        for menu in self.menus():
            if _MAC:
                self._window.menuBar().addMenu(menu)
            else:
                popup.addMenu(menu)

    def _command(
        self,
        menu: str,
        words: str,
        run: Callable[[], object],
        keys: str = "",
        *,
        can: Callable[[CommandState], bool] | None = None,
        needs: str = "",
        separated: bool = False,
        checkable: bool = False,
        exclusive: str = "",
        role: QAction.MenuRole = Role.NoRole,
    ) -> QAction:
        """A row of the table: an action at the end of its menu, after a separator if it is `separated`.

        The action is disabled, and its tooltip says why, if the model lacks what it `needs` (`ui.port.engine.NEEDS`). One of
        the actions with the same `exclusive` name is checked.
        """
        action = QAction(words, self._window)
        action.setMenuRole(role)
        action.setCheckable(checkable or bool(exclusive))
        if exclusive:
            self._exclusive[exclusive].addAction(action)
        if keys:
            action.setShortcut(QKeySequence(keys))
        if can is not None:
            self._can[action] = can, needs
        if separated:
            self._entries.append((menu, None))
        self._entries.append((menu, action))
        action.triggered.connect(lambda _checked=False: run())
        self._window.addAction(action)
        return action

    def _submenu(self, menu: str, words: str) -> QMenu:
        made = QMenu(words, self._window)
        self._entries.append((menu, made.menuAction()))
        return made

    def _menu(self, name: str) -> QMenu:
        menu = QMenu(translate("Actions", name), self._window)
        menu.setToolTipsVisible(True)
        for where, action in self._entries:
            if where == name:
                menu.addSeparator() if action is None else menu.addAction(action)
        return menu
