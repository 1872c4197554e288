"""The left panel: sessions above, the branches of the open one below."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QWidget

from ui.port import SessionView
from ui.sidebar.branch_tree import BranchTree
from ui.sidebar.sessions import SessionPanel
from ui.theme.fonts import interface_font
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_width, panel_width
from ui.widgets.controls import button, column_in, row
from ui.widgets.labels import Caption, Hairline, plain_tooltip

WIDTH, LEAST, MOST = 248, 180, 520  # pixels at 100 % text
GRIP_PX, STEP_PX = 6, 16


class Grip(QAbstractButton):
    """The edge of the sidebar: a drag or the arrow keys change the width, a double click restores the default."""

    moved = Signal(int)  # the new width, in pixels at 100 % text

    def __init__(self, sidebar: Sidebar) -> None:
        super().__init__(sidebar)
        self._sidebar = sidebar
        self.setCursor(Qt.CursorShape.SplitHCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(self.tr("Width of the sidebar"))
        self.setToolTip(plain_tooltip(self.tr("Drag to make the sidebar wider; double-click for its usual width")))

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            share = panel_width(1000) / 1000
            self.moved.emit(round(self._sidebar.mapFromGlobal(event.globalPosition()).x() / share))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        self.moved.emit(WIDTH)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        by = {Qt.Key.Key_Left: -STEP_PX, Qt.Key.Key_Right: STEP_PX}.get(Qt.Key(event.key()), 0)
        if by:
            self.moved.emit(self._sidebar.wanted_width + by)
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        if self.hasFocus():
            painter = QPainter(self)
            painter.fillRect(self.width() - 2, 0, 2, self.height(), QColor(current_theme().palette.accent))
            painter.end()


class Sidebar(QWidget):
    """Session list and branch outline; the outline is shown once the session has a turn."""

    resized = Signal()  # by the user

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sidebar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.wanted_width = WIDTH
        fix_width(self, WIDTH)
        self.grip = Grip(self)
        self.grip.moved.connect(self.set_width)
        self.sessions = SessionPanel()
        self.tree = BranchTree()
        self._branches = QWidget()
        self._has_branches, self._shows_outline = False, True
        caption = self.caption = Caption(self.tr("Branches"))
        caption.setContentsMargins(8, 16, 8, 6)
        column_in(self._branches, Hairline(), caption, (self.tree, 1), spacing=0, margins=(0, 14, 0, 0))
        self.trash_shown = False  # instead of the sessions
        self.trash = button(self.tr("Trash"), "plain")
        self.trash.setFont(interface_font(12.5))
        place = row(self.trash, 1)
        place.setContentsMargins(8, 6, 0, 0)
        # the hairline at the right is inside
        column_in(self, self.sessions, (self._branches, 1), 0, place, spacing=0, margins=(10, 10, 11, 8))

    def set_width(self, px: int) -> None:
        """Sets the width within its bounds, in pixels at 100 % text."""
        self.wanted_width = min(max(px, LEAST), MOST)
        fix_width(self, self.wanted_width)
        self.resized.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.grip.setGeometry(self.width() - GRIP_PX, 0, GRIP_PX, self.height())
        self.grip.raise_()

    def show_place(self, *, trash: bool) -> None:
        """Labels the button for the other list: `trash` says that the trash is shown."""
        self.trash_shown = trash
        self.trash.setText(self.tr("‹ All sessions") if trash else self.tr("Trash"))

    def show_session(self, view: SessionView) -> None:
        self.sessions.rows.mark_open(view.session_id)
        self._has_branches = bool(view.branches)
        self.show_outline(self._shows_outline)
        pruned = sum(row.pruned for row in view.branches)
        self.caption.setText(self.tr("Branches · {0} pruned").format(pruned) if pruned else self.tr("Branches"))
        self.tree.show_branches(view.branches)

    def show_outline(self, show: bool) -> None:  # a state, not an option
        """Shows the branches under the sessions if there are any; hidden beside the full-window tree."""
        self._shows_outline = show
        self._branches.setVisible(show and self._has_branches)
