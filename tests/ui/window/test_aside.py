"""What opens in a row of the shelf is left with Escape, and gives the keyboard back; it takes none that was elsewhere."""

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
def test_escape_leaves_it_and_the_keyboard_goes_back(
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
    # when it opens it has the keyboard, and Escape leaves it
    ask()
    focused = QApplication.focusWidget()
    assert focused is not None
    assert aside.isAncestorOf(focused)
    QTest.keyClick(focused, Qt.Key.Key_Escape)
    assert aside.isHidden()
    assert home.hasFocus()
    # and where the keyboard has gone elsewhere meanwhile, it stays there
    ask()
    field.setFocus()
    aside.leave()
    assert field.hasFocus()
