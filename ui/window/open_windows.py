"""The Window menu: what every window can do with itself, and the way to all others of the app."""

from __future__ import annotations

from functools import partial

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMainWindow

from ui.actions import Actions, connect
from ui.transcript.visible import one_line

TITLE_MOST = 60  # characters of a title in the menu


def wire_window_menu(window: QMainWindow, acts: Actions) -> None:
    """Connects what the menu has, and lists, each time it opens, the windows that are open then."""
    menu = acts.windows
    listed: list[QAction] = []

    def show_open() -> None:
        for action in listed:
            menu.removeAction(action)
            action.deleteLater()
        listed.clear()
        listed.append(menu.addSeparator())
        for each in open_windows():
            title = one_line(each.windowTitle())
            action = menu.addAction(_plain(title))
            action.setCheckable(True)
            action.setChecked(each is window)
            connect(action, partial(come_forward, each))
            listed.append(action)

    connect(acts.minimise, window.showMinimized)
    connect(acts.zoom, partial(zoom, window))
    connect(acts.all_to_front, all_to_front)
    menu.aboutToShow.connect(show_open)


def open_windows() -> list[QMainWindow]:
    """The windows of the app that can be seen or were minimised, by their titles."""
    tops = (widget for widget in QApplication.topLevelWidgets() if isinstance(widget, QMainWindow))
    return sorted((window for window in tops if window.isVisible()), key=lambda window: (window.windowTitle(), id(window)))


def come_forward(window: QMainWindow) -> None:
    """In front of all others, with the keyboard, also where it was minimised."""
    if window.isMinimized():
        window.showNormal()
    window.raise_()
    window.activateWindow()


def zoom(window: QMainWindow) -> None:
    """As large as the screen, and back."""
    window.showNormal() if window.isMaximized() else window.showMaximized()


def all_to_front() -> None:
    """Every window of the app in front of those of others; minimised ones stay where they are, the active one is the first."""
    active = QApplication.activeWindow()
    for window in open_windows():
        if not window.isMinimized():
            window.raise_()
    if active is not None:
        active.raise_()


def _plain(title: str) -> str:
    """A title as the text of a menu's entry: no letter of it is a key."""
    cut = title if len(title) <= TITLE_MOST else title[: TITLE_MOST - 1] + "…"
    return cut.replace("&", "&&")
