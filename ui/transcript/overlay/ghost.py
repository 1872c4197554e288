"""The preview of an alternative and the text after it, drawn in grey over the text that it would replace."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QPainter, QTextCharFormat, QTextLayout

from ui.transcript.text.faces import Faces, format_range
from ui.transcript.text.ink import Ink
from ui.widgets.visible import is_right_to_left, utf16_length, visible

WAITING = "…"
TYPED = -1  # instead of a token id: the ghost shows text that is being typed
_VEIL = 0.82  # opacity over the text that would be replaced


class Ghost(Struct, frozen=True):
    """Another token at (`node_id`, `index`), and the text after it; a `tail` of None is not known yet."""

    node_id: int
    index: int
    token_id: int
    word: str
    tail: str | None = None

    def with_tail(self, data: bytes) -> Ghost:
        """The same with the text that follows."""
        return replace(self, tail=_shown(data))

    @property
    def text(self) -> str:
        return self.word + (WAITING if self.tail is None else self.tail)


def ghost_of(node_id: int, index: int, token_id: int, data: bytes) -> Ghost:
    """A ghost whose token has these bytes."""
    return Ghost(node_id, index, token_id, _shown(data) or f"#{token_id}")


def typed_ghost(node_id: int, index: int, text: str) -> Ghost:
    """A ghost of the text that is being typed in place of a token."""
    return Ghost(node_id, index, TYPED, _shown(text.encode()), "")


def next_alternative(ids: tuple[int, ...], own: int, before: int | None) -> int | None:
    """The alternative after `before` (None: the first) in the order of `ids`, cyclically, without `own`."""
    others = [token for token in ids if token != own]
    if not others:
        return None
    place = others.index(before) + 1 if before in others else 0
    return others[place % len(others)]


def paint_ghost(
    painter: QPainter, ink: Ink, faces: Faces, ghost: Ghost, span: QRectF, column: QRectF, *, right_to_left: bool
) -> None:
    """Draws the ghost over the text that it would replace.

    Args:
        painter: Of the viewport.
        ink: Colours.
        faces: Fonts and the pitch of lines.
        ghost: The text to draw.
        span: Rectangle of the token that would be replaced.
        column: Rectangle of the turn's text.
        right_to_left: The direction of the line.
    """
    layout, height = _laid_out(ghost, ink, faces, span, column, right_to_left=right_to_left)
    top = span.center().y() - faces.pitch / 2
    first = QRectF(span.left(), top, column.right() - span.left() + 8, faces.pitch)
    if right_to_left:
        first = QRectF(column.left() - 8, top, span.right() - column.left() + 8, faces.pitch)
    painter.fillRect(first, ink.window)
    whole = QRectF(column.left() - 8, top + faces.pitch, column.width() + 16, height - faces.pitch)
    painter.fillRect(whole, ink.window)
    rest = QRectF(column.left() - 8, top + height, column.width() + 16, max(column.bottom() - top - height, 0.0))
    veil = QColor(ink.window)
    veil.setAlphaF(_VEIL)
    painter.fillRect(rest, veil)
    painter.setPen(ink.soft)
    layout.draw(painter, QPointF(column.left(), top))


def _laid_out(
    ghost: Ghost, ink: Ink, faces: Faces, span: QRectF, column: QRectF, *, right_to_left: bool
) -> tuple[QTextLayout, float]:
    """Lines of the column's width, of which the first begins at the span; and their height."""
    layout = faces.layout(ghost.text, (), right_to_left=right_to_left or is_right_to_left(ghost.word), wrap=True)
    shape = QTextCharFormat()
    shape.setForeground(ink.text)
    shape.setFontUnderline(True)
    shape.setUnderlineStyle(QTextCharFormat.UnderlineStyle.DotLine)
    layout.setFormats([format_range(0, utf16_length(ghost.word), shape)])
    layout.beginLayout()
    count = 0
    while (line := layout.createLine()).isValid():
        offset = span.left() - column.left() if not count and not right_to_left else 0.0
        width = span.right() - column.left() if not count and right_to_left else column.width() - offset
        line.setLineWidth(max(width, 1.0))
        line.setPosition(QPointF(offset, count * faces.pitch + faces.lead))
        count += 1
    layout.endLayout()
    return layout, max(count, 1) * float(faces.pitch)


def _shown(data: bytes) -> str:
    text = data.decode(errors="replace")
    return visible(text.replace("\n", "↵ ").replace("\t", "⇥")).text
