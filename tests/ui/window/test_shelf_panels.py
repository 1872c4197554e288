"""Panels that open in a row of the shelf: Escape closes them and returns the keyboard focus, unless it has moved elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from ui.models.bars import AskBar, QuantiseBar
from ui.models.load_card import LoadCard
from ui.models.token_row import InlinePanel
from ui.port import LoadChoice, LoadPlan


def question(home: QWidget) -> tuple[InlinePanel, Callable[[], None]]:
    bar = AskBar(home, "Keep")
    return bar, lambda: bar.ask("delete it for good?", "Remove")


def bits(home: QWidget) -> tuple[InlinePanel, Callable[[], None]]:
    bar = QuantiseBar(home)
    return bar, bar.ask


def plan(home: QWidget) -> tuple[InlinePanel, Callable[[], None]]:
    card = LoadCard(home)
    return card, lambda: card.show_plan(LoadPlan(LoadChoice(), None))


@pytest.mark.parametrize("make", [question, bits, plan])
def test_escape_closes_the_panel_and_returns_the_keyboard_focus(
    app: QApplication, qtbot: QtBot, make: Callable[[QWidget], tuple[InlinePanel, Callable[[], None]]]
) -> None:
    # given
    page, home, field = QWidget(), QPushButton("Open"), QLineEdit()
    aside, ask = make(home)
    column = QVBoxLayout(page)
    for part in (home, field, aside):
        column.addWidget(part)
    qtbot.addWidget(page)
    page.show()
    page.activateWindow()
    qtbot.waitUntil(page.isActiveWindow)
    assert aside.isHidden()
    # when it opens it has the keyboard focus, and Escape closes it
    ask()
    focused = QApplication.focusWidget()
    assert focused is not None
    assert aside.isAncestorOf(focused)
    QTest.keyClick(focused, Qt.Key.Key_Escape)
    assert aside.isHidden()
    assert home.hasFocus()
    # and keyboard focus that has moved elsewhere meanwhile stays there
    ask()
    field.setFocus()
    aside.leave()
    assert field.hasFocus()
