"""The session list: grouped by day, searched, renamed in place, trashed with an undo."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, QPoint, Qt, QTimer, Signal
from PySide6.QtWidgets import QLineEdit, QMenu, QSizePolicy, QVBoxLayout, QWidget

from ui.port import SessionSummary
from ui.session_rows import SUMMARY, SessionRows, SessionsView
from ui.theme.fonts import interface_font
from ui.transcript.visible import one_line
from ui.widgets import Label, Notice

SEARCH_DELAY_MS = 150


class SessionPanel(QWidget):
    """Search field, list and undo bar.

    Signals carry session ids. Nothing here changes a session: the window asks the workbench and shows the answer.
    """

    chosen = Signal(int)
    renamed = Signal(int, str)
    pinned = Signal(int, bool)  # or not any more
    trashed = Signal(int)
    restored = Signal(int)  # wanted back out of the trash
    searched = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.search = QLineEdit()
        self.search.setObjectName("search")
        self.search.setFont(interface_font())
        self.search.setPlaceholderText(self.tr("Search all sessions"))
        self.search.setAccessibleName(self.tr("Search all sessions"))
        self.search.setMaxLength(200)
        self.rows = SessionRows(self)
        self.view = SessionsView(self.rows)
        self.view.setAccessibleName(self.tr("Sessions"))
        self.undo_bar = Notice("undo")
        self.undo_bar.acted.connect(self._restore)
        self._trashed: int | None = None  # the session that the bar speaks of
        self.nothing = Label(self.tr("nothing found"), "faint", interface_font(12.5))
        self.nothing.setContentsMargins(8, 10, 8, 4)
        self.nothing.hide()

        listed = QVBoxLayout()
        listed.setSpacing(0)
        listed.addWidget(self.search)
        listed.addWidget(self.view)
        listed.addWidget(self.nothing)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)  # counts only while the undo bar is there
        column.addLayout(listed)
        column.addWidget(self.undo_bar)

        self._delay = QTimer(self, singleShot=True, interval=SEARCH_DELAY_MS)
        self._delay.timeout.connect(lambda: self.searched.emit(self.search.text()))
        self.search.textChanged.connect(lambda _text: self._delay.start())
        self.view.clicked.connect(self._choose)
        self.view.activated.connect(self._choose)
        self.view.customContextMenuRequested.connect(self._menu)
        self.rows.renamed.connect(self.renamed)
        self.rows.modelReset.connect(self.view.updateGeometry)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)

    def show_sessions(self, sessions: Sequence[SessionSummary], now: float | None = None) -> None:
        """Shows these; `now` (seconds since the epoch) decides what today is."""
        moment = datetime.datetime.fromtimestamp(time.time() if now is None else now).astimezone()
        self.rows.take(sessions, moment)
        self.nothing.setVisible(not sessions and bool(self.search.text().strip()))

    def show_open(self, session_id: int | None) -> None:
        """Marks the session that is open."""
        self.rows.mark_open(session_id)

    def rename(self, session_id: int) -> None:
        """Turns the row into a text field."""
        index = self.rows.index_of(session_id)
        if index.isValid():
            self.view.setCurrentIndex(index)
            self.view.edit(index)

    def offer_undo(self, session_id: int, title: str, stopped: bool) -> None:  # a state, not an option
        """Says that a session went into the trash (and that its answer was stopped for it), and how to get it back."""
        words = self.tr("“{0}” is in the trash; its answer was stopped") if stopped else self.tr("“{0}” is in the trash")
        self._trashed = session_id
        self.undo_bar.say(words.format(one_line(title)), self.tr("Undo"))

    def withdraw_undo(self, session_id: int) -> None:
        """The session is back: nothing is said about it any more."""
        if session_id == self._trashed:
            self._trashed = None
            self.undo_bar.clear()

    def _restore(self) -> None:
        if self._trashed is not None:
            self.restored.emit(self._trashed)

    def _choose(self, index: QModelIndex) -> None:
        summary = index.data(SUMMARY)
        if isinstance(summary, SessionSummary):
            self.chosen.emit(summary.session_id)

    def _menu(self, at: QPoint) -> None:
        summary = self.view.indexAt(at).data(SUMMARY)
        if not isinstance(summary, SessionSummary) or summary.is_sample:
            return
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        pin = self.tr("Unpin") if summary.pinned else self.tr("Pin")
        menu.addAction(pin, lambda: self.pinned.emit(summary.session_id, not summary.pinned))
        menu.addAction(self.tr("Rename"), lambda: self.rename(summary.session_id))
        menu.addAction(self.tr("Move to Trash"), lambda: self.trashed.emit(summary.session_id))
        menu.popup(self.view.viewport().mapToGlobal(at))
