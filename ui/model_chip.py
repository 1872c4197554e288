"""The model's name in the bar, and the shelf as a menu under it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPoint, QSize, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QResizeEvent
from PySide6.QtWidgets import QApplication, QMenu, QPushButton, QWidget

from ui.port import BackendChoice, ModelChoice
from ui.theme.fonts import scaled
from ui.theme.icons import SIZE_PX, icon
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height
from ui.transcript.visible import one_line
from ui.widgets import plain_tooltip

HEIGHT = 27
MOST = 240  # pixels of a name, at 100 % text
FEWEST = 4  # letters that still say anything


class ModelChip(QPushButton):
    """The model's name; pressed, it opens what the session is set to. The shelf opens under it as a menu (never blocking)."""

    chosen = Signal(str)  # source
    backend_chosen = Signal(str)  # name
    more_wanted = Signal()  # than are on the shelf

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("model_chip")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        fix_height(self, HEIGHT)
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow after the name
        self._theme = current_theme()
        for news in (self._theme.changed, self._theme.scaled):
            news.connect(self._tint)
        self._tint()
        self._label = self._shown = ""
        self.show_model(None)

    def show_model(self, choice: ModelChoice | None) -> None:
        """Names the model in use."""
        self._label = self.tr("Choose a model") if choice is None else one_line(choice.label)
        self._show(scaled(MOST))
        self.setAccessibleName(self.tr("Model: {0}").format(self._label))
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        """As wide as the name wants it, up to a limit, whatever is shown of it now."""
        hint, metrics = super().sizeHint(), self.fontMetrics()
        whole = min(metrics.horizontalAdvance(self._label), scaled(MOST))
        return QSize(hint.width() - metrics.horizontalAdvance(self._shown) + whole, hint.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        around = super().sizeHint().width() - self.fontMetrics().horizontalAdvance(self._shown)
        self._show(self.width() - around)

    def _show(self, room: int) -> None:
        metrics, room = self.fontMetrics(), min(room, scaled(MOST))
        fits = metrics.horizontalAdvance(self._label) <= room  # whole pixels, as in the size hint
        cut = metrics.elidedText(self._label, Qt.TextElideMode.ElideRight, room)
        self._shown = self._label if fits else cut if len(cut) > FEWEST else ""
        self.setText(self._shown.replace("&", "&&"))
        self.setToolTip(plain_tooltip(self._label) if self._shown != self._label else "")

    def open_menu(self, choices: Sequence[ModelChoice], backends: Sequence[BackendChoice] = ()) -> None:
        """Shows what is on the shelf and what can run it, under the chip."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setLayoutDirection(QApplication.layoutDirection())  # not the chip's own
        menu.setAccessibleName(self.tr("Models"))
        group = QActionGroup(menu)
        for choice in choices:
            label, detail = (" ".join(words.split()).replace("&", "&&") for words in (choice.label, choice.detail))
            action = QAction(f"{label}\t{detail}", group, checkable=True, checked=choice.loaded)
            action.triggered.connect(lambda _checked, source=choice.source: self.chosen.emit(source))
            menu.addAction(action)
        if not choices:
            menu.addAction(self.tr("No model is here yet")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(self.tr("More models…")).triggered.connect(lambda _checked=False: self.more_wanted.emit())
        self._add_backends(menu, backends)
        right = self.mapToGlobal(QPoint(self.width(), self.height() + 4))
        menu.popup(QPoint(right.x() - menu.sizeHint().width(), right.y()))

    def _add_backends(self, menu: QMenu, backends: Sequence[BackendChoice]) -> None:
        if not backends:
            return
        menu.addSeparator()
        group = QActionGroup(menu)
        for backend in backends:
            words = self.tr("run on {0}").format(backend.name).replace("&", "&&")
            problem = backend.problem.replace("&", "&&")
            action = QAction(f"{words}\t{problem}" if problem else words, group, checkable=True, checked=backend.chosen)
            action.setEnabled(not backend.problem)
            action.triggered.connect(lambda _checked, name=backend.name: self.backend_chosen.emit(name))
            menu.addAction(action)

    def _tint(self, _palette: object = None) -> None:
        px = scaled(SIZE_PX)
        self.setIconSize(QSize(px, px))
        self.setIcon(icon("chevron-down", self._theme.palette.soft, px))
