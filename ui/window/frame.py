"""The layout of the window's parts, and its adaptation to little room."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from ui.comparison.branches import ComparePane
from ui.comparison.continuations import ColumnsPanel
from ui.comparison.model_bar import ComparisonBar
from ui.comparison.similar_panel import SimilarPanel
from ui.composer.composer import Composer
from ui.inspector import Inspector
from ui.inspector.panel import WIDTH as INSPECTOR_WIDTH
from ui.models.offers import FirstModels
from ui.port import BranchDiff
from ui.sidebar.sidebar import WIDTH as SIDEBAR_WIDTH
from ui.sidebar.sidebar import Sidebar
from ui.theme.scheme import current_theme
from ui.theme.text_size import panel_width
from ui.transcript import TranscriptView
from ui.transcript.overlay.pinned_card import PinnedCard
from ui.transcript.overlay.tool_cards import ToolCards
from ui.tree.panel import TreePanel
from ui.widgets.controls import column_in, fill, row
from ui.widgets.labels import Notice
from ui.window.bars import CoachMark, FindBar, LinkBar
from ui.window.status import StatusBar
from ui.window.toast import Toast
from ui.window.topbar import TopBar

INSPECTOR_NEEDS = 1060  # pixels of window below which the inspector folds: the text keeps 480
SIDEBAR_NEEDS = 728
BOTH_NEED = 960  # below this width only the panel that was asked for last is shown
NARROW = 420  # pixels of column, at 100 % text, below which the composer takes the whole width instead of that of the text
EDGE = 12  # left and right of the composer in a narrow column
BELOW = 16  # under the composer
LEFT, RIGHT = 104, 44  # margins of the composer until the transcript reports its column


class Frame(QWidget):
    """The panels, the status bar, and the top bar, which the window places over them.

    Panels fold from the right as the window narrows; a folded panel opens if it is asked for.
    """

    panels_changed = Signal()

    def __init__(self, *, sidebar: bool, inspector: bool) -> None:
        super().__init__()
        self.top = TopBar()
        self.sidebar = Sidebar()
        self.transcript = TranscriptView()
        self.compare = ComparePane()
        self.comparison = ComparisonBar()
        self.similar = SimilarPanel()
        self.columns = ColumnsPanel()
        self.finder = FindBar()
        self.link = LinkBar()
        self.coach = CoachMark()
        self.first = FirstModels()
        self.writer = Notice("undo")  # another model wrote the session shown
        self.cards = ToolCards(self.transcript)
        self.column = QWidget()
        self.pinned = PinnedCard(self.transcript, self.column)
        self.toast = Toast(self.transcript, self.column)
        self.composer = Composer()
        self.inspector = Inspector()
        self.tree = TreePanel()
        self.status = StatusBar()
        self.wants_sidebar, self.wants_inspector = sidebar, inspector
        self._room = (True, True)  # whether there is room for the sidebar and for the inspector
        self._tree_open = self._inspector_after = False  # and whether the inspector is shown once the tree is closed
        self._cards: dict[QWidget, bool] = {self.coach: False, self.first: False}  # over the composer; whether each is wanted
        self._foot = QVBoxLayout()
        self._lay_out()
        self.transcript.column_changed.connect(self._align)
        self.compare.closed.connect(self.transcript.show)
        for first, second in (
            (self.sidebar.sessions.search, self.sidebar.sessions.view),
            (self.sidebar.sessions.view, self.sidebar.tree),
            (self.sidebar.tree, self.transcript),
            (self.transcript, self.columns),
            (self.columns, self.composer.field),
            (self.composer.field, self.composer.send_button),
        ):
            QWidget.setTabOrder(first, second)
        self.sidebar.resized.connect(self._take_width)
        self._show(self.sidebar, sidebar)
        self._show(self.inspector, inspector)
        current_theme().scaled.connect(self._fold)

    def show_comparison(self, diff: BranchDiff) -> None:
        """Shows two branches in place of the conversation, until Esc."""
        self.finder.dismiss()
        self.transcript.hide()
        self.compare.show_diff(diff)

    def show_tree(self, show: bool) -> None:  # a state, not an option
        """Shows the tree of the session in place of conversation and inspector, which keep their state."""
        if show:
            self.pinned.close_again()
        inspector = self._inspector_after if self._tree_open else not self.inspector.isHidden()
        self._tree_open = show
        self.sidebar.show_outline(not show)
        self.column.setVisible(not show)
        self.tree.setVisible(show)
        self._show(self.inspector, inspector)
        self.toast.float_over(self.tree.view if show else self.transcript, self.tree if show else self.column)

    def put_over_composer(self, card: QWidget) -> None:
        """Adds a card over the composer; `show_card` shows it."""
        self._foot.insertWidget(0, card)
        self._cards[card] = False
        before = self.composer.field.previousInFocusChain()
        # Qt ignores a tab order after a widget without focus
        while before is not None and before.focusPolicy() is Qt.FocusPolicy.NoFocus:
            before = before.previousInFocusChain()
        assert before is not None  # the chain is a ring, and the field is on it
        for stop in card.findChildren(QPushButton):
            QWidget.setTabOrder(before, stop)
            before = stop

    def show_card(self, card: QWidget, wanted: bool) -> None:  # a state, not an option
        """Shows a card over the composer as soon as there is room for all of it, or hides it."""
        self._cards[card] = wanted
        self._fit_cards()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: ARG002  # the signature is Qt's
        if event.type() in (QEvent.Type.Resize, QEvent.Type.LayoutRequest):
            self._fit_cards()
        return False

    def _fit_cards(self) -> None:
        """Shows the wanted cards that fit without cutting the transcript below its minimum height."""
        sides = self._foot.contentsMargins()
        width = self.column.width() - sides.left() - sides.right()
        room = self.column.contentsRect().height() - self.composer.sizeHint().height() - BELOW
        room -= self.transcript.minimumSizeHint().height()
        for card, wanted in self._cards.items():
            needed = card.heightForWidth(width) if card.hasHeightForWidth() else card.sizeHint().height()
            shown = wanted and needed + self._foot.spacing() <= room
            card.setVisible(shown)
            room -= needed + self._foot.spacing() if shown else 0

    def show_sidebar(self, show: bool) -> None:  # a state, not an option
        """Shows or hides the sidebar at the user's request; the inspector is hidden if there is no room for both."""
        self.wants_sidebar = show
        self._show(self.sidebar, show)
        if show and self.width() < BOTH_NEED + self._grown():
            self._show(self.inspector, show=False)

    def show_inspector(self, show: bool) -> None:  # a state, not an option
        """Shows or hides the inspector at the user's request; the sidebar is hidden if there is no room for both."""
        self.wants_inspector = show
        if show and self.width() < BOTH_NEED + self._grown():
            self._show(self.sidebar, show=False)
        self._show(self.inspector, show)
        if not show and self.wants_sidebar and self._room[0]:
            self._show(self.sidebar, show=True)  # it was hidden for the inspector

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fold()

    def _take_width(self) -> None:
        """Adapts to a new width of the sidebar."""
        self.top.align_title(not self.sidebar.isHidden(), self.sidebar.wanted_width)
        self._fold()

    def _grown(self) -> int:
        """Pixels by which both panels are wider than by default at 100 % text."""
        return panel_width(self.sidebar.wanted_width) - SIDEBAR_WIDTH + panel_width(INSPECTOR_WIDTH) - INSPECTOR_WIDTH

    def _fold(self) -> None:
        room = (self.width() >= SIDEBAR_NEEDS + self._grown(), self.width() >= INSPECTOR_NEEDS + self._grown())
        if room != self._room:  # only on a change: a panel opened in a narrow window stays
            self._room = room
            self._show(self.sidebar, self.wants_sidebar and room[0])
            self._show(self.inspector, self.wants_inspector and room[1])
        if self.width() < BOTH_NEED + self._grown() and not self.sidebar.isHidden() and not self.inspector.isHidden():
            self._show(self.inspector, show=False)

    def _show(self, panel: QWidget, show: bool) -> None:  # a state, not an option
        if panel is self.inspector and self._tree_open:  # takes effect once the tree is closed
            self._inspector_after, show = show, False
        panel.setVisible(show)
        self.top.align_title(not self.sidebar.isHidden(), self.sidebar.wanted_width)
        self.panels_changed.emit()

    def _lay_out(self) -> None:
        column = self.column
        column.setObjectName("column")
        column.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        middle = column_in(column, self.finder, self.comparison, self.similar, spacing=0, margins=(0, 0, 0, BELOW))
        fill(middle, (self.transcript, 2), (self.columns, 3), (self.compare, 5))
        self._foot.setContentsMargins(LEFT, 0, RIGHT, 0)
        self._foot.setSpacing(8)
        fill(self._foot, self.coach, self.first, self.writer, self.link, self.composer)
        middle.addLayout(self._foot)
        column.installEventFilter(self)
        panels = row(self.sidebar, (column, 1), (self.tree, 1), self.inspector, spacing=0)
        column_in(self, (panels, 1), self.status, spacing=0)

    def _align(self, left: int, width: int) -> None:
        """Aligns composer and comparisons with the text; with the edges of a narrow column."""
        room = self.transcript.width()
        left, right = (EDGE, EDGE) if room < panel_width(NARROW) else (left, max(room - left - width, 0))
        self._foot.setContentsMargins(left, 0, right, 0)
        self.comparison.align(left)
        self.similar.align(left)
        self.compare.align(left, right)
