"""The menu of files that were imported or exported last: one of them is imported again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from ui.actions import connect
from ui.port import translate
from ui.transcript.visible import one_line
from ui.transferring import Transfers


def wire_recent(menu: QMenu, transfers: Transfers) -> None:
    """Lists them each time the menu opens; those that are gone cannot be chosen."""

    def add(words: str) -> QAction:
        return menu.addAction(one_line(words).replace("&", "&&"))

    def show_recent() -> None:
        menu.clear()
        for path in transfers.recent:
            action = add(f"{path.name} – {path.parent}")
            action.setEnabled(path.exists())
            connect(action, partial(transfers.take, path))
        if not transfers.recent:
            add(translate("RecentFiles", "No recent files")).setEnabled(False)
            return
        menu.addSeparator()
        connect(add(translate("RecentFiles", "Clear Menu")), transfers.recent.clear)

    menu.aboutToShow.connect(show_recent)


def known_paths(held: object) -> list[Path]:
    """Paths as a window's state keeps them; anything else in it is passed over."""
    return [Path(each) for each in held if isinstance(each, str)] if isinstance(held, list | tuple) else []
