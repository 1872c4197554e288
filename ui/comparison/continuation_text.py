"""The text of one continuation: coloured tokens as in the transcript, wrapped to a narrow column."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.port import Column, TokenRun, TurnStatus, TurnView
from ui.theme.scheme import current_theme
from ui.transcript.measure import Measure
from ui.transcript.path import TranscriptTurn
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink
from ui.transcript.tokens_mode.tokens_body import TokensBody

SCALE = 0.9  # of the transcript's text
_CARET_PX = 2


class ColumnText(QWidget):
    """Paints the tokens of one continuation; its height depends on its width."""

    def __init__(self, column: Column, measure: Measure) -> None:
        super().__init__()
        theme = current_theme()
        theme.changed.connect(self._recolour)
        theme.scaled.connect(self._rescale)
        self._ink = Ink(theme.palette)
        self._faces = Faces(SCALE)
        self._turn = TranscriptTurn(_as_turn(column), measure)
        self._body = TokensBody(self._turn, self._faces, 200.0, template=False)
        self._ruler = TokensBody(self._turn, self._faces, 200.0, template=False)  # measures heights for `heightForWidth`
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self._settle()

    @property
    def text(self) -> str:
        return self._turn.text

    @property
    def length(self) -> int:
        return len(self._turn.tokens)

    def show_column(self, column: Column) -> None:
        """Shows another state of the column; tokens that were shown before are not laid out again."""
        self._turn.take(_as_turn(column))
        self._body.refresh()
        self._settle()

    def append(self, run: TokenRun) -> None:
        self._turn.append(run)
        self._settle()

    def colour_by(self, measure: Measure) -> None:
        self._turn.colour_by(measure)
        self._body.refresh()
        self.update()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        self._ruler.set_width(float(max(width, 1)))
        self._ruler.prepare(None)
        return max(self._ruler.height, self._faces.pitch)

    def sizeHint(self) -> QSize:
        return QSize(200, self.heightForWidth(200))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._settle()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        clip = event.rect()
        if len(self._turn.tokens):
            self._body.paint(painter, self._ink, (clip.top(), clip.bottom() + 1))
        if self._turn.view.status is TurnStatus.STREAMING:
            at = self._body.end_of_text()
            painter.setPen(Qt.PenStyle.NoPen)
            painter.fillRect(QRectF(at.x() + 2, at.y(), _CARET_PX, self._faces.glyphs), self._ink.accent)
        painter.end()

    def _settle(self) -> None:
        self._body.set_width(float(max(self.width(), 1)))
        self._body.prepare(None)
        if self.height() != max(self._body.height, self._faces.pitch):
            self.updateGeometry()
        self.setAccessibleName(self._turn.text)
        self.update()

    def _rescale(self) -> None:
        self._faces = Faces(SCALE)
        for body in (self._body, self._ruler):
            body.set_faces(self._faces, float(max(self.width(), 1)))
        self._settle()
        self.updateGeometry()

    def _recolour(self) -> None:
        self._ink = Ink(current_theme().palette)
        self.update()


def _as_turn(column: Column) -> TurnView:
    status = TurnStatus.STREAMING if column.running else TurnStatus.COMPLETE
    return TurnView(column.node_id, "assistant", column.run, status, (column.node_id,))
