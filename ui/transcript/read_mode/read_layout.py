"""The stretches of a turn in Read mode, one under the other, each typeset on demand."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from time import perf_counter

from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QTextCursor, QTextDocument

from ui.theme.palette import LIGHT, Palette
from ui.transcript.path import TranscriptTurn
from ui.transcript.read_mode.document import code_document, markdown_document, plain_document
from ui.transcript.read_mode.formulas import Formulas
from ui.transcript.read_mode.markup import formulas
from ui.transcript.read_mode.source import Source
from ui.transcript.text.faces import Faces
from ui.widgets.visible import seen

_KEPT_DOCUMENTS = 80
_GAP_PX = 12  # between stretches
_GAP_AFTER_HEADING_PX = 6
_GAP_BEFORE_HEADING_PX = 18
_CODE_PAD_PX = 12
_CODE_HEAD_PX = 22  # the row with the language and the copy button
_CODE_FOOT_PX = 8  # the scroll indicator
_LONGEST_LANGUAGE = 24
_CHARACTERS_PER_TOKEN = 4  # to estimate a turn that was not read yet


class ReadPlace(Struct, frozen=True, order=True):
    """A place in a turn: a character of a stretch's document."""

    stretch: int
    position: int


@dataclass(slots=True)
class _Laid:
    height: int | None = None
    shift: float = 0.0  # pixels; puts the first baseline at its place in Tokens mode
    document: QTextDocument | None = field(default=None, repr=False)
    scrolled: float = 0.0  # pixels, of code, to the right
    undrawn: tuple[str, ...] = ()  # formulas shown as their source


class ReadLayout:
    """The typeset stretches and their places. New tokens change only the last one; of many documents the first are dropped."""

    def __init__(self, turn: TranscriptTurn, faces: Faces, width: float, formulas: Formulas) -> None:
        self.faces = faces
        self._formulas = formulas
        self.source = Source(turn)
        self._turn = turn
        self._width = width
        self._palette: Palette = LIGHT
        self._laid: list[_Laid] = []  # one for each stretch
        self._held_tops: list[int] = []  # cache of `tops`; empty after a height has changed

    def __len__(self) -> int:
        return len(self._laid)

    @property
    def height(self) -> int:
        """Pixels; estimated for stretches that were not rendered yet."""
        if not self._laid:
            return self.faces.pitch if self.source.is_read else self._estimate(len(self._turn.tokens) * _CHARACTERS_PER_TOKEN)
        return self.tops()[-1] - self._gap(len(self._laid) - 1)

    @property
    def done(self) -> bool:
        """Whether every stretch was rendered once."""
        return self.source.is_current and all(laid.height is not None for laid in self._laid)

    def set_faces(self, faces: Faces, width: float) -> None:
        self.faces, self._width = faces, width
        self._forget()

    def set_width(self, width: float) -> None:
        """Sets another width; call `prepare` to typeset."""
        if width != self._width:
            self._width = width
            self._forget()

    def set_palette_of(self, palette: Palette) -> None:
        """Sets another palette; documents contain colours and are typeset again on demand, at the same heights."""
        if palette is not self._palette:
            self._palette = palette
            for laid in self._laid:
                laid.document = None

    def ask_for_formulas(self, number: int) -> None:
        """Requests the missing pictures of formulas of a visible stretch."""
        for source in self._laid[number].undrawn:
            self._formulas.ask(source)

    def take_formulas(self) -> bool:
        """Typesets stretches again whose missing pictures are made now; returns whether there are any."""
        changed = [laid for laid in self._laid if any(self._formulas.get(source) for source in laid.undrawn)]
        for laid in changed:
            laid.document = laid.height = None
            laid.undrawn = ()
        self._held_tops = [] if changed else self._held_tops
        return bool(changed)

    def prepare(self, deadline: float | None) -> int | None:
        """Typesets until the deadline; returns the first changed pixel row, or None."""
        self.read()
        missing = [number for number, laid in enumerate(self._laid) if laid.height is None]
        row = self.tops()[missing[0]] if missing else None
        for number in missing:
            self.document(number)
            if deadline is not None and perf_counter() > deadline:
                break
        return row

    def read(self) -> None:
        """Reads the turn's text; changed stretches are typeset again on demand."""
        changed = self.source.read()
        if changed is not None:
            self._laid[changed:] = [_Laid() for _ in self.source.stretches[changed:]]
            self._held_tops = []

    def document(self, number: int) -> QTextDocument:
        """The document of a stretch, typeset if necessary; determines its height."""
        laid = self._laid[number]
        if laid.document is None:
            self._make_room()
            laid.document = self._typeset(number)
            height = max(round(laid.document.size().height()) + self._around(number), 1)
            if height != laid.height:
                laid.height, self._held_tops = height, []
            laid.shift = self._shift(number, laid.document)
        return laid.document

    def tops(self) -> list[int]:
        """The y of each stretch, and of the end after the last gap."""
        if self._held_tops:
            return self._held_tops
        tops = [0]
        for number, laid in enumerate(self._laid):
            stretch = self.source.stretches[number]
            height = laid.height if laid.height is not None else self._estimate(stretch.stop - stretch.start)
            tops.append(tops[-1] + height + self._gap(number))
        self._held_tops = tops
        return tops

    def inside(self, x: float, y: float) -> tuple[int, QPointF]:
        """The stretch at y, and the point in its document's coordinates."""
        number = self.stretch_at(y)
        self.document(number)
        return number, QPointF(x, y) - self.origin(number)

    def cursor(self, number: int, first: ReadPlace, last: ReadPlace) -> QTextCursor:
        """The part of a stretch between two places."""
        document = self.document(number)
        end = document.characterCount() - 1
        cursor = QTextCursor(document)
        cursor.setPosition(min(first.position, end) if number == first.stretch else 0)
        stop = min(last.position, end) if number == last.stretch else end
        cursor.setPosition(stop, QTextCursor.MoveMode.KeepAnchor)
        return cursor

    def box(self, number: int) -> QRectF:
        """The rectangle of a stretch, without the gap below."""
        tops = self.tops()
        return QRectF(0, tops[number], self._width, tops[number + 1] - tops[number] - self._gap(number))

    def is_code(self, number: int) -> bool:
        return self.source.stretches[number].code is not None

    def stretch_at(self, y: float) -> int:
        """The stretch at y, or the nearest one."""
        return min(max(bisect_right(self.tops(), y) - 1, 0), len(self._laid) - 1)

    def stretch_of(self, character: float) -> int:
        """The stretch with a character of the turn's text."""
        return max(bisect_right([stretch.start for stretch in self.source.stretches], character) - 1, 0)

    def origin(self, number: int) -> QPointF:
        """The top left of a stretch's document, with the first baseline at its place in Tokens mode."""
        inset, laid = _CODE_PAD_PX if self.is_code(number) else 0, self._laid[number]
        head = self.head(number).height()
        return QPointF(inset - laid.scrolled, self.tops()[number] + max(inset, head) + laid.shift)

    def head(self, number: int) -> QRectF:
        """The rectangle of a code's top row, which has its language; empty for other stretches."""
        if not self.is_code(number):
            return QRectF()
        height = _CODE_HEAD_PX * max(self.faces.scale, 1.0) + _CODE_PAD_PX / 2
        return QRectF(_CODE_PAD_PX, self.tops()[number], self._width - 2 * _CODE_PAD_PX, height)

    def language(self, number: int) -> str:
        """The language of a code, from its fence."""
        words = self.source.stretches[number].language.split()
        return seen(words[0].strip("{.}"))[:_LONGEST_LANGUAGE] if words else ""

    def hidden(self, number: int) -> tuple[float, float]:
        """How far a code is scrolled to the right, and how far it can be, pixels."""
        if not self.is_code(number):
            return 0.0, 0.0
        most = max(self.document(number).idealWidth() - (self._width - 2 * _CODE_PAD_PX), 0.0)
        return min(self._laid[number].scrolled, most), most

    def scroll_code(self, number: int, by: float) -> bool:
        """Scrolls a code to the right; returns whether it moved."""
        now, most = self.hidden(number)
        self._laid[number].scrolled = min(max(now + by, 0.0), most)
        return self._laid[number].scrolled != now

    def _around(self, number: int) -> int:
        """The height of a stretch in addition to its text, pixels."""
        if not self.is_code(number):
            return 0
        most = self._laid[number].document
        assert most is not None
        scrolls = most.idealWidth() > self._width - 2 * _CODE_PAD_PX
        return round(self.head(number).height()) + _CODE_PAD_PX + (_CODE_FOOT_PX if scrolls else 0)

    def _forget(self) -> None:
        self._laid = [_Laid() for _ in self._laid]
        self._held_tops = []

    def _typeset(self, number: int) -> QTextDocument:
        stretch, markdown = self.source.stretches[number], self.source.markdown(number)
        if stretch.code is not None:
            width = self._width - 2 * _CODE_PAD_PX
            return code_document(stretch.code.removesuffix("\n"), stretch.language, self.faces, self._palette, width)
        if markdown is not None:
            return self._typeset_markdown(number, markdown)
        return plain_document(self.source.plain(number).removesuffix("\n"), self.faces, self._width)

    def _typeset_markdown(self, number: int, markdown: str) -> QTextDocument:
        pictures = {source: self._formulas.get(source) for source in formulas(seen(markdown))}
        self._laid[number].undrawn = tuple(source for source, picture in pictures.items() if picture is None)
        there = {source: picture for source, picture in pictures.items() if picture is not None}
        return markdown_document(markdown, self.faces, self._palette, self._width, there)

    def _shift(self, number: int, document: QTextDocument) -> float:
        layout = document.firstBlock().layout()
        if self.is_code(number) or self.source.is_heading(number) or not document.firstBlock().text():  # a rule or a table
            return 0.0
        if layout.lineAt(0).height() > self.faces.pitch:  # it contains a formula
            return 0.0
        return self.faces.lead + self.faces.ascent - layout.lineAt(0).y() - layout.lineAt(0).ascent()

    def _make_room(self) -> None:
        held = [laid for laid in self._laid if laid.document is not None]
        if len(held) >= _KEPT_DOCUMENTS:
            for laid in held[: _KEPT_DOCUMENTS // 2]:
                laid.document = None

    def _gap(self, number: int) -> int:
        if self.source.is_plain:
            return 0
        if self.source.is_heading(number):
            return _GAP_AFTER_HEADING_PX
        last = number + 1 == len(self._laid)
        return _GAP_PX if last or not self.source.is_heading(number + 1) else _GAP_BEFORE_HEADING_PX

    def _estimate(self, characters: int) -> int:
        per_line = max(self._width / self.faces.average, 1)
        return (int(characters / per_line) + 1) * self.faces.pitch
