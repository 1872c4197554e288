"""Menus that are filled when they open (recent files, windows), and commands that act on windows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QAction, QKeyEvent
from PySide6.QtWidgets import QApplication, QMainWindow, QMenu

from ui.port import translate
from ui.widgets.visible import one_line
from ui.window.transfers import TransferQueue


def list_recent(menu: QMenu, transfers: TransferQueue) -> None:
    """Fills a menu with the recent files; missing ones are disabled."""
    menu.clear()
    for path in transfers.recent:
        action = menu.addAction(_plain(f"{path.name} – {path.parent}", most=None), partial(transfers.take, path))
        action.setEnabled(path.exists())
    if transfers.recent:
        menu.addSeparator()
        menu.addAction(translate("RecentFiles", "Clear Menu"), transfers.recent.clear)
    else:
        menu.addAction(translate("RecentFiles", "No recent files")).setEnabled(False)


def known_paths(held: object) -> list[Path]:
    """The paths in the stored state of a window; other values are skipped."""
    return [Path(each) for each in held if isinstance(each, str)] if isinstance(held, list | tuple) else []


TITLE_MOST = 60  # characters of a title in the menu


def list_windows(menu: QMenu, window: QMainWindow) -> None:
    """Appends the open windows to a menu, each time it opens."""
    listed: list[QAction] = []

    def show_open() -> None:
        for action in listed:
            menu.removeAction(action)
            action.deleteLater()
        listed.clear()
        listed.append(menu.addSeparator())
        for each in open_windows():
            action = menu.addAction(_plain(each.windowTitle()), partial(come_forward, each))
            action.setCheckable(True)
            action.setChecked(each is window)
            listed.append(action)

    menu.aboutToShow.connect(show_open)


def open_windows() -> list[QMainWindow]:
    """The visible and minimised windows of the app, by title."""
    tops = (widget for widget in QApplication.topLevelWidgets() if isinstance(widget, QMainWindow))
    return sorted((window for window in tops if window.isVisible()), key=lambda window: (window.windowTitle(), id(window)))


def come_forward(window: QMainWindow) -> None:
    """Brings a window to the front and activates it, also if it was minimised."""
    if window.isMinimized():
        window.showNormal()
    window.raise_()
    window.activateWindow()


def zoom(window: QMainWindow) -> None:
    """Maximises a window, or restores it."""
    window.showNormal() if window.isMaximized() else window.showMaximized()


def all_to_front() -> None:
    """Raises all windows of the app but minimised ones, the active one last."""
    active = QApplication.activeWindow()
    for window in open_windows():
        if not window.isMinimized():
            window.raise_()
    if active is not None:
        active.raise_()


def press(key: Qt.Key) -> None:
    """Sends Ctrl and a key to the focused widget, for entries such as Copy."""
    focused = QApplication.focusWidget()
    if focused is not None:
        event = QKeyEvent(QEvent.Type.KeyPress, key, Qt.KeyboardModifier.ControlModifier)
        focused.keyPressEvent(event)  # an event sent through Qt would trigger this shortcut again


def _plain(title: str, most: int | None = TITLE_MOST) -> str:
    """A title as the text of a menu entry: on one line, cut, and without mnemonics."""
    title = one_line(title)
    cut = title if most is None or len(title) <= most else title[: most - 1] + "…"
    return cut.replace("&", "&&")
