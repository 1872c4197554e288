"""The model of the session list: the order of its rows, dragging, and editing in place."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct
from PySide6.QtCore import (
    QAbstractListModel,
    QMimeData,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
    Signal,
)

from ui.port import FolderView, Hit, SessionSummary, TrashedSession
from ui.theme.fonts import scaled
from ui.widgets.visible import one_line

ROW_HEIGHT = 29
LEAST_ROWS = 5  # visible in a list that does not fit
SUMMARY = int(Qt.ItemDataRole.UserRole)
IS_OPEN = SUMMARY + 1
MIME = "application/x-elsewise-session"  # carries the id of a dragged session

Index = QModelIndex | QPersistentModelIndex


class Head(Struct, frozen=True):
    """The heading of a group: pinned, a folder, a time, the trash."""

    name: str
    folder_id: int | None = None
    opens: str = ""  # what a click shows: "trash" or "sessions"
    count: int = 0
    is_closed: bool = False  # a folder whose sessions are not shown


class Found(Struct, frozen=True):
    """The line under a session that a search found: the words in their context."""

    session_id: int
    hit: Hit


Row = Head | SessionSummary | TrashedSession | Found


def replace_rows(
    model: QAbstractListModel, before: Sequence[Hashable], after: Sequence[Hashable], replace: Callable[[], None]
) -> None:
    """Replaces the rows of a model, identified by their keys: focus and an open editor move with their row."""
    model.layoutAboutToBeChanged.emit()
    replace()
    places = {key: place for place, key in enumerate(after)}
    held = model.persistentIndexList()
    model.changePersistentIndexList(held, [model.index(places.get(before[index.row()], -1)) for index in held])
    model.layoutChanged.emit()


class SessionRows(QAbstractListModel):
    """Headings and sessions in the order in which they are shown; or the trash.

    Sessions can be dragged within their group (pinned, a folder) and onto a folder's head.
    """

    renamed = Signal(int, str)
    folder_renamed = Signal(int, str)
    tagged = Signal(int, list)
    arranged = Signal(list)  # ids of a group in their new order
    moved = Signal(int, object)  # a session into a folder, or (None) out of it

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._rows: list[Row] = []
        self._places: dict[int, int] = {}  # of sessions
        self._open: int | None = None
        self._closed: set[int] = set()  # folders
        self._given: tuple[Sequence[SessionSummary], Sequence[FolderView], datetime.date] | None = None
        self._now = datetime.datetime.now().astimezone()  # of `_given`
        self.tagging: int | None = None  # the session whose tags are edited, where its title usually is

    def take(self, sessions: Sequence[SessionSummary], now: datetime.datetime, folders: Sequence[FolderView] = ()) -> None:
        """Shows sessions: the pinned ones, the folders, then the rest grouped by the time of their last change."""
        given = (list(sessions), list(folders), now.date())
        if given != self._given:
            self._given, self._now = given, now
            self._show(self._grouped(sessions, now, folders))

    def take_trash(self, sessions: Sequence[TrashedSession]) -> None:
        """Shows the trash instead of the sessions."""
        self._given = None
        self._show([Head(self.tr("‹ All sessions"), opens="sessions"), Head(self.tr("Trash"), count=len(sessions)), *sessions])

    def toggle(self, folder_id: int) -> None:
        """Shows or hides the sessions of a folder."""
        self._closed ^= {folder_id}
        if self._given is not None:
            sessions, folders, _ = self._given
            self._show(self._grouped(sessions, self._now, folders))

    def reveal(self, session_id: int) -> None:
        """Shows the sessions of the folder that a session is in."""
        sessions = self._given[0] if self._given is not None else ()
        folder = next((each.folder_id for each in sessions if each.session_id == session_id and not each.pinned), None)
        if folder is not None and folder in self._closed:
            self.toggle(folder)

    def mark_open(self, session_id: int | None) -> None:
        """Draws the row of this session as the open one."""
        before, self._open = self._open, session_id
        for each in {before} ^ {session_id}:  # empty if it is the same: its title may be in the middle of an edit
            if each in self._places:
                index = self.index(self._places[each])
                self.dataChanged.emit(index, index)

    def index_of(self, session_id: int) -> QModelIndex:
        """The index of a session; invalid if it is not listed."""
        return self.index(self._places[session_id]) if session_id in self._places else QModelIndex()

    def index_of_folder(self, folder_id: int) -> QModelIndex:
        """The index of a folder's heading; invalid if it is not listed."""
        for place, row in enumerate(self._rows):
            if isinstance(row, Head) and row.folder_id == folder_id:
                return self.index(place)
        return QModelIndex()

    def height(self) -> int:
        """Pixels of all rows together."""
        return scaled(ROW_HEIGHT) * len(self._rows)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own default, an immutable value
        return 0 if parent.isValid() else len(self._rows)

    def flags(self, index: Index) -> Qt.ItemFlag:
        if not index.isValid():
            return Qt.ItemFlag.ItemIsDropEnabled
        row = self._rows[index.row()]
        usable = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
        match row:
            case Head(folder_id=None, opens=""):
                return Qt.ItemFlag.NoItemFlags
            case Head(folder_id=None) | Found():
                return usable
            case Head():
                return usable | Qt.ItemFlag.ItemIsEditable | Qt.ItemFlag.ItemIsDropEnabled
            case SessionSummary(is_sample=True) | TrashedSession():
                return usable
        return usable | Qt.ItemFlag.ItemIsEditable | Qt.ItemFlag.ItemIsDragEnabled | Qt.ItemFlag.ItemIsDropEnabled

    def data(self, index: Index, role: int = int(Qt.ItemDataRole.DisplayRole)) -> object:
        if not index.isValid():
            return None
        row = self._rows[index.row()]
        match role:
            case int(role) if role == SUMMARY:
                return row
            case int(role) if role == IS_OPEN:
                return isinstance(row, SessionSummary) and row.session_id == self._open
            case Qt.ItemDataRole.DisplayRole:
                return one_line(_words(row))
            case Qt.ItemDataRole.EditRole:
                return self._editable(row)
            case Qt.ItemDataRole.AccessibleTextRole:
                return self._spoken(row)
            case Qt.ItemDataRole.ToolTipRole if isinstance(row, SessionSummary) and (row.answering or row.unseen):
                return self.tr("answering") if row.answering else self.tr("answered, not seen yet")
        return None

    def setData(self, index: Index, value: object, role: int = int(Qt.ItemDataRole.EditRole)) -> bool:
        row, text = self._rows[index.row()], " ".join(str(value).split())
        if role != Qt.ItemDataRole.EditRole or isinstance(row, TrashedSession | Found) or text == self._editable(row):
            return False
        if isinstance(row, SessionSummary) and self.tagging == row.session_id:
            self.tagged.emit(row.session_id, [tag for word in text.replace(",", " ").split() if (tag := word.lstrip("#"))])
        elif not text:
            return False
        elif isinstance(row, SessionSummary):
            self.renamed.emit(row.session_id, text)
        elif row.folder_id is not None:
            self.folder_renamed.emit(row.folder_id, text)
        return True

    # ---- dragging ---------------------------------------------------------------------------------------------------

    def supportedDropActions(self) -> Qt.DropAction:
        return Qt.DropAction.MoveAction

    def mimeTypes(self) -> list[str]:
        return [MIME]

    def mimeData(self, indexes: Sequence[QModelIndex]) -> QMimeData:
        carried = QMimeData()
        row = self._rows[indexes[0].row()]
        if isinstance(row, SessionSummary):
            carried.setData(MIME, str(row.session_id).encode())
        return carried

    def dropMimeData(self, data: QMimeData, action: Qt.DropAction, row: int, column: int, parent: Index) -> bool:  # noqa: ARG002  # Qt's
        number = bytes(data.data(MIME).data()).decode()
        if not number.isdigit():
            return False
        before = row if row >= 0 else parent.row() if parent.isValid() else len(self._rows)
        onto = self._rows[parent.row()] if parent.isValid() else None
        self._drop(int(number), before, onto)
        return False  # the store makes the change, and the next list shows it

    def shift(self, session_id: int, by: int) -> None:
        """Moves a session one place up (-1) or down (+1) within its group."""
        group = self._group_of(session_id)
        if session_id in group:
            at = group.index(session_id)
            to = min(max(at + by, 0), len(group) - 1)
            if to != at:
                group.insert(to, group.pop(at))
                self.arranged.emit(group)

    def _drop(self, session_id: int, before: int, onto: Row | None) -> None:
        if isinstance(onto, Head):
            if onto.folder_id is not None:
                self.moved.emit(session_id, onto.folder_id)
            return
        target = onto if isinstance(onto, SessionSummary) else self._neighbour(before)
        group = self._group_of(session_id)
        if target is None or target.session_id not in group:
            return  # groups by time have a fixed order
        group.remove(session_id)
        after = onto is None and self._places[target.session_id] < before  # dropped below the last session of its group
        if target.session_id != session_id:
            group.insert(group.index(target.session_id) + after, session_id)
            self.arranged.emit(group)

    def _neighbour(self, before: int) -> SessionSummary | None:
        """The session below a gap, else the one above it."""
        around = (self._rows[place] for place in (before, before - 1) if 0 <= place < len(self._rows))
        return next((row for row in around if isinstance(row, SessionSummary)), None)

    def _group_of(self, session_id: int) -> list[int]:
        """The sessions of its group in order; empty for groups by time."""
        row = self._rows[self._places[session_id]] if session_id in self._places else None
        if not isinstance(row, SessionSummary) or not (row.pinned or row.folder_id is not None):
            return []
        sessions = [each for each in self._rows if isinstance(each, SessionSummary) and not each.is_sample]
        if row.pinned:
            return [each.session_id for each in sessions if each.pinned]
        return [each.session_id for each in sessions if each.folder_id == row.folder_id and not each.pinned]

    # ---- how rows are made --------------------------------------------------------------------------------------------

    def _show(self, rows: list[Row]) -> None:
        def replace() -> None:
            self._rows = rows
            self._places = {row.session_id: place for place, row in enumerate(rows) if not isinstance(row, Head | Found)}

        replace_rows(self, list(map(_key, self._rows)), list(map(_key, rows)), replace)

    def _grouped(self, sessions: Sequence[SessionSummary], now: datetime.datetime, folders: Sequence[FolderView]) -> list[Row]:
        pinned: list[SessionSummary] = []
        held: dict[int, list[SessionSummary]] = {folder.folder_id: [] for folder in folders}
        ages: tuple[list[SessionSummary], ...] = ([], [], [])
        today = datetime.datetime.combine(now.date(), datetime.time(), now.tzinfo).timestamp()
        week = today - 6 * 86_400
        for session in sessions:
            if session.pinned:
                pinned.append(session)
            elif session.folder_id in held:
                held[session.folder_id].append(session)
            else:
                ages[0 if session.updated >= today else 1 if session.updated >= week else 2].append(session)
        rows: list[Row] = [Head(self.tr("Pinned")), *_with_hits(pinned)] if pinned else []
        for folder in folders:
            inside = held[folder.folder_id]
            closed = folder.folder_id in self._closed
            rows.append(Head(folder.name, folder.folder_id, count=len(inside), is_closed=closed))
            rows += [] if closed else _with_hits(inside)
        for head, group in zip((self.tr("Today"), self.tr("This week"), self.tr("Earlier")), ages, strict=True):
            rows += [Head(head), *_with_hits(group)] if group else []
        return rows

    def _editable(self, row: Row) -> str:
        if isinstance(row, SessionSummary) and self.tagging == row.session_id:
            return " ".join(f"#{tag}" for tag in row.tags)
        return " ".join(_words(row).split())

    def _spoken(self, row: Row) -> str:
        match row:
            case Head(folder_id=None):
                return row.name
            case Found():
                return self.tr("found: {0}").format(one_line(_words(row)))
            case Head():
                state = self.tr("closed") if row.is_closed else self.tr("open")
                return self.tr("folder {0}, {1} sessions, {2}").format(row.name, row.count, state)
            case TrashedSession():
                return self.tr("{0}, deleted in {1} days").format(row.title, row.days_left)
        branches = self.tr(", {0} branches").format(row.branches) if row.branches > 1 else ""
        tags = self.tr(", tagged {0}").format(", ".join(row.tags)) if row.tags else ""
        state = self.tr(", answering") if row.answering else self.tr(", answered, not seen yet") if row.unseen else ""
        return f"{row.title}{branches}{tags}{state}"


def _key(row: Row) -> Hashable:
    if isinstance(row, Head):
        return row.name if row.folder_id is None else row.folder_id
    return type(row), row.session_id


def _words(row: Row) -> str:
    match row:
        case Head():
            return row.name
        case Found(hit=hit):
            return f"{hit.before}{hit.words}{hit.behind}"
    return row.title


def _with_hits(sessions: Sequence[SessionSummary]) -> list[Row]:
    """The sessions, each followed by the words that were found in it."""
    rows: list[Row] = []
    for each in sessions:
        rows += [each] if each.hit is None else [each, Found(each.session_id, each.hit)]
    return rows
