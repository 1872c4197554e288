"""Every action of the window with its shortcut and its menu."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QApplication, QMainWindow, QMenu

from ui.port import ExportFormat, translate
from ui.transcript import Measure
from ui.window.legend import name_of

Role = QAction.MenuRole
_MAC = sys.platform == "darwin"
STOP_KEYS = "Ctrl+."


class Actions(QObject):
    """The actions of one window. On macOS they stand in the menu bar, elsewhere under the menu button.

    Shortcuts are written with Ctrl, which Qt shows and takes as Cmd on macOS.

    Args:
        window: Owns them.
        exports: The formats that a session is exported as.
    """

    def __init__(self, window: QMainWindow, exports: Sequence[ExportFormat]) -> None:
        super().__init__(window)
        self._window = window
        self.new_session = self._make(self.tr("New Session"), "Ctrl+N")
        self.new_window = self._make(self.tr("New Window"), "Ctrl+Shift+N")
        self.rename = self._make(self.tr("Rename Session…"))
        self.pin = self._make(self.tr("Pin Session"))
        self.trash = self._make(self.tr("Move Session to Trash"))
        self.settings = self._make(self.tr("Settings…"), "Ctrl+,", role=Role.PreferencesRole)
        self.close = self._make(self.tr("Close"), "Ctrl+W")
        self.quit = self._make(self.tr("Quit Elsewise"), "Ctrl+Q", role=Role.QuitRole)
        self.undo = self._make(self.tr("Undo"), "Ctrl+Z")
        self.copy = self._make(self.tr("Copy"), "Ctrl+C")
        self.find = self._make(self.tr("Find in Session…"), "Ctrl+F")
        self.find_next = self._make(self.tr("Find Next"), "Ctrl+G")
        self.find_previous = self._make(self.tr("Find Previous"), "Ctrl+Shift+G")
        self.similar = self._make(self.tr("Similar Turns…"), "Ctrl+Shift+S")
        self.search = self._make(self.tr("Search Sessions"), "Ctrl+Shift+F")
        self.read = self._make(self.tr("Read"), "Ctrl+Shift+T", checkable=True)
        self.tokens = self._make(self.tr("Tokens"), "Ctrl+T", checkable=True)
        modes = QActionGroup(self)
        for mode in (self.read, self.tokens):
            modes.addAction(mode)
        self.colours = {measure: self._make(name_of(measure).capitalize(), checkable=True) for measure in Measure}
        colours = QActionGroup(self)
        for action in self.colours.values():
            colours.addAction(action)
        self.sidebar = self._make(self.tr("Sidebar"), "Ctrl+Alt+S", checkable=True)
        self.inspector = self._make(self.tr("Inspector"), "Ctrl+Alt+I", checkable=True)
        self.template = self._make(self.tr("Template Tokens"), checkable=True)
        self.pruned = self._make(self.tr("Pruned Branches"), checkable=True)
        self.prune = self._make(self.tr("Prune Branch"), "Ctrl+Alt+P")
        self.uncertain = self._make(self.tr("Next Uncertain Token"), "Ctrl+J")
        self.stop = self._make(self.tr("Stop"), STOP_KEYS)
        self.regenerate = self._make(self.tr("Regenerate"), "Ctrl+R")
        self.regenerate_exactly = self._make(self.tr("Regenerate Exactly"), "Ctrl+Shift+R")
        self.continue_answer = self._make(self.tr("Continue"), "Ctrl+Shift+Return")
        self.setup = self._make(self.tr("Model and Adapters…"), "Ctrl+Shift+M")
        self.sampling = self._make(self.tr("Sampling and System Prompt…"), "Ctrl+Shift+P")
        self.two_ways = self._make(self.tr("2 Continuations"), "Ctrl+Alt+2")
        self.four_ways = self._make(self.tr("4 Continuations"), "Ctrl+Alt+4")
        self.eight_ways = self._make(self.tr("8 Continuations"), "Ctrl+Alt+8")
        self.beams = self._make(self.tr("4 Beams"), "Ctrl+Alt+B")
        self.previous = self._make(self.tr("Previous Variant"), "Ctrl+[")
        self.next = self._make(self.tr("Next Variant"), "Ctrl+]")
        self.compare = self._make(self.tr("Compare with Another Branch"), "Ctrl+D")
        self.second = self._make(self.tr("Compare with a Model…"), "Ctrl+Shift+D")
        self.disagreement = self._make(self.tr("Next Disagreement"), "Ctrl+Shift+J")
        self.clear_cache = self._make(self.tr("Clear Cache"))
        self.import_file = self._make(self.tr("Import…"), "Ctrl+O")
        self.exports = {form: self._make(translate("Exports", form.menu), form.keys) for form in exports}
        self.minimise = self._make(self.tr("Minimise"), "Ctrl+M")
        self.zoom = self._make(self.tr("Zoom"))
        self.all_to_front = self._make(self.tr("Bring All to Front"))
        self.windows = self._menu(self.tr("Window"), self.minimise, self.zoom, None, self.all_to_front)
        self.recent = self._menu(self.tr("Import Recent"))
        self.about = self._make(self.tr("About Elsewise"), role=Role.AboutRole)

    @property
    def ways(self) -> dict[int, QAction]:
        """By how many continuations they give."""
        return {2: self.two_ways, 4: self.four_ways, 8: self.eight_ways}

    def menus(self) -> list[QMenu]:
        """The menus, in their order; the caller puts them into a menu bar or a popup."""
        branching = (*self.ways.values(), self.beams, None, self.prune, self.previous, self.next)
        return [
            self._menu(
                self.tr("File"),
                self.new_session,
                self.new_window,
                self.rename,
                self.pin,
                self.trash,
                None,
                self.settings,
                None,
                *self._transfers(),
                None,
                self.close,
                self.quit,
            ),
            self._menu(self.tr("Edit"), self.undo, self.copy, None, *self._finding()),
            self._view_menu(),
            self._session_menu(*branching, self.compare, self.second),
            self.windows,
            self._menu(self.tr("Help"), self.about),
        ]

    def _transfers(self) -> list[QAction]:
        return [self.import_file, self.recent.menuAction(), *self.exports.values()]

    def install(self, popup: QMenu) -> None:
        """Into the menu bar on macOS, into `popup` elsewhere; the shortcuts belong to the window either way."""
        for menu in self.menus():
            if _MAC:
                self._window.menuBar().addMenu(menu)
            else:
                popup.addMenu(menu)

    def _make(self, words: str, keys: str = "", *, checkable: bool = False, role: QAction.MenuRole = Role.NoRole) -> QAction:
        action = QAction(words, self._window, checkable=checkable)
        action.setMenuRole(role)
        if keys:
            action.setShortcut(QKeySequence(keys))
        self._window.addAction(action)
        return action

    def _session_menu(self, *branching: QAction | None) -> QMenu:
        answers = (self.stop, self.regenerate, self.regenerate_exactly, self.continue_answer)
        return self._menu(
            self.tr("Session"), *answers, None, *branching, None, self.setup, self.sampling, None, self.clear_cache
        )

    def _finding(self) -> tuple[QAction, ...]:
        return self.find, self.find_next, self.find_previous, self.similar, self.search

    def _view_menu(self) -> QMenu:
        menu = self._menu(self.tr("View"), self.read, self.tokens, self.template, self.pruned)
        menu.addMenu(self._menu(self.tr("Colour By"), *self.colours.values()))
        for entry in (None, self.sidebar, self.inspector, None, self.uncertain, self.disagreement):
            menu.addSeparator() if entry is None else menu.addAction(entry)
        return menu

    def _menu(self, title: str, *entries: QAction | None) -> QMenu:
        menu = QMenu(title, self._window)
        for entry in entries:
            if entry is None:
                menu.addSeparator()
            else:
                menu.addAction(entry)
        return menu


def copy_focused() -> None:
    """Copies from whatever has the keyboard: the menu's Copy is the key that the widget would have got."""
    focused = QApplication.focusWidget()
    if focused is not None:
        key = QKeyEvent(QEvent.Type.KeyPress, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
        focused.keyPressEvent(key)  # sent as an event it would come back here as the shortcut


def connect(action: QAction, do: Callable[[], object]) -> None:
    """Runs `do` when the action is triggered; `triggered` itself passes a flag nobody wants."""
    action.triggered.connect(lambda _checked=False: do())
