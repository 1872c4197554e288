"""The branches of the session shown: selection, pruning, names, bookmarks, search and comparison."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from ui.core.undo import UndoStep
from ui.port import Hit, RowText, SessionView, TreeRow

if TYPE_CHECKING:
    from ui.controller.controller import Controller


class TreeController(QObject):
    """Part of `Controller`."""

    compared = Signal(object)  # BranchDiff of the session that is shown
    hit_shown = Signal(int, str)  # a turn of the path shown, and the words found in it
    turn_shown = Signal(int)  # a turn that was navigated to; its path is shown
    rows_read = Signal(object, object)  # Sequence[TreeRow] of the whole tree; RowText by key, for some of them
    texts_read = Signal(object)  # RowText by the key of its row
    earlier_read = Signal(object)  # (node id, text) of each turn of the path before those that are shown
    rows_found = Signal(object)  # keys of the rows that contain the words searched for

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench
        self._undo = controller.undo_stack

    def select(self, node_id: int, shown: Callable[[], None] | None = None) -> None:
        """Shows the path through a node, then calls `shown` unless refused; can be undone."""
        select = self._workbench.branches.select
        self._controller.ask(lambda session: self._show_path(session, partial(select, session, node_id), shown))

    def go_to(self, node_id: int) -> None:
        """Shows a turn on any branch; a change of branch can be undone."""
        self._show_turn(node_id, self.turn_shown.emit)

    def open_row(self, row: TreeRow) -> None:
        """Shows the turn of a row of the tree, and its branch; a change of branch can be undone."""
        shown = self._controller.shown
        view = shown.view if shown is not None else None
        if view is not None and row.on_path and (not view.earlier or view.turns[0].node_id < row.end):
            self.turn_shown.emit(_turn_through(view, row.end))
        else:
            self._controller.ask(lambda session: self._go_to(session, row.end, self.turn_shown.emit))

    def read_rows(self, most: int) -> None:
        """Reads the rows of the whole tree, and the texts of at most `most` of them around the current one."""
        self._controller.ask_latest("tree", lambda session: self._read_rows(session, most))

    def read_texts(self, rows: Sequence[TreeRow]) -> None:
        read = self._workbench.branches.row_texts
        self._controller.ask_shown(
            "tree-texts", lambda session: read(session, rows), lambda texts: self.texts_read.emit(_by_key(rows, texts))
        )

    def find_rows(self, words: str) -> None:
        """Finds the rows that contain these words; blank words cancel the previous search."""
        find = self._workbench.branches.find_rows
        if words.strip():
            self._controller.ask_shown("tree-search", lambda session: find(session, words), self.rows_found.emit)
        else:
            self._controller.tasks.drop("tree-search")

    def read_earlier(self) -> None:
        """Reads the texts of the turns before those that are shown."""
        self._controller.ask_shown("earlier-texts", self._workbench.branches.earlier_texts, self.earlier_read.emit)

    def show_from(self, node_id: int) -> None:
        """Shows the path from before an earlier turn on."""
        show = self._workbench.branches.show_turn
        self._controller.ask_shown("earlier", lambda session: show(session, node_id), self._controller.show_answer)

    def open_at(self, session_id: int, hit: Hit) -> None:
        """Opens a session at a search result, on any branch."""
        has_to_open = self._controller.has_to_open(session_id)
        self._controller.tasks.latest("open", self._open_at(session_id, hit, has_to_open=has_to_open))

    def step_variant(self, by: int) -> None:
        """Shows the previous (-1) or next (+1) sibling of the deepest turn that has any."""
        fork = self._controller.shown.fork if self._controller.shown is not None else None
        target = fork.step(by) if fork is not None else None
        if target is not None:
            self.select(target)

    def compare(self, node_id: int) -> None:
        """Compares the branch that is shown with the one through that node."""
        if self._tip is not None:
            self.compare_two(self._tip, node_id)

    def prune(self, node_id: int, start: int, pruned: bool) -> None:  # a state, not an option
        """Prunes a branch, or restores it; can be undone."""
        self._controller.ask(lambda session: self._prune(session, (node_id, start), pruned=pruned))

    def rename(self, node_id: int, start: int, before: str, name: str) -> None:
        """Gives a branch another name than the one `before`; can be undone."""
        if name != before:
            self._controller.ask(lambda session: self._rename(session, (node_id, start), before, name))

    def bookmark(self, row: TreeRow) -> None:
        """Marks a row of the tree, or takes the mark away; can be undone."""
        self._controller.ask(lambda session: self._bookmark(session, row.key, marked=not row.bookmarked))

    def compare_two(self, left: int, right: int) -> None:
        """Compares the branches through two nodes."""
        compare = self._workbench.branches.compare
        self._controller.ask_shown("compare", lambda session: compare(session, left, right), self.compared.emit)

    def remember_branch(self, session_id: int, before: int, after: int) -> None:
        """Adds the undo step of a new branch. Undo shows the path through `before` again; the branch stays in the tree."""
        self._remember(self.tr("New Branch"), session_id, before, after)

    @property
    def _tip(self) -> int | None:
        """The last node of the path shown; None if it is empty."""
        shown = self._controller.shown
        return shown.view.turns[-1].node_id if shown is not None and shown.view.turns else None

    def _show_turn(self, node_id: int, then: Callable[[int], None]) -> None:
        """Calls `then` with a turn, once it is part of the path shown."""
        if self._controller.shown is not None and self._controller.shown.turn(node_id) is not None:
            then(node_id)
        else:
            self._controller.ask(lambda session: self._go_to(session, node_id, then))

    async def _go_to(self, session_id: int, node_id: int, then: Callable[[int], None]) -> None:
        await self._show_path(session_id, partial(self._workbench.branches.show_turn, session_id, node_id))
        shown = self._controller.shown
        if shown is not None and shown.session_id == session_id:
            then(_turn_through(shown.view, node_id))

    async def _show_path(
        self, session_id: int, show: Callable[[], Awaitable[SessionView]], shown: Callable[[], None] | None = None
    ) -> None:
        async with self._undo.lock:
            before = self._tip
            if before is None or not self._controller.is_shown(session_id):
                return
            view = await show()
            after = view.turns[-1].node_id
            if after != before:
                self._remember(self.tr("Branch Selection"), session_id, before, after)
            if self._controller.is_shown(session_id):
                self._controller.show_answer(view)
                if shown is not None:
                    shown()

    async def _read_rows(self, session_id: int, most: int) -> None:
        branches = self._workbench.branches
        rows = await branches.tree(session_id)
        current = next((i for i, row in enumerate(rows) if row.current), 0)
        near = rows[max(current - most // 2, 0) :][:most]
        texts = await branches.row_texts(session_id, near)
        if self._controller.is_shown(session_id):
            self.rows_read.emit(rows, _by_key(near, texts))

    def _remember(self, label: str, session_id: int, before: int, after: int) -> None:
        back, again = partial(self._select, session_id, before), partial(self._select, session_id, after)
        exists = partial(self._workbench.branches.has, session_id, after)
        self._undo.remember(UndoStep(label, session_id, back, again, waits=True, can_redo=exists))

    async def _open_at(self, session_id: int, hit: Hit, *, has_to_open: bool) -> None:
        if has_to_open:
            await self._controller.open_session(session_id)
        if self._controller.is_shown(session_id):  # else another window shows it
            self._show_turn(hit.node_id, lambda turn: self.hit_shown.emit(turn, hit.words))

    async def _select(self, session_id: int, node_id: int) -> None:
        """Selects a branch; opens its session if another one is shown by now, so that the effect can be seen."""
        view = await self._workbench.branches.select(session_id, node_id, as_before=True)
        if self._controller.is_shown(session_id):
            self._controller.show_answer(view)
        else:
            self._controller.open(session_id)

    async def _bookmark(self, session_id: int, key: tuple[int, int], *, marked: bool) -> None:
        change = partial(self._workbench.branches.bookmark, session_id, *key)
        await change(marked)
        label = self.tr("Bookmark") if marked else self.tr("Remove Bookmark")
        self._undo.remember(UndoStep(label, session_id, partial(change, not marked), partial(change, marked)))

    async def _rename(self, session_id: int, branch: tuple[int, int], before: str, name: str) -> None:
        rename = self._workbench.branches.rename
        await rename(session_id, *branch, name)
        back, again = (partial(rename, session_id, *branch, each) for each in (before, name))
        self._undo.remember(UndoStep(self.tr("Rename Branch"), session_id, back, again))

    async def _prune(self, session_id: int, branch: tuple[int, int], *, pruned: bool) -> None:
        prune = partial(self._workbench.branches.prune, session_id, *branch)
        async with self._undo.lock:
            before = self._tip if self._controller.is_shown(session_id) else None
            await prune(pruned)

        async def back() -> None:
            await prune(not pruned)
            if self._controller.is_shown(session_id) and pruned and before is not None:
                await self._select(session_id, before)

        label = self.tr("Prune Branch") if pruned else self.tr("Restore Branch")
        self._undo.remember(UndoStep(label, session_id, back, partial(prune, pruned), waits=True))


def _turn_through(view: SessionView, node_id: int) -> int:
    """The turn of a path that contains a node: a node's id is higher than its parent's."""
    turns = [turn.node_id for turn in view.turns]
    return node_id if node_id in turns else next((turn for turn in turns if turn >= node_id), node_id)


def _by_key(rows: Sequence[TreeRow], texts: Sequence[RowText]) -> dict[tuple[int, int], RowText]:
    return {row.key: text for row, text in zip(rows, texts, strict=True)}
