"""The panel over the conversation that lists similar turns, with progress and problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent
from PySide6.QtWidgets import QApplication, QFrame, QWidget
from shiboken6 import isValid

from ui.comparison.similar_rows import SimilarList, pooling_explained, pooling_label, summary, title
from ui.models.bars import ThinBar
from ui.port import SimilarTurns
from ui.theme.fonts import interface_font
from ui.widgets.controls import Choice, button, column_in, column_of, row, words
from ui.widgets.labels import ElidedLabel, IconButton

if TYPE_CHECKING:
    from ui.port import Pooling

MARGIN = 16  # pixels, until `align` is called
POOLINGS: tuple[Pooling, ...] = ("mean", "last", "max", "cls")


class SimilarPanel(QFrame):
    """Arrows and Enter work in the list, Esc closes; then the previous widget gets the focus back."""

    chosen = Signal(int)  # a turn to go to
    pooling_chosen = Signal(str)
    again_wanted = Signal()
    model_wanted = Signal()
    closed = Signal()  # a running comparison is no longer wanted
    focus_lost = Signal()  # the widget that had the focus before no longer exists

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("find")
        self._before: QWidget | None = None  # had the focus before the panel opened
        self._busy = False
        self._needs_model = False
        self.title = ElidedLabel("", "", interface_font(13, QFont.Weight.Medium))
        self.poolings = Choice(self.tr("Vectors"), [pooling_label(each) for each in POOLINGS])
        for each, part in zip(POOLINGS, self.poolings.buttons, strict=True):
            part.setToolTip(pooling_explained(each))
            part.setAccessibleDescription(pooling_explained(each))
        self.poolings.chosen.connect(lambda place: self.pooling_chosen.emit(POOLINGS[place]))
        self.close_button = IconButton("x", "")
        self.close_button.clicked.connect(self.dismiss)
        self.note = words()
        self.action = button("", "link")
        self.action.clicked.connect(self._act)
        self.bar = ThinBar(self.tr("Turns compared"))
        self.list = SimilarList()
        self.list.chosen.connect(self.chosen)
        head = row((self.title, 1), self.poolings, self.close_button, spacing=12)
        status = row((self.note, 1), self.action, spacing=16)
        self._texts = column_of(head, status, self.bar, spacing=6)
        column_in(self, self._texts, self.list, spacing=6, margins=(0, 8, 0, 8))
        self.align(MARGIN)
        self._show_poolings(POOLINGS[:-1])
        self._settle(busy=False)
        self.hide()

    def align(self, left: int) -> None:
        """Aligns the words with the text below: `left` pixels from the edge."""
        self._texts.setContentsMargins(left, 0, 12, 0)
        self.list.left = left
        self.list.viewport().update()

    def begin(self, excerpt: str, pooling: Pooling, *, other: bool) -> None:
        """Shows that a turn is being compared.

        Args:
            excerpt: The turn's first words.
            pooling: How its vector is made.
            other: The turn is not the one whose rows are shown: they are removed.
        """
        if self.isHidden():
            self._before = QApplication.focusWidget()
        self.title.setText(title(excerpt))
        self.poolings.show_choice(POOLINGS.index(pooling))
        if other:
            self.list.show_found(None)
        self._settle(busy=True)
        self.note.setText(self.tr("Comparing turns…"))
        self.show()
        self.list.setFocus()

    def show_progress(self, step: str, done: int, total: int) -> None:
        if self._busy:
            self.note.setText(self.tr("{0}: {1:,} of {2:,}").format(step, done, total) if total else f"{step}…")
            self.bar.show_share(done, total)

    def show_found(self, found: SimilarTurns) -> None:
        self._settle(busy=False)
        self.title.setText(title(found.words))
        self._show_poolings(found.poolings)
        self.note.setText(summary(found))
        self.list.show_found(found)
        self._name(self.note.text())

    def say(self, problem: str, *, needs_model: bool) -> None:
        """Shows a problem, and a button to try again or (`needs_model`) to choose another model."""
        self._settle(busy=False)
        self._needs_model = needs_model
        self.list.show_found(None)
        self.note.setText(problem)
        self.action.setText(self.tr("Choose a model") if needs_model else self.tr("Try again"))
        self.action.show()
        self._name(problem)

    def dismiss(self) -> None:
        if self.isHidden():
            return
        focused = QApplication.focusWidget()
        inside = focused is not None and self.isAncestorOf(focused)
        self.hide()
        self.list.show_found(None)
        self._busy = False
        before, self._before = self._before, None
        self.closed.emit()
        if inside and before is not None and isValid(before) and before.isVisible():
            before.setFocus()
        elif inside:
            self.focus_lost.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.dismiss()
        else:
            super().keyPressEvent(event)

    def _settle(self, *, busy: bool) -> None:
        self._busy = busy
        self.action.hide()
        self.bar.show_share(0, 1)
        self.bar.setVisible(busy)
        closing = self.tr("Stop comparing") if busy else self.tr("Close the similar turns")
        self.close_button.setAccessibleName(closing)
        self.close_button.setToolTip(closing)

    def _show_poolings(self, poolings: tuple[Pooling, ...]) -> None:
        for each, part in zip(POOLINGS, self.poolings.buttons, strict=True):
            part.setVisible(each in poolings)

    def _name(self, status: str) -> None:
        self.setAccessibleName(f"{self.title.text()}. {status}")

    def _act(self) -> None:
        (self.model_wanted if self._needs_model else self.again_wanted).emit()
