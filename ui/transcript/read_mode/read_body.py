"""The text of one turn in Read mode: typeset stretches, and the places of tokens and points in them."""

from __future__ import annotations

from itertools import takewhile

from PySide6.QtCore import QRectF, QRegularExpression, Qt
from PySide6.QtGui import QPainter, QTextDocument

from ui.port import TurnStatus
from ui.transcript.path import TranscriptTurn
from ui.transcript.read_mode.document import Stretch
from ui.transcript.read_mode.formula_ink import source_of
from ui.transcript.read_mode.formulas import Formulas
from ui.transcript.read_mode.read_layout import ReadLayout, ReadPlace
from ui.transcript.read_mode.read_paint import paint_caret, paint_stretches
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink


class ReadBody:
    """The stretches of a turn, with their selection."""

    def __init__(self, formulas: Formulas, turn: TranscriptTurn, faces: Faces, width: float) -> None:
        self._turn = turn
        self.layout = ReadLayout(turn, faces, width, formulas)
        self.words: QRegularExpression | None = None  # all matches are marked
        self.selection: tuple[ReadPlace, ReadPlace] | None = None

    @property
    def height(self) -> int:
        """Pixels; estimated for stretches that were not typeset yet. 0 if the turn has only cards and a line."""
        return 0 if self._turn.is_bare(template=False) or self._is_called_only() else self.layout.height

    def _is_called_only(self) -> bool:
        """Whether the answer has only tool calls."""
        if not self._turn.calls:
            return False
        self.layout.read()
        return not len(self.layout)

    @property
    def done(self) -> bool:
        """Whether every stretch was rendered once."""
        return self.layout.done

    def set_width(self, width: float) -> None:
        """Sets another width; call `prepare` to typeset."""
        self.layout.set_width(width)

    def set_faces(self, faces: Faces, width: float) -> None:
        self.layout.set_faces(faces, width)

    def set_template_visible(self, visible: bool) -> None:
        """Read mode never shows the template."""

    def refresh(self) -> None:
        """Does nothing: `prepare` compares the text."""

    def prepare(self, deadline: float | None) -> int | None:
        """Typesets until the deadline; returns the first changed pixel row, or None."""
        return self.layout.prepare(deadline)

    def paint(self, painter: QPainter, ink: Ink, clip: tuple[float, float]) -> None:
        """Draws the stretches between the y of `clip`; the painter's origin is the text's top left."""
        self.layout.set_palette_of(ink.palette)
        paint_stretches(painter, ink, self.layout, clip, self.selection, self.words)
        if self._turn.view.status is TurnStatus.STREAMING:
            paint_caret(painter, ink, self.layout)

    # ---- tokens ---------------------------------------------------------------------------------------------------

    def top_of(self, token: int) -> int:
        """The y of a token's line, estimated from the token's relative position in its stretch."""
        self.layout.read()
        if not len(self.layout):
            return 0
        at = self.layout.source.character_of(token)
        number, document, stretch = self._stretch_of(at)
        share = min((at - stretch.start) / max(stretch.stop - stretch.start, 1), 1)
        position = int(share * (document.characterCount() - 1))
        block = document.findBlock(position)
        line = block.layout().lineForTextPosition(position - block.position())
        y = document.documentLayout().blockBoundingRect(block).top() + (line.y() if line.isValid() else 0)
        top = self.layout.tops()[number]
        return top + int(self.layout.origin(number).y() - top + y)

    def first_token(self, y: float) -> int:
        """The first token of the line at y."""
        self.layout.read()
        if not len(self.layout):
            return 0
        number, point = self.layout.inside(0, y)
        document, stretch = self.layout.document(number), self.layout.source.stretches[number]
        position = document.documentLayout().hitTest(point, Qt.HitTestAccuracy.FuzzyHit)
        share = max(position, 0) / max(document.characterCount() - 1, 1)
        return self.layout.source.token_of(stretch.start + share * (stretch.stop - stretch.start))

    def nearest(self, token: int, words: QRegularExpression) -> tuple[ReadPlace, ReadPlace] | None:
        """The match of words in the typeset text nearest to a token; None without a match in its stretch."""
        self.layout.read()
        if not len(self.layout):
            return None
        at = self.layout.source.character_of(token)
        number, document, stretch = self._stretch_of(at)
        wanted = (at - stretch.start) / max(stretch.stop - stretch.start, 1) * document.characterCount()
        cursor, best = document.find(words, 0), None
        while not cursor.isNull():
            if best is None or abs(cursor.selectionStart() - wanted) < abs(best[0] - wanted):
                best = cursor.selectionStart(), cursor.selectionEnd()
            cursor = document.find(words, cursor)
        return None if best is None else (ReadPlace(number, best[0]), ReadPlace(number, best[1]))

    def _stretch_of(self, character: float) -> tuple[int, QTextDocument, Stretch]:
        number = self.layout.stretch_of(character)
        return number, self.layout.document(number), self.layout.source.stretches[number]

    # ---- places ---------------------------------------------------------------------------------------------------

    def place_at(self, x: float, y: float) -> ReadPlace:
        """The place between characters nearest to a point."""
        if not len(self.layout):
            return ReadPlace(0, 0)
        number, point = self.layout.inside(x, y)
        hit = self.layout.document(number).documentLayout().hitTest(point, Qt.HitTestAccuracy.FuzzyHit)
        return ReadPlace(number, max(hit, 0))

    def end(self) -> ReadPlace:
        """The place after the last character."""
        last = len(self.layout) - 1
        return ReadPlace(0, 0) if last < 0 else ReadPlace(last, self.layout.document(last).characterCount() - 1)

    def link_at(self, x: float, y: float) -> str:
        """The target of the link at a point; "" if there is none."""
        if not len(self.layout) or not 0 <= y < self.height:
            return ""
        number, point = self.layout.inside(x, y)
        return self.layout.document(number).documentLayout().anchorAt(point)

    def code_at(self, y: float) -> tuple[int, QRectF] | None:
        """The code stretch at y and its rectangle; None if there is none."""
        if not len(self.layout) or not 0 <= y < self.height:
            return None
        number = self.layout.stretch_at(y)
        return (number, self.layout.box(number)) if self.layout.is_code(number) else None

    def top_of_stretch(self, number: int) -> int:
        return self.layout.tops()[number]

    def code(self, number: int) -> str:
        """The whole content of the fence that a stretch is part of."""
        stretches = self.layout.source.stretches
        first = next(i for i in range(number, -1, -1) if not stretches[i].goes_on)
        rest = takewhile(lambda each: each.goes_on, stretches[first + 1 :])
        return "".join(each.code or "" for each in (stretches[first], *rest))

    def text_between(self, first: ReadPlace, last: ReadPlace) -> str:
        """The typeset text between two places; of other turns than answers, whole stretches as they were typed."""
        source, parts = self.layout.source, list[str]()
        for number in range(first.stretch, min(last.stretch + 1, len(self.layout))):
            cursor, typed = self.layout.cursor(number, first, last), source.plain(number)
            text = source_of(cursor).replace("\u2029", "\n").replace("\u2028", "\n")
            if self._turn.is_answer:
                parts.append(text + "\n\n")
            elif len(cursor.selectedText()) == cursor.document().characterCount() - 1:
                parts.append(typed)
            else:
                parts.append(text + typed[len(typed.rstrip("\n")) :])
        return "".join(parts).rstrip("\n")
