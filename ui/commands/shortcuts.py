"""The page of all shortcuts: those of the menus, of the conversation and of the tree."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QDialog, QFrame, QGridLayout, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from ui.port import QT_TRANSLATE_NOOP, translate
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, fill, grid, row
from ui.widgets.labels import Caption, Label

OF_TOKENS = (  # in Tokens mode, while the conversation or the card of a token has the keyboard
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Previous or next token"), "← →"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Card of the pinned token"), "↵"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Branch to an alternative"), "1 – 9"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Preview an alternative"), "␣"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Type words in place of the token"), "A–Z"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Write here instead (in the card)"), "Ctrl+↵"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Type digits and spaces (in the card)"), "F2"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Beginning of the session"), "Home"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "End of the session"), "End"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Close what is open"), "Esc"),
)
OF_TREE = (  # in the full-window tree
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Previous or next row"), "↑ ↓"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Fold, or go to the row above it; unfold"), "← →"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Show the branch in the conversation"), "↵"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Search in the tree"), "A–Z"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Show only what follows a row"), "Alt+→"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "The whole tree again"), "Alt+←"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Add or remove a bookmark"), "Ctrl+B"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Previous or next bookmark"), "Ctrl+↑↓"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "List of the bookmarks"), "Ctrl+Shift+B"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Mark a row for comparing"), "␣"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Prune a branch, or restore it"), "Del"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Rename a branch"), "F2"),
    (QT_TRANSLATE_NOOP("ShortcutsBox", "Back to the conversation"), "Esc"),
)


class ShortcutsBox(QDialog):
    """Open it with `open()`; it deletes itself.

    Args:
        menus: For each menu, its commands and their keys.
        parent: The window below it.
    """

    def __init__(self, menus: Sequence[tuple[str, Sequence[tuple[str, str]]]], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Keyboard Shortcuts"))
        tokens, tree = ([(translate("ShortcutsBox", words), keys) for words, keys in rows] for rows in (OF_TOKENS, OF_TREE))
        groups = [*menus, (self.tr("Conversation, as tokens"), tokens), (self.tr("Tree of the session"), tree)]
        half = sum(len(rows) for _title, rows in groups) / 2
        sides, held = (grid(24, 5), grid(24, 5)), 0
        for title, rows in groups:
            self._add(sides[held >= half], title, rows)
            held += len(rows)
        inside = QWidget()
        inside.setObjectName("page")
        both = QHBoxLayout(inside)
        both.setSpacing(36)
        for side in sides:
            side.setRowStretch(side.rowCount(), 1)
            both.addLayout(side)
        area = QScrollArea()
        area.setObjectName("shortcuts")
        area.setWidget(inside)
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setAccessibleName(self.windowTitle())
        close = button(self.tr("Close"))
        close.clicked.connect(self.close)
        fill(QVBoxLayout(self), (area, 1), row(1, close))
        wanted = inside.sizeHint().width() + 60, inside.sizeHint().height() + 90
        self.resize(min(wanted[0], parent.width()), min(wanted[1], parent.height()))

    def _add(self, side: QGridLayout, title: str, rows: Sequence[tuple[str, str]]) -> None:
        head = Caption(title)
        head.setContentsMargins(0, 12, 0, 2)
        side.addWidget(head, side.rowCount(), 0, 1, 2)
        for words, keys in rows:
            line = side.rowCount()
            side.addWidget(Label(words.removesuffix("…").replace("&&", "&")), line, 0)
            side.addWidget(Label(keys, "soft", interface_font(12.5, QFont.Weight.Medium)), line, 1)
