"""The rows of the full-window tree: which are open, which are visible, and their texts, read on demand."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from PySide6.QtCore import QModelIndex, QObject, QPersistentModelIndex, QStringListModel, Qt, QTimer, Signal

from ui.port import RowText, TokenRun, TreeRow, translate
from ui.transcript.measure import Measure, steps
from ui.widgets.labels import plain_tooltip
from ui.widgets.numbers import signed
from ui.widgets.visible import one_line, utf16_length, visible

Index = QModelIndex | QPersistentModelIndex
Key = tuple[int, int]  # a node, and the token of it where a row begins
ROW = int(Qt.ItemDataRole.UserRole)
MOST_CHARACTERS = 400  # of a row's text


class Heat(NamedTuple):
    """A part of a text in one colour: first and last QChar, and the step on the ramp, above 0."""

    first: int
    last: int
    step: int


class Words(Struct, frozen=True):
    """The text of a row, on one line."""

    text: str
    heat: tuple[Heat, ...] = ()


def words_of(run: TokenRun, measure: Measure) -> Words:
    """A run of tokens on one line: white space becomes single spaces; spaces before a word have no colour."""
    parts, length, heat, ended = list[str](), 0, list[Heat](), True  # ended: the text so far is empty or ends with a space
    for token, step in zip(run.texts, steps(run, measure).tolist(), strict=True):
        if not (token.isascii() and token.isprintable() and "  " not in token):
            token = re.sub(r"\s+", " ", visible(token).text)
        word = token[1:] if ended and token[:1] == " " else token
        if not word:
            continue
        ended = word[-1] == " "
        first = length + (word[0] == " ")
        parts.append(word)
        length += utf16_length(word)
        if step and (end := length - ended) > first:
            if heat and heat[-1].step == step and heat[-1].last >= first - 1:
                heat[-1] = Heat(heat[-1].first, end, step)
            else:
                heat.append(Heat(first, end, step))
        if length > MOST_CHARACTERS:
            break
    return Words("".join(parts), tuple(heat))


class TreeRows(QStringListModel):
    """The visible rows, in reading order. Their texts are requested when they are painted.

    It derives from a list of (empty) strings so that Qt counts rows without calling Python, which a layout does twice per row.
    """

    texts_wanted = Signal(object)  # list of TreeRow
    looks_changed = Signal()  # repaint only: for `dataChanged` a list lays out all rows again

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.all: tuple[TreeRow, ...] = ()
        self.visible_places: list[int] = []  # places of the visible rows in `all`
        self.words_found = ""  # marked in the texts
        self.base: Key | None = None  # only this row and its continuations are shown
        self.measure = Measure.SURPRISAL
        self._place: dict[Key, int] = {}
        self._folded: set[Key] = set()
        self._parents: set[int] = set()  # places of rows that have children
        self._has_pruned = self._shows_pruned = False
        self._texts: dict[Key, RowText] = {}
        self._words: dict[Key, Words] = {}  # of painted rows
        self._requested: dict[Key, TreeRow] = {}
        self._request_timer = QTimer(self, singleShot=True, interval=0)
        self._request_timer.timeout.connect(self._request_texts)

    def take(self, rows: Sequence[TreeRow], texts: Mapping[Key, RowText], *, afresh: bool) -> None:
        """Shows other rows; unless `afresh`, folds stay, and so do the texts of unchanged rows."""
        new = tuple(rows)
        if afresh:
            self._folded, self.base, self._texts = set(), None, {}
            self._words = {}
        places = {(row.node_id, row.start): place for place, row in enumerate(new)}
        for key in list(self._texts):
            old, row = self.of_key(key), new[places[key]] if key in places else None
            if old is None or row is None or (old.end, old.stop, old.common) != (row.end, row.stop, row.common):
                del self._texts[key]
                self._words.pop(key, None)
        self.all = new
        self._place = places
        self._parents = {row.parent for row in new}
        self._has_pruned = True in {row.pruned for row in new}
        self._keep(texts)
        self._show()

    def take_texts(self, texts: Mapping[Key, RowText]) -> None:
        self._keep(texts)
        self.looks_changed.emit()

    def colour_by(self, measure: Measure) -> None:
        """Sets the number that colours show."""
        self.measure = measure
        self._words.clear()
        self.looks_changed.emit()

    def set_pruned_visible(self, visible: bool) -> None:  # a state, not an option
        self._shows_pruned = visible
        self._show()

    def mark(self, words: str) -> None:
        self.words_found = words
        self.looks_changed.emit()

    # ---- places of rows --------------------------------------------------------------------------------------------

    def row_at(self, index: Index) -> TreeRow | None:
        line = index.row()  # -1 where the index is invalid
        return self.all[self.visible_places[line]] if 0 <= line < len(self.visible_places) else None

    def of_key(self, key: Key | None) -> TreeRow | None:
        place = self._place.get(key) if key is not None else None
        return None if place is None else self.all[place]

    def head(self, row: TreeRow) -> TreeRow:
        """The first row of a row's branch."""
        return self.all[row.head]

    def begins(self, row: TreeRow) -> bool:
        """Whether the row is the first of its branch."""
        return self.all[row.head] is row

    def index_of(self, key: Key) -> QModelIndex:
        """The index of a row; invalid if it is not visible."""
        place = self._place.get(key)
        return QModelIndex() if place is None else self._index_at(place)

    def index_of_current(self) -> QModelIndex:
        """The last row of the shown path, or the row that it is folded into; else the first row."""
        place = next((place for place, row in enumerate(self.all) if row.current), -1)
        while place >= 0 and not self._index_at(place).isValid():
            place = self.all[place].parent
        return self._index_at(place) if place >= 0 else self.index(0)  # invalid without rows

    def _index_at(self, place: int) -> QModelIndex:
        at = bisect_left(self.visible_places, place)
        return self.index(at) if at < len(self.visible_places) and self.visible_places[at] == place else QModelIndex()

    def is_parent(self, row: TreeRow) -> bool:
        return self._place[row.key] in self._parents

    def is_open(self, row: TreeRow) -> bool:
        """Whether the row's children are visible."""
        return row.key not in self._folded

    def under_base(self, key: Key) -> bool:
        """Whether a row would be visible if nothing were folded."""
        row = self.of_key(key)
        if row is None or (row.pruned and not row.on_path and not self._shows_pruned):
            return False
        return self._place[key] in self._range()

    def depth(self, row: TreeRow) -> int:
        """The level of a row relative to `base`."""
        base = self.of_key(self.base)
        return row.depth - (base.depth if base is not None else 0)

    def _range(self) -> range:
        """The places of `base` and its continuations; of all rows if there is no `base`."""
        base = self.of_key(self.base)
        if base is None:
            return range(len(self.all))
        first = self._place[base.key]
        after = (place for place in range(first + 1, len(self.all)) if not _goes_on(base, self.all[place]))
        return range(first, next(after, len(self.all)))

    # ---- folding and hoisting ---------------------------------------------------------------------------------------

    def set_open(self, row: TreeRow, is_open: bool) -> None:  # a state, not an option
        (self._folded.discard if is_open else self._folded.add)(row.key)
        self._show()

    def reveal(self, key: Key) -> None:
        """Opens all rows that a row is folded into."""
        row = self.of_key(key)
        before = len(self._folded)
        while row is not None and row.parent >= 0:
            row = self.all[row.parent]
            self._folded.discard(row.key)
        if len(self._folded) != before:
            self._show()

    def hoist(self, key: Key | None) -> None:
        """Shows only this row and its continuations; None: everything."""
        self.base = key
        if key is not None:
            self._folded.discard(key)
        self._show()

    # ---- the model --------------------------------------------------------------------------------------------------

    def flags(self, index: Index) -> Qt.ItemFlag:  # noqa: ARG002  # the signature is Qt's
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemNeverHasChildren

    def data(self, index: Index, role: int = int(Qt.ItemDataRole.DisplayRole)) -> object:
        row = self.row_at(index)
        if row is None:
            return None
        if role == ROW:
            return row
        if role == Qt.ItemDataRole.DisplayRole:
            return self.line(row)
        if role == Qt.ItemDataRole.ToolTipRole:
            return plain_tooltip(self.line(row))
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return self._spoken(row)
        return None

    def words(self, row: TreeRow) -> Words:
        """The text of a row; requests it if necessary, and returns its first words until it is read."""
        known = self._words.get(row.key)
        if known is not None:
            return known
        text = self._texts.get(row.key)
        if text is not None:
            known = self._words[row.key] = words_of(text.run, self.measure)
            return known
        self._requested[row.key] = row
        if not self._request_timer.isActive():
            self._request_timer.start()
        return Words(one_line(row.name.removeprefix(row.stem)))

    def logprob(self, row: TreeRow) -> float | None:
        """Log-probability in nats; None if it is not known."""
        text = self._texts.get(row.key)
        return text.logprob if text is not None else row.logprob

    def line(self, row: TreeRow) -> str:
        """Name and words of a row, on one line."""
        return one_line(f"{row.given} {row.before} {row.stem}{self.words(row).text}")

    def _spoken(self, row: TreeRow) -> str:
        fold = ""
        if self.is_parent(row):
            fold = self.tr("expanded") if self.is_open(row) else self.tr("collapsed")
        speaker = {"user": self.tr("you"), "assistant": self.tr("model")}.get(row.role, row.role)
        logprob = self.logprob(row)
        ways = ways_of(row.ways) if row.ways > 1 else ""
        likely = self.tr("{0} nats").format(signed(logprob, 1)) if logprob is not None else ""
        states = (
            self.tr("bookmarked") if row.bookmarked else "",
            self.tr("pruned") if row.pruned else "",
            self.tr("shown") if row.current else "",
        )
        level = self.tr("level {0}").format(self.depth(row) + 1)
        parts = (speaker, self.line(row), level, fold, ways, likely, *states)
        return ", ".join(part for part in parts if part)

    def _keep(self, texts: Mapping[Key, RowText]) -> None:
        self._texts.update(texts)
        for key in texts:
            self._words.pop(key, None)

    def _request_texts(self) -> None:
        asked, self._requested = list(self._requested.values()), {}
        self.texts_wanted.emit(asked)

    def _show(self) -> None:
        """Computes the visible rows: not folded away, not hidden as pruned, and under `base` if that still exists."""
        if self.base is not None and not self.under_base(self.base):
            self.base = None
        folded = {self._place[key] for key in self._folded if key in self._place}
        is_whole = not folded and (self._shows_pruned or not self._has_pruned)
        self.visible_places = list(self._range() if is_whole else self._in_sight(folded))
        self.setStringList([""] * len(self.visible_places))

    def _in_sight(self, folded: Collection[int]) -> Iterator[int]:
        hidden: set[int] = set()  # places of hidden and of folded rows: their children are hidden
        for place in self._range():
            row = self.all[place]
            out = row.parent in hidden or (row.pruned and not row.on_path and not self._shows_pruned)
            if not out:
                yield place
            if out or place in folded:
                hidden.add(place)


def ways_of(count: int) -> str:
    """The number of branches that leave a row, as text."""
    return translate("TreeRows", "{0:,} ways").format(count) if count != 1 else translate("TreeRows", "1 way")


def _goes_on(base: TreeRow, row: TreeRow) -> bool:
    """Whether a row after `base` continues its branch or leaves it further on."""
    return row.depth > base.depth or (row.depth == base.depth and not row.beside)
