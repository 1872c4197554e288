"""The bar over the conversation that reports a comparison with a second model: progress, result, problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QFrame, QHBoxLayout, QMenu, QWidget

from ui.comparison.model_facts import summary
from ui.port import ComparisonChoice, PathComparison
from ui.widgets.controls import Check, button, column_of, row, words
from ui.widgets.labels import IconButton

MARGIN = 16  # pixels, until `align` is called


class ComparisonBar(QFrame):
    """Hidden while nothing is compared."""

    stopped = Signal()  # the running comparison
    closed = Signal()
    again_wanted = Signal(bool)  # repeat the comparison; True: even if memory is short

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("find")
        self._busy = self._anyway = False
        self.words = words("", "")
        self.more = words()
        self.next_button = button(self.tr("Next disagreement"), "link")
        self.all_button = button(self.tr("KL of all tokens"), "link")
        self.all_button.setToolTip(self.tr("Compares the whole path again, with two queries per token"))
        self.again_button = button("", "link")
        self.again_button.clicked.connect(lambda: self.again_wanted.emit(self._anyway))
        self.keep = Check(self.tr("Keep loaded"))
        self.keep.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.keep.setToolTip(self.tr("The second model stays in memory for the next comparison"))
        self.close_button = IconButton("x", self.tr("Close the comparison"))
        self.close_button.clicked.connect(self.dismiss)
        ways = row(self.next_button, self.all_button, self.again_button, self.keep, 1, spacing=16)
        texts = column_of(self.words, self.more, ways, spacing=4)
        line = self._row = QHBoxLayout(self)
        self.align(MARGIN)
        line.setSpacing(12)
        line.addLayout(texts, 1)
        line.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignTop)
        self.hide()

    def align(self, left: int) -> None:
        """Aligns the words with the text below: `left` pixels from the edge."""
        self._row.setContentsMargins(left, 10, 12, 8)

    def begin(self, label: str) -> None:
        self._show(self.tr("Comparing with {0}").format(label), "", busy=True)

    def show_progress(self, step: str, done: int, total: int) -> None:
        if self._busy:
            self.more.setText(f"{step} {100 * done // total} %" if total else f"{step}…")
            self.more.show()

    def show_comparison(self, comparison: PathComparison, *, keeps: bool) -> None:
        self._show(*summary(comparison), busy=False)
        self.next_button.show()
        self.next_button.setEnabled(bool(comparison.found.disagrees()))
        self.all_button.setVisible(comparison.found.kl is not None and comparison.kl_from > 0)
        self.keep.setChecked(keeps)
        self.keep.show()

    def say(self, problem: str, *, anyway: bool = False) -> None:
        """Shows why there is no comparison, and a button to try again (`anyway`: although memory is short)."""
        self._show(problem, "", busy=False)
        self._anyway = anyway
        self.again_button.setText(self.tr("Compare anyway") if anyway else self.tr("Try again"))
        self.again_button.show()

    def dismiss(self) -> None:
        if self.isHidden():
            return
        busy, self._busy = self._busy, False
        self.hide()
        (self.stopped if busy else self.closed).emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.dismiss()
        else:
            super().keyPressEvent(event)

    def _show(self, text: str, more: str, *, busy: bool) -> None:
        self._busy = busy
        self.words.setText(text)
        self.more.setText(more)
        self.more.setVisible(bool(more))
        for part in (self.next_button, self.all_button, self.again_button, self.keep):
            part.hide()
        name = self.tr("Stop comparing") if busy else self.tr("Close the comparison")
        self.close_button.setAccessibleName(name)
        self.close_button.setToolTip(name)
        self.setAccessibleName(f"{text}. {more}" if more else text)
        self.show()


def open_menu(under: QWidget, choices: Sequence[ComparisonChoice], chosen: Callable[[ComparisonChoice], None]) -> QMenu:
    """Opens a menu of second models; unusable ones are disabled and state their problem.

    Args:
        under: The menu opens under this widget.
        choices: Variants of the model in use first, then other models.
        chosen: Called with the choice.
    """
    translate = QApplication.translate
    menu = QMenu(under)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.setLayoutDirection(QApplication.layoutDirection())  # not the chip's own
    menu.setAccessibleName(translate("Second", "Compare with"))
    head = menu.addAction(translate("Second", "Compare this path with"))
    head.setEnabled(False)
    own = choices[0].source if choices else ""
    for before, choice in zip((None, *choices), choices, strict=False):
        if before is not None and before.source == own != choice.source:
            menu.addSeparator()
        detail = " ".join((choice.problem or choice.detail).split())
        label = " ".join(choice.label.split())
        action = menu.addAction(f"{label}\t{detail}".strip().replace("&", "&&"))
        action.setEnabled(not choice.problem)
        action.triggered.connect(lambda _checked=False, choice=choice: chosen(choice))
    if not choices:
        menu.addAction(translate("Second", "no other model is installed: download one first")).setEnabled(False)
    right = under.mapToGlobal(QPoint(under.width(), under.height() + 4))
    menu.popup(QPoint(right.x() - menu.sizeHint().width(), right.y()))
    return menu
