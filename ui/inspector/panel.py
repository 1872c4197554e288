"""The inspector: its tabs and what they are given."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QPushButton, QWidget

from ui.controller import Controller
from ui.core.shown import Spot
from ui.inspector.cache import CacheTab
from ui.inspector.depth import DepthTab
from ui.inspector.path import PathTab
from ui.inspector.tab import BytesOf, Empty, HowMade, InspectorTab
from ui.inspector.token import TokenTab
from ui.inspector.why import WhyTab
from ui.port import StatusView, TurnView, translate
from ui.theme.fonts import interface_font
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height, fix_width
from ui.widgets.controls import column_in
from ui.widgets.tabs import Tabs

WIDTH = 332
TABS: tuple[type[InspectorTab], ...] = (TokenTab, PathTab, CacheTab, WhyTab, DepthTab)  # in the order shown
T = TypeVar("T", bound=InspectorTab)


class Inspector(QWidget):
    """Passes its data on to its tabs; a path only to the current tab, for sums over it take time."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("inspector")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_width(self, WIDTH)
        self._row = Tabs((16, 8, 16, 0), 16, make=_tab, sideways=False)
        fix_height(self._row, 44)
        self.pages = tuple(make() for make in TABS)
        for page in self.pages:
            self._row.add(translate("Inspector", page.title), page)
        self.token, self.path, self.why = self.page(TokenTab), self.page(PathTab), self.page(WhyTab)
        self.tabs = self._row.buttons
        theme = current_theme()
        theme.developer_changed.connect(self._show_developer_tabs)
        self._show_developer_tabs(theme.developer)
        self._path: tuple[TurnView, ...] = ()
        self._how_made: HowMade = lambda _node: None
        self._stale: set[InspectorTab] = set()  # tabs that have not shown the present path
        self._row.page_shown.connect(lambda _place: self._refresh_path())
        column_in(self, self._row, (self._row.stack, 1), spacing=0, margins=(1, 0, 0, 0))  # the hairline at the left is inside

    def bind(self, controller: Controller) -> None:
        controller.status_changed.connect(self.show_status)
        for page in self.pages:
            page.bind(controller)

    def show_spot(self, spot: Spot | None, vocabulary: BytesOf, *, can_choose: bool, can_continue: bool = False) -> None:
        for page in self.pages:
            page.show_spot(spot, vocabulary, can_choose=can_choose, can_continue=can_continue)

    def show_path(self, turns: tuple[TurnView, ...], how_made: HowMade = lambda _node: None) -> None:
        self._path, self._how_made, self._stale = turns, how_made, set(self.pages)
        has_tokens = any(not np.isnan(turn.run.logprob).all() for turn in turns)
        for empty in self.findChildren(Empty):
            empty.set_has_tokens(has_tokens)
        self._refresh_path()

    def page(self, kind: type[T]) -> T:
        return next(page for page in self.pages if isinstance(page, kind))

    def _show_developer_tabs(self, show: bool) -> None:  # a state, not an option
        for page, tab in zip(self.pages, self.tabs, strict=True):
            tab.setVisible(show or not page.for_developers)
        if not show and self.pages[self._row.stack.currentIndex()].for_developers:
            self.show_page(self.token)

    def show_page(self, page: InspectorTab) -> None:
        """Makes a tab the current one."""
        self._row.show_page(self.pages.index(page))

    def show_status(self, status: StatusView) -> None:
        for page in self.pages:
            page.show_status(status)

    def _refresh_path(self) -> None:
        page = self.pages[self._row.stack.currentIndex()]
        if page in self._stale:
            self._stale.discard(page)
            page.show_path(self._path, self._how_made)


def _tab(words: str) -> QPushButton:
    made = QPushButton(words)
    made.setCheckable(True)
    made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    made.setProperty("kind", "tab")

    def weigh(on: bool) -> None:  # as the signal brings it
        made.setFont(interface_font(weight=QFont.Weight.DemiBold if on else QFont.Weight.Normal))

    weigh(False)
    made.toggled.connect(weigh)
    return made
