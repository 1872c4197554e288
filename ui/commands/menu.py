"""What the menus list when they open: recent files, and the windows of the app; what acts on windows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QAction, QKeyEvent
from PySide6.QtWidgets import QApplication, QMainWindow, QMenu

from ui.port import translate
from ui.widgets.visible import one_line
from ui.window.transfers import Transfers


def list_recent(menu: QMenu, transfers: Transfers) -> None:
    """Lists them; those that are gone cannot be chosen."""
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
    """Paths as a window's state keeps them; anything else in it is passed over."""
    return [Path(each) for each in held if isinstance(each, str)] if isinstance(held, list | tuple) else []


TITLE_MOST = 60  # characters of a title in the menu


def list_windows(menu: QMenu, window: QMainWindow) -> None:
    """Each time the menu opens it has, behind what it has already, the windows that are open then."""
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


def press(key: Qt.Key) -> None:
    """An entry such as Copy is the key with Ctrl that the widget with the keyboard would have got."""
    focused = QApplication.focusWidget()
    if focused is not None:
        event = QKeyEvent(QEvent.Type.KeyPress, key, Qt.KeyboardModifier.ControlModifier)
        focused.keyPressEvent(event)  # sent as an event it would come back here as the shortcut


def _plain(title: str, most: int | None = TITLE_MOST) -> str:
    """A title as the text of a menu's entry, on one line: no letter of it is a key."""
    title = one_line(title)
    cut = title if most is None or len(title) <= most else title[: most - 1] + "…"
    return cut.replace("&", "&&")
