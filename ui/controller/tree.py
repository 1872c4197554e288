"""The branches of the session that is shown: which one is seen, which are out of sight, how two differ."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing
from ui.core.undo import Step, UndoStack
from ui.port import Hit, RowText, SessionView, TreeRow


class TreeController(QObject):
    """Part of `Controller`.

    Args:
        showing: The session that is shown.
        undo: Takes the ways back.
    """

    compared = Signal(object)  # BranchDiff of the session that is shown
    hit_shown = Signal(int, str)  # a turn of the path that is shown, and words that stand in it
    turn_shown = Signal(int)  # a turn that was gone to; its path is shown
    rows_read = Signal(object, object)  # of the whole tree: its rows, and by key what some of them say
    texts_read = Signal(object)  # RowText by the key of its row
    earlier_read = Signal(object)  # (node id, text) of each turn of the path before those that are shown
    rows_found = Signal(object)  # keys of the rows that contain what was looked for

    def __init__(self, showing: Showing, undo: UndoStack) -> None:
        super().__init__(showing)
        self._showing = showing
        self._workbench = showing.workbench
        self._undo = undo

    def select(self, node_id: int, shown: Callable[[], None] | None = None) -> None:
        """Shows the path through that node, then calls `shown`, unless it was refused; can be undone."""
        select = self._workbench.branches.select
        self._showing.ask(lambda session: self._show_path(session, partial(select, session, node_id), shown))

    def go_to(self, node_id: int) -> None:
        """Shows a turn, on whatever branch it is; another branch can be undone."""
        self._reach(node_id, self.turn_shown.emit)

    def open_row(self, row: TreeRow) -> None:
        """Shows the turn of a row of the tree, and its branch; another one can be undone."""
        shown = self._showing.shown
        view = shown.view if shown is not None else None
        if view is not None and row.on_path and (not view.earlier or view.turns[0].node_id < row.end):
            self.turn_shown.emit(_turn_through(view, row.end))
        else:
            self._showing.ask(lambda session: self._go_to(session, row.end, self.turn_shown.emit))

    def read_rows(self, most: int) -> None:
        """Asks for the rows of the whole tree, and for what `most` of them around the one that is shown say."""
        self._showing.ask_latest("tree", lambda session: self._read_rows(session, most))

    def read_texts(self, rows: Sequence[TreeRow]) -> None:
        """Asks for what these rows say."""
        self._showing.ask_latest("tree-texts", lambda session: self._read_texts(session, rows))

    def find_rows(self, words: str) -> None:
        """Asks which rows contain these words; blank ones end the search before."""
        if words.strip():
            self._showing.ask_latest("tree-search", lambda session: self._find_rows(session, words))
        else:
            self._showing.tasks.drop("tree-search")

    def read_earlier(self) -> None:
        """Asks what the turns before those that are shown say."""
        self._showing.ask_latest("earlier-texts", self._read_earlier)

    def show_from(self, node_id: int) -> None:
        """Shows the path from before one of those turns on."""
        self._showing.ask_latest("earlier", lambda session: self._show_from(session, node_id))

    def open_at(self, session_id: int, hit: Hit) -> None:
        """Opens a session where words were found, on whatever branch that is."""
        has_to_open = self._showing.has_to_open(session_id)
        self._showing.tasks.latest("open", self._open_at(session_id, hit, has_to_open=has_to_open))

    def step_variant(self, by: int) -> None:
        """To the previous (-1) or next (+1) sibling of the deepest turn that has any."""
        fork = self._showing.shown.fork if self._showing.shown is not None else None
        target = fork.step(by) if fork is not None else None
        if target is not None:
            self.select(target)

    def compare(self, node_id: int) -> None:
        """Compares the branch that is shown with the one through that node."""
        if self._tip is not None:
            self.compare_two(self._tip, node_id)

    def prune(self, node_id: int, start: int, pruned: bool) -> None:  # a state, not an option
        """Puts a branch out of sight, or back; can be undone."""
        self._showing.ask(lambda session: self._prune(session, (node_id, start), pruned=pruned))

    def rename(self, node_id: int, start: int, before: str, name: str) -> None:
        """Gives a branch another name than the one `before`; can be undone."""
        if name != before:
            self._showing.ask(lambda session: self._rename(session, (node_id, start), before, name))

    def bookmark(self, row: TreeRow) -> None:
        """Marks a row of the tree, or takes the mark away; can be undone."""
        self._showing.ask(lambda session: self._bookmark(session, row.key, marked=not row.bookmarked))

    def compare_two(self, left: int, right: int) -> None:
        """Compares the branches through two nodes."""
        self._showing.ask_latest("compare", lambda session: self._compare(session, left, right))

    def remember_branch(self, session_id: int, before: int, after: int) -> None:
        """A branch began beside the path through `before`; can be undone: it stays in the tree."""
        self._remember(self.tr("New Branch"), session_id, before, after)

    @property
    def _tip(self) -> int | None:
        """The last node of the path that is shown; None where nothing has been said yet."""
        shown = self._showing.shown
        return shown.view.turns[-1].node_id if shown is not None and shown.view.turns else None

    def _reach(self, node_id: int, told: Callable[[int], None]) -> None:
        """Tells of a turn, once it is part of the path that is shown."""
        if self._showing.shown is not None and self._showing.shown.turn(node_id) is not None:
            told(node_id)
        else:
            self._showing.ask(lambda session: self._go_to(session, node_id, told))

    async def _go_to(self, session_id: int, node_id: int, told: Callable[[int], None]) -> None:
        await self._show_path(session_id, partial(self._workbench.branches.show_turn, session_id, node_id))
        shown = self._showing.shown
        if shown is not None and shown.session_id == session_id:
            told(_turn_through(shown.view, node_id))

    async def _show_path(
        self, session_id: int, show: Callable[[], Awaitable[SessionView]], shown: Callable[[], None] | None = None
    ) -> None:
        async with self._undo.lock:
            before = self._tip
            if before is None or not self._showing.is_shown(session_id):
                return
            view = await show()
            after = view.turns[-1].node_id
            if after != before:
                self._remember(self.tr("Branch Selection"), session_id, before, after)
            if self._showing.is_shown(session_id):
                self._showing.show_answer(view)
                if shown is not None:
                    shown()

    async def _read_rows(self, session_id: int, most: int) -> None:
        branches = self._workbench.branches
        rows = await branches.tree(session_id)
        current = next((i for i, row in enumerate(rows) if row.current), 0)
        near = rows[max(current - most // 2, 0) :][:most]
        texts = await branches.row_texts(session_id, near)
        if self._showing.is_shown(session_id):
            self.rows_read.emit(rows, _by_key(near, texts))

    async def _read_texts(self, session_id: int, rows: Sequence[TreeRow]) -> None:
        texts = await self._workbench.branches.row_texts(session_id, rows)
        if self._showing.is_shown(session_id):
            self.texts_read.emit(_by_key(rows, texts))

    async def _find_rows(self, session_id: int, words: str) -> None:
        found = await self._workbench.branches.find_rows(session_id, words)
        if self._showing.is_shown(session_id):
            self.rows_found.emit(found)

    async def _read_earlier(self, session_id: int) -> None:
        texts = await self._workbench.branches.earlier_texts(session_id)
        if self._showing.is_shown(session_id):
            self.earlier_read.emit(texts)

    async def _show_from(self, session_id: int, node_id: int) -> None:
        view = await self._workbench.branches.show_turn(session_id, node_id)
        if self._showing.is_shown(session_id):
            self._showing.show_answer(view)

    def _remember(self, label: str, session_id: int, before: int, after: int) -> None:
        back, again = partial(self._select, session_id, before), partial(self._select, session_id, after)
        there = partial(self._workbench.branches.has, session_id, after)
        self._undo.remember(Step(label, session_id, back, again, waits=True, can_redo=there))

    async def _open_at(self, session_id: int, hit: Hit, *, has_to_open: bool) -> None:
        if has_to_open:
            await self._showing.open_session(session_id)
        if self._showing.is_shown(session_id):  # else another window has it
            self._reach(hit.node_id, lambda turn: self.hit_shown.emit(turn, hit.words))

    async def _select(self, session_id: int, node_id: int) -> None:
        """Back to a branch; where another session is shown by now, this one is opened, so that the undone step is seen."""
        view = await self._workbench.branches.select(session_id, node_id, as_before=True)
        if self._showing.is_shown(session_id):
            self._showing.show_answer(view)
        else:
            self._showing.open(session_id)

    async def _compare(self, session_id: int, left: int, right: int) -> None:
        diff = await self._workbench.branches.compare(session_id, left, right)
        if self._showing.is_shown(session_id):
            self.compared.emit(diff)

    async def _bookmark(self, session_id: int, key: tuple[int, int], *, marked: bool) -> None:
        change = partial(self._workbench.branches.bookmark, session_id, *key)
        await change(marked)
        label = self.tr("Bookmark") if marked else self.tr("Remove Bookmark")
        self._undo.remember(Step(label, session_id, partial(change, not marked), partial(change, marked)))

    async def _rename(self, session_id: int, branch: tuple[int, int], before: str, name: str) -> None:
        rename = self._workbench.branches.rename
        await rename(session_id, *branch, name)
        back, again = (partial(rename, session_id, *branch, each) for each in (before, name))
        self._undo.remember(Step(self.tr("Rename Branch"), session_id, back, again))

    async def _prune(self, session_id: int, branch: tuple[int, int], *, pruned: bool) -> None:
        prune = partial(self._workbench.branches.prune, session_id, *branch)
        async with self._undo.lock:
            before = self._tip if self._showing.is_shown(session_id) else None
            await prune(pruned)

        async def back() -> None:
            await prune(not pruned)
            if self._showing.is_shown(session_id) and pruned and before is not None:
                await self._select(session_id, before)

        label = self.tr("Prune Branch") if pruned else self.tr("Restore Branch")
        self._undo.remember(Step(label, session_id, back, partial(prune, pruned), waits=True))


def _turn_through(view: SessionView, node_id: int) -> int:
    """The turn of a path that leads through a node: nodes have higher numbers than those they go on from."""
    turns = [turn.node_id for turn in view.turns]
    return node_id if node_id in turns else next((turn for turn in turns if turn >= node_id), node_id)


def _by_key(rows: Sequence[TreeRow], texts: Sequence[RowText]) -> dict[tuple[int, int], RowText]:
    return {row.key: text for row, text in zip(rows, texts, strict=True)}
