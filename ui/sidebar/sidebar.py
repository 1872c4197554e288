"""The left panel: sessions above, the branches of the open one below."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.port import SessionView
from ui.sidebar.branch_tree import BranchTree
from ui.sidebar.sessions import SessionPanel
from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_width
from ui.widgets.controls import button, row
from ui.widgets.labels import Caption, Hairline

WIDTH = 248


class Sidebar(QWidget):
    """Session list and branch outline; the outline is there once the session has a turn."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("sidebar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_width(self, WIDTH)
        self.sessions = SessionPanel()
        self.tree = BranchTree()
        self._branches = QWidget()
        lower = QVBoxLayout(self._branches)
        lower.setContentsMargins(0, 14, 0, 0)
        lower.setSpacing(0)
        caption = self.caption = Caption(self.tr("Branches"))
        caption.setContentsMargins(8, 16, 8, 6)
        lower.addWidget(Hairline())
        lower.addWidget(caption)
        lower.addWidget(self.tree, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 10, 11, 8)  # the hairline at the right is inside
        column.setSpacing(0)
        column.addWidget(self.sessions)
        column.addWidget(self._branches, 1)
        column.addStretch(0)
        self.trash_shown = False  # in the place of the sessions
        self.trash = button(self.tr("Trash"), "plain")
        self.trash.setFont(interface_font(12.5))
        place = row(self.trash, 1)
        place.setContentsMargins(8, 6, 0, 0)
        column.addLayout(place)

    def show_place(self, *, trash: bool) -> None:
        """What the list shows: the trash, or the sessions. The button leads to the other one."""
        self.trash_shown = trash
        self.trash.setText(self.tr("‹ All sessions") if trash else self.tr("Trash"))

    def show_session(self, view: SessionView) -> None:
        self.sessions.show_open(view.session_id)
        self._branches.setVisible(bool(view.branches))
        pruned = sum(row.pruned for row in view.branches)
        self.caption.setText(self.tr("Branches · {0} pruned").format(pruned) if pruned else self.tr("Branches"))
        self.tree.show_branches(view.branches)

    def show_pruned(self, show: bool) -> None:  # a state, not an option
        """Whether branches that were pruned stand in the outline, faint."""
        self.tree.set_pruned_visible(show)
