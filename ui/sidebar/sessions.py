"""The session list: grouped by day, searched, renamed in place, trashed with an undo."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QEvent, QModelIndex, QObject, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QMenu, QSizePolicy, QWidget

from ui.port import FolderView, SessionSummary, TrashedSession
from ui.sidebar.session_list import SessionsView
from ui.sidebar.session_rows import IS_OPEN, SUMMARY, Found, Head, SessionRows
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, column_of, row
from ui.widgets.fields import LineEdit
from ui.widgets.labels import Label, Notice
from ui.widgets.visible import one_line

SEARCH_DELAY_MS = 150


class SessionPanel(QWidget):
    """Search field, list and undo bar.

    Signals carry session ids. Nothing here changes a session: the window asks the workbench and shows the answer.
    """

    chosen = Signal(int)
    found_chosen = Signal(int, object)  # a session, and the Hit to scroll to
    pinned = Signal(int, bool)  # True: pin, False: unpin
    trashed = Signal(int)
    restored = Signal(int)  # out of the trash
    searched = Signal(str)
    folder_wanted = Signal(str, object)  # name of a new folder, and the session to move into it or None
    folder_removed = Signal(int)
    trash_wanted = Signal(bool)  # True: show the trash, False: show the sessions
    emptied = Signal(list)  # sessions to delete for good
    window_wanted = Signal(int)  # open a session in a new window

    def __init__(self) -> None:
        super().__init__()
        self.search = LineEdit()
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
        self._trashed: int | None = None  # the session that the undo bar restores
        self.question = Notice("undo")
        self.question.acted.connect(self._empty)
        self.question.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._to_delete: list[int] = []  # sessions, once the question is confirmed
        self._folders: Sequence[FolderView] = ()
        self._trash: Sequence[TrashedSession] | None = None  # None while the sessions are shown
        self._folder_to_name: int | None = None  # a new folder, whose name is edited once it is listed
        self._session_to_rename: int | None = None  # its title is edited once it is listed
        self.nothing = Label(self.tr("nothing found"), "faint", interface_font(12.5))
        self.nothing.setContentsMargins(8, 10, 8, 4)
        self.nothing.hide()
        self.clear_button = button(self.tr("Show all sessions"), "link")
        self.clear_button.clicked.connect(self.search.clear)
        self.clear_button.hide()

        way_out = row(self.clear_button, 1)
        way_out.setContentsMargins(8, 0, 0, 0)
        listed = column_of(self.search, self.view, self.nothing, way_out, spacing=0)
        # the space is visible only beside the undo bar and the question
        column_in(self, listed, self.undo_bar, self.question, spacing=6)

        self._delay = QTimer(self, singleShot=True, interval=SEARCH_DELAY_MS)
        self._delay.timeout.connect(lambda: self.searched.emit(self.search.text()))
        self.search.textChanged.connect(self._begin_search)
        self._searching = False  # the list does not show the results of the current words yet
        self._focus_results = False  # focus the first session when the results are there
        self.search.installEventFilter(self)
        self.view.clicked.connect(self._choose)
        self.view.activated.connect(self._choose)
        self.view.customContextMenuRequested.connect(self._menu)
        self.view.itemDelegate().closeEditor.connect(self._edited)
        self.rows.layoutChanged.connect(self.view.updateGeometry)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)

    def show_sessions(
        self, sessions: Sequence[SessionSummary], now: float | None = None, folders: Sequence[FolderView] = ()
    ) -> None:
        """Shows sessions; `now` (seconds since the epoch) decides what today is."""
        self._folders, self._trash = folders, None
        self.question.clear()
        moment = datetime.datetime.fromtimestamp(time.time() if now is None else now).astimezone()
        searched = bool(self.search.text().strip())
        found = {session.folder_id for session in sessions} if searched else None
        self.rows.take(sessions, moment, [each for each in folders if found is None or each.folder_id in found])
        self.nothing.setText(self.tr("nothing found"))
        self.nothing.setVisible(not sessions and searched)
        self.clear_button.setVisible(not sessions and searched)
        self._searching = self._delay.isActive()
        if self._focus_results and not self._searching:
            self._focus_first()
        if self._folder_to_name is not None and self.rows.index_of_folder(self._folder_to_name).isValid():
            folder, self._folder_to_name = self._folder_to_name, None
            self._edit(self.rows.index_of_folder(folder))
        self._edit_title()

    def show_trash(self, sessions: Sequence[TrashedSession]) -> None:
        """Shows the trash until the next `show_sessions`."""
        self._trash = sessions
        self.question.clear()
        self.clear_button.hide()
        self.nothing.setText(self.tr("nothing in the trash"))
        self.nothing.setVisible(not sessions)
        self.rows.take_trash(sessions)

    def name_folder(self, folder_id: int) -> None:
        """Edits the name of a new folder as soon as it is listed."""
        self._folder_to_name = folder_id

    def rename(self, session_id: int) -> None:
        """Edits a title in the list; opens its folder, and leaves a search or the trash if necessary."""
        self._session_to_rename = session_id
        self._edit_title()
        if self._session_to_rename is not None:
            self.search.clear()
            self._delay.stop()
            self.searched.emit("")

    def _edit_title(self) -> None:
        if self._session_to_rename is None:
            return
        self.rows.reveal(self._session_to_rename)
        index = self.rows.index_of(self._session_to_rename)
        if index.isValid():
            self._session_to_rename = None
            self._edit(index)

    def edit_tags(self, session_id: int) -> None:
        self.rows.tagging = session_id
        self._edit(self.rows.index_of(session_id))

    def _edit(self, index: QModelIndex) -> None:
        if index.isValid():
            self.view.setCurrentIndex(index)
            self.view.edit(index)

    def _edited(self) -> None:
        self.rows.tagging = None

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The Down key moves the focus from the search field to the first session."""
        if watched is not self.search or not isinstance(event, QKeyEvent) or event.key() != Qt.Key.Key_Down:
            return False
        if event.type() is QEvent.Type.KeyPress:
            if self._searching:
                self._focus_results = True
                if self._delay.isActive():
                    self._delay.stop()
                    self.searched.emit(self.search.text())
            else:
                self._focus_first()
        return True

    def _begin_search(self) -> None:
        self._searching, self._focus_results = True, False
        self._delay.start()

    def _focus_first(self) -> None:
        self._focus_results = False
        rows = map(self.rows.index, range(self.rows.rowCount()))
        first = next((index for index in rows if isinstance(index.data(SUMMARY), SessionSummary | TrashedSession)), None)
        if first is not None:
            self.view.setCurrentIndex(first)
            self.view.setFocus(Qt.FocusReason.TabFocusReason)

    def offer_undo(self, session_id: int, title: str, stopped: bool) -> None:  # a state, not an option
        """Offers to restore a session that was moved to the trash; `stopped`: its answer was stopped for this."""
        words = self.tr("“{0}” is in the trash; its answer was stopped") if stopped else self.tr("“{0}” is in the trash")
        self._trashed = session_id
        self.undo_bar.say(words.format(one_line(title)), self.tr("Undo"))

    def withdraw_undo(self, session_id: int) -> None:
        """Hides the offer to restore this session."""
        if session_id == self._trashed:
            self._trashed = None
            self.undo_bar.clear()

    def _restore(self) -> None:
        if self._trashed is not None:
            self.restored.emit(self._trashed)

    def _choose(self, index: QModelIndex) -> None:
        row = index.data(SUMMARY)
        if isinstance(row, Found) or (isinstance(row, SessionSummary) and row.hit is not None):
            self.found_chosen.emit(row.session_id, row.hit)
        elif isinstance(row, SessionSummary):
            self.chosen.emit(row.session_id)
        elif isinstance(row, Head) and row.folder_id is not None:
            self.rows.toggle(row.folder_id)
        elif isinstance(row, Head) and row.opens:
            self.trash_wanted.emit(False)

    def ask_to_empty(self, session_ids: Sequence[int]) -> None:
        """Asks inline for confirmation before sessions are deleted for good."""
        self._to_delete = list(session_ids)
        if len(self._to_delete) == 1:
            words = self.tr("Delete this session permanently? This cannot be undone.")
        else:
            words = self.tr("Delete {0} sessions permanently? This cannot be undone.").format(len(self._to_delete))
        self.question.say(words, self.tr("Delete"))

    def _empty(self) -> None:
        self.question.clear()
        session_ids, self._to_delete = self._to_delete, []
        if session_ids:
            self.emptied.emit(session_ids)

    # ---- menus --------------------------------------------------------------------------------------------------------

    def _menu(self, at: QPoint) -> None:
        current = self.view.currentIndex()
        if self.view.by_key and current.isValid():  # Qt gives the middle of the list
            at = self.view.visualRect(current).center()
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        row = self.view.indexAt(at).data(SUMMARY)
        if isinstance(row, SessionSummary):
            opened = self.view.indexAt(at).data(IS_OPEN)
            own = menu.addAction(self.tr("Open in New Window"), lambda: self.window_wanted.emit(row.session_id))
            own.setEnabled(not opened)  # a session is open in one window at most
            if row.is_sample:
                menu.addAction(self.tr("Move to Trash"), lambda: self.trashed.emit(row.session_id))
            else:
                self._session_menu(menu, row)
        elif isinstance(row, TrashedSession):
            menu.addAction(self.tr("Put Back"), lambda: self.restored.emit(row.session_id))
            menu.addAction(self.tr("Delete Permanently…"), lambda: self.ask_to_empty([row.session_id]))
        elif isinstance(row, Head) and row.folder_id is not None:
            folder = row.folder_id
            menu.addAction(self.tr("Rename Folder"), lambda: self._edit(self.rows.index_of_folder(folder)))
            menu.addAction(self.tr("Remove Folder, Keep Its Sessions"), lambda: self.folder_removed.emit(folder))
        if self._trash is None:
            menu.addSeparator()
            menu.addAction(self.tr("New Folder"), lambda: self.folder_wanted.emit(self.tr("New folder"), None))
            menu.addAction(self.tr("Show Trash"), lambda: self.trash_wanted.emit(True))
        else:
            thrown = [each.session_id for each in self._trash]
            menu.addSeparator()
            menu.addAction(self.tr("Empty Trash…"), lambda: self.ask_to_empty(thrown)).setEnabled(bool(thrown))
            menu.addAction(self.tr("Show All Sessions"), lambda: self.trash_wanted.emit(False))
        menu.popup(self.view.viewport().mapToGlobal(at))

    def _session_menu(self, menu: QMenu, row: SessionSummary) -> None:
        number = row.session_id
        pin = self.tr("Unpin") if row.pinned else self.tr("Pin")
        menu.addAction(pin, lambda: self.pinned.emit(number, not row.pinned))
        menu.addAction(self.tr("Rename"), lambda: self.rename(number))
        menu.addAction(self.tr("Tags…"), lambda: self.edit_tags(number))
        into = menu.addMenu(self.tr("Move to Folder"))
        for folder in self._folders:
            name = one_line(folder.name).replace("&", "&&")
            chosen = into.addAction(name, partial(self.rows.moved.emit, number, folder.folder_id))
            chosen.setCheckable(True)
            chosen.setChecked(folder.folder_id == row.folder_id)
        into.addSeparator()
        into.addAction(self.tr("New Folder"), lambda: self.folder_wanted.emit(self.tr("New folder"), number))
        into.addAction(self.tr("None"), lambda: self.rows.moved.emit(number, None)).setEnabled(row.folder_id is not None)
        menu.addAction(self.tr("Move to Trash"), lambda: self.trashed.emit(number))
