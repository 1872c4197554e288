"""What was shown before, fading over what is shown now: another branch does not jump into the eye."""

from __future__ import annotations

from PySide6.QtCore import Property, QEasingCurve, QPropertyAnimation, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import QWidget

from ui.theme.scheme import current_theme


class Veil(QWidget):
    """A picture of a widget over it, for as long as `Theme.fade_ms`. It takes no part in mouse, focus or accessibility."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._picture = QPixmap()
        self._strength = 0.0
        self._animation = QPropertyAnimation(self, b"strength", self)
        self._animation.setEasingCurve(QEasingCurve.Type.OutCubic)
        self._animation.setStartValue(1.0)
        self._animation.setEndValue(0.0)
        self._animation.finished.connect(self._end)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.hide()

    def fall(self, over: QWidget) -> None:
        """Keeps what `over` shows, a sibling or a child of one, and lets it fade; nothing where nothing is to move."""
        self._end()
        duration = current_theme().fade_ms
        parent = self.parentWidget()
        if not duration or not over.isVisible() or parent is None:
            return
        self._picture = over.grab()
        self.setGeometry(over.rect().translated(over.mapTo(parent, over.rect().topLeft())))
        self.show()
        self.raise_()
        self._animation.setDuration(duration)
        self._animation.start()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # Qt's signature
        painter = QPainter(self)
        painter.setOpacity(self._strength)
        painter.drawPixmap(0, 0, self._picture)
        painter.end()

    def _get_strength(self) -> float:
        return self._strength

    def _set_strength(self, value: float) -> None:
        self._strength = value
        self.update()

    strength = Property(float, _get_strength, _set_strength)

    def _end(self) -> None:
        self._animation.stop()
        self.hide()
        self._picture = QPixmap()
