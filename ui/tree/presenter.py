"""Opens, closes and updates the full-window tree, and carries out its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication, QWidget
from shiboken6 import isValid

from ui.controller import Controller
from ui.port import RowText, TreeRow
from ui.tree.rows import Key
from ui.window.frame import Frame

READ_AT_FIRST = 80  # rows around the shown one whose texts are read before the tree opens


class TreePresenter(QObject):
    """Shows the tree instead of the conversation; on closing, restores the focus.

    Args:
        controller: Reads and changes the tree.
        parts: Widgets of the window.
        parent: Qt parent.
    """

    def __init__(self, controller: Controller, parts: Frame, parent: QObject) -> None:
        super().__init__(parent)
        self._controller, self._parts, self._panel = controller, parts, parts.tree
        self._before: QWidget | None = None  # had the focus before the tree opened
        self._compares: int | None = None  # the session whose comparison of two branches replaces the tree
        self._wanted = False  # the tree opens when its rows are read
        self._changing: set[Key] = set()  # rows with a requested change, until they are read again
        tree, panel = controller.tree, self._panel
        tree.rows_read.connect(self._show)
        tree.texts_read.connect(panel.view.rows.take_texts)
        tree.rows_found.connect(panel.show_found)
        panel.view.rows.texts_wanted.connect(tree.read_texts)
        panel.view.opened.connect(self._open_row)
        panel.search_wanted.connect(tree.find_rows)
        panel.back.clicked.connect(self.close)
        panel.compare_wanted.connect(tree.compare_two)
        panel.refused.connect(parts.toast.say)
        panel.view.bookmark_wanted.connect(lambda row: self._change(row, tree.bookmark))
        panel.view.prune_wanted.connect(
            lambda row: self._change(row, lambda row: tree.prune(row.node_id, row.start, not row.pruned))
        )
        panel.view.rename_wanted.connect(parts.sidebar.tree.ask_name)
        tree.compared.connect(self._hide_for_comparison)
        parts.compare.closed.connect(self._reopen)
        controller.session_shown.connect(lambda _view: self._refresh())
        controller.other_shown.connect(lambda _session: self.close())
        controller.refused.connect(self._show_refusal)

    @property
    def is_open(self) -> bool:
        """Whether the tree is shown instead of the conversation."""
        return not self._panel.isHidden()

    def toggle(self) -> None:
        if self.is_open:
            self.close()
        elif self._controller.shown is not None and self._controller.shown.view.turns:
            self._wanted, self._compares = True, None
            self._controller.tree.read_rows(READ_AT_FIRST)

    def close(self) -> None:
        """Shows the conversation again and restores the focus."""
        self._wanted = False
        if not self.is_open:
            return
        self._panel.finder.dismiss()
        self._parts.show_tree(False)
        before, self._before = self._before, None
        if before is not None and isValid(before) and before.isVisible():
            before.setFocus()
        else:
            self._parts.transcript.setFocus()

    def _show(self, rows: Sequence[TreeRow], texts: Mapping[Key, RowText]) -> None:
        opens = self._wanted
        self._wanted = False
        self._changing.clear()
        if not opens and not self.is_open:
            return
        self._panel.show_rows(rows, texts, afresh=opens)
        if opens:
            self._before = QApplication.focusWidget()
            self._parts.show_tree(True)
            self._panel.view.setFocus()

    def _hide_for_comparison(self) -> None:
        """Hides the tree for a comparison that was requested in it, until that is closed."""
        self._compares = None
        if self.is_open and self._controller.shown is not None:
            self._compares = self._controller.shown.session_id
            self._panel.finder.dismiss()
            self._parts.show_tree(False)

    def _reopen(self) -> None:
        compared, self._compares = self._compares, None
        if compared is not None and self._controller.is_shown(compared):
            self._parts.show_tree(True)
            self._panel.view.setFocus()
            self._refresh()

    def _refresh(self) -> None:
        if self.is_open:
            self._controller.tree.read_rows(READ_AT_FIRST)

    def _open_row(self, row: TreeRow) -> None:
        self.close()
        self._controller.tree.open_row(row)

    def _change(self, row: TreeRow, change: Callable[[TreeRow], None]) -> None:
        """Changes a row, unless its last change is not shown yet."""
        if row.key not in self._changing:
            self._changing.add(row.key)
            change(row)

    def _show_refusal(self, words: str) -> None:
        self._changing.clear()
        if self.is_open:
            self._parts.toast.say(words)
