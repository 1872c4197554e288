"""Two branches compared in the middle of the window: shared text, differing text, log-probabilities."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QFont, QKeyEvent, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QTextEdit, QVBoxLayout, QWidget

from ui.comparison.model_facts import LEFT, RIGHT
from ui.port import BranchDiff, DiffPart, DiffSide
from ui.theme.fonts import interface_font
from ui.theme.scheme import current_theme
from ui.widgets.controls import column_of, fill, row
from ui.widgets.labels import ElidedLabel, Hairline, IconButton, Label
from ui.widgets.numbers import signed
from ui.widgets.visible import one_line, seen

SHARED_CHARACTERS = 240  # shown at either end of a longer shared stretch
MARGIN = 44  # pixels, until `align` is called


class ComparePane(QWidget):
    """Replaces the transcript while two branches are compared; Esc closes it."""

    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("column")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAccessibleName(self.tr("Comparison of two branches"))
        self._diff: BranchDiff | None = None
        self._theme = current_theme()
        for news in (self._theme.changed, self._theme.scaled):
            news.connect(self._write)  # a bound method is disconnected with the widget
        self.heads = (ElidedLabel("", "", interface_font(13)), ElidedLabel("", "", interface_font(13)))
        self.totals = (ElidedLabel("", "soft", interface_font(12)), ElidedLabel("", "soft", interface_font(12)))
        self.stem = Label("", "faint", interface_font(12))
        self.text = QTextEdit(readOnly=True, acceptRichText=False)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.setObjectName("comparison")
        self.text.setAccessibleName(self.tr("What differs"))
        self.text.document().setDocumentMargin(0)
        self.text.setTabChangesFocus(True)
        self._lay_out()
        self.hide()

    def show_diff(self, diff: BranchDiff) -> None:
        self._diff = diff
        self._write()
        self.show()
        self.text.setFocus()

    def align(self, left: int, right: int) -> None:
        """Takes the conversation's left and right margins, pixels."""
        self._rows.setContentsMargins(left, 18, right, 12)

    def dismiss(self) -> None:
        if not self.isHidden():
            self.hide()
            self._diff = None
            self.text.clear()
            self.closed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.dismiss()
        else:
            super().keyPressEvent(event)

    # ---- words ------------------------------------------------------------------------------------------------------

    def _write(self, _palette: object = None) -> None:
        diff = self._diff
        if diff is None:
            return
        unnamed = self.tr("this branch")
        for sign, head, total, name, side in zip(
            (LEFT, RIGHT), self.heads, self.totals, (diff.left_name, diff.right_name), (diff.left, diff.right), strict=True
        ):
            head.setText(f"{sign} {one_line(name) or unnamed}")
            total.setText(self._numbers(side))
        same = self.tr("nothing differs") if diff.is_same else self.tr("then they differ")
        self.stem.setText(self.tr("the first {0:,} tokens are the same, {1}").format(diff.stem.tokens, same))
        self.text.clear()
        cursor = QTextCursor(self.text.document())
        cursor.beginEditBlock()
        cursor.setBlockFormat(_line())
        if diff.stem.text:
            cursor.insertText(seen(_end_of(diff.stem.text)), self._format("faint"))
        for part in diff.parts:
            self._insert(cursor, part)
        cursor.endEditBlock()
        self.text.moveCursor(QTextCursor.MoveOperation.Start)

    def _insert(self, cursor: QTextCursor, part: DiffPart) -> None:
        if part.same:
            cursor.insertText(seen(self._shortened(part.left)).lstrip(" "), self._format("soft"))
            return
        for sign, side, ground in ((LEFT, part.left, "left"), (RIGHT, part.right, "right")):
            if not side.tokens:
                continue
            cursor.insertBlock(_line())
            cursor.insertText(f"{sign} ", self._format("sign"))
            cursor.insertText(seen(side.text.strip("\n")) or "∅", self._format(ground))
            if side.logprob is not None:
                cursor.insertText(f"  {signed(side.logprob, 1)}", self._format("number"))
        cursor.insertBlock(_line())

    def _shortened(self, side: DiffSide) -> str:
        if len(side.text) <= 2 * SHARED_CHARACTERS:
            return side.text
        between = self.tr(" … {0:,} tokens the same … ").format(side.tokens)
        return f"{side.text[:SHARED_CHARACTERS]}\n{between}\n{side.text[-SHARED_CHARACTERS:]}"

    def _numbers(self, side: DiffSide) -> str:
        tokens = self.tr("then {0:,} tokens").format(side.tokens)  # short: it has half the width of a conversation
        if side.logprob is None:
            return self.tr("{0}, not scored").format(tokens)
        return self.tr("{0}, {1} nats in total").format(tokens, signed(side.logprob, 1))

    def _format(self, kind: str) -> QTextCharFormat:
        palette, made = self._theme.palette, QTextCharFormat()
        colours = {"faint": palette.faint, "soft": palette.soft, "sign": palette.soft, "number": palette.soft}
        made.setForeground(QColor(colours.get(kind, palette.text)))
        made.setFont(interface_font(11.5 if kind == "number" else 14))
        if kind == "sign":
            made.setFont(interface_font(12, QFont.Weight.DemiBold))
        if kind == "left":
            made.setBackground(QColor(palette.surprise[2]))
        if kind == "right":
            made.setBackground(QColor(palette.bar_rest))
        return made

    def _lay_out(self) -> None:
        close = IconButton("x", self.tr("Close the comparison"))
        close.clicked.connect(self.dismiss)
        sides = (column_of(head, total, spacing=2) for head, total in zip(self.heads, self.totals, strict=True))
        top = row(*((side, 1) for side in sides), spacing=24)
        top.addWidget(close, 0, Qt.AlignmentFlag.AlignTop)
        rows = self._rows = QVBoxLayout(self)
        self.align(MARGIN, MARGIN)
        rows.setSpacing(10)
        fill(rows, top, self.stem, Hairline(), (self.text, 1))


def _line() -> QTextBlockFormat:
    made = QTextBlockFormat()
    made.setTopMargin(5)
    return made


def _end_of(text: str) -> str:
    """The end of the text that precedes the first difference."""
    return text if len(text) <= SHARED_CHARACTERS else f"… {text[-SHARED_CHARACTERS:]}"
