"""The list of sessions, its folders and tags, and one session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from runtime import TokenRun
from ui.port.transfers import BranchDiff
from ui.port.turns import TurnView


class BranchRow(Struct, frozen=True):
    """One line of the outline tree."""

    node_id: int
    depth: int
    before: str  # shared words before the divergence ("... visit")
    name: str  # the words that differ ("Lisbon when it rains")
    logprob: float | None  # nats, of the branch's generated tokens
    on_path: bool  # part of the path shown
    current: bool  # ends in the tip of the path shown
    likely: float | None = None  # geometric mean of those tokens' probabilities: comparable between lengths
    start: int = 0  # the token of the node at which the branch begins
    pruned: bool = False  # itself, or with the branch that it leaves
    text: str = ""  # its text from there on, for a tooltip
    given: str = ""  # the name given by the user


class TreeRow(NamedTuple):
    """One row of the full-window tree: a turn along one branch, identified by `node_id` and `start`.

    A tuple for speed: thousands are made at once.
    """

    node_id: int
    start: int  # the token of that node at which it begins
    end: int  # its last node
    parent: int  # index of the parent row; -1: none
    head: int  # index of the first row of its branch; its own if a branch begins here
    depth: int
    role: str
    beside: bool = False  # a branch begins here beside the one that goes on
    before: str = ""  # of a branch: shared words before it
    stem: str = ""  # of a branch that starts within a word: the part of the word before it
    name: str = ""  # of a branch: its first words
    given: str = ""  # of a branch: the name given by the user
    common: int = 0  # bytes of its beginning that its siblings share
    stop: int | None = None  # tokens of the last node that belong to it; None: all
    ways: int = 0  # branches that leave it; pruned ones count only if the row is pruned itself
    logprob: float | None = None  # nats, of its generated tokens; None: there are none, or they were not read
    on_path: bool = False  # part of the path shown
    current: bool = False  # its last row
    pruned: bool = False  # itself, or with the branch that it leaves
    bookmarked: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the row, also after other branches have changed."""
        return self.node_id, self.start


class RowText(Struct, frozen=True):
    """The beginning of the text of a row of the tree."""

    run: TokenRun  # its first tokens without the template's; untokenised text counts as one token
    logprob: float | None  # nats, of its generated tokens


class Hit(Struct, frozen=True):
    """A search result within a session."""

    node_id: int
    before: str
    words: str  # as they are written there
    behind: str


class SessionSummary(Struct, frozen=True):
    """One line of the session list."""

    session_id: int
    title: str
    updated: float  # seconds since the epoch, for grouping by day only
    branches: int
    pinned: bool
    is_sample: bool  # the recorded sample, whose changes go into a copy
    folder_id: int | None = None
    tags: tuple[str, ...] = ()
    in_other_window: bool = False
    answering: bool = False  # an answer is under way in it
    hit: Hit | None = None  # of the present search
    unseen: bool = False  # an answer has ended in it while another session was shown


class SessionView(Struct, frozen=True):
    """An open session: the path shown, and the outline of all branches."""

    session_id: int
    title: str
    turns: tuple[TurnView, ...]
    branches: tuple[BranchRow, ...]
    branch_name: str = ""  # the words at which the shown branch diverges; "" if there is only one branch
    is_sample: bool = False
    context_used: int = 0  # tokens
    earlier: int = 0  # turns of the path before the first of `turns`: see `SessionCommands.show_earlier`


class FolderView(Struct, frozen=True):
    """A folder of the session list."""

    folder_id: int
    name: str


class TrashedSession(Struct, frozen=True):
    """One line of the trash."""

    session_id: int
    title: str
    days_left: int  # until it is deleted for good


class SessionCommands(Protocol):
    """The list and the open session. Every coroutine may raise `Refusal`; changes of the list send `SessionsChanged`."""

    async def list(self, query: str = "") -> Sequence[SessionSummary]:
        """The session list, pinned first, then the latest; those whose title or text matches `query`."""

    async def open(self, session_id: int) -> SessionView:
        """Reads a session from the store; no model is needed.

        Raises:
            ShownInOtherWindow: Another window shows it, and was sent `WindowWanted`.
        """

    async def show_earlier(self, session_id: int) -> SessionView:
        """The session with more of the earlier turns of a long path, of which only the end is shown at first."""

    async def new(self) -> SessionView:
        """A new session, or one that is still empty and in no other window; it is listed once it has a turn."""

    async def rename(self, session_id: int, title: str) -> None:
        """Renames a session."""

    async def pin(self, session_id: int, pinned: bool) -> None:
        """Pins a session at the top of the list, or moves it back to its day."""

    async def trash(self, session_id: int) -> bool:
        """Moves a session to the trash for 30 days; returns whether an answer was under way in it, which is stopped."""

    async def restore(self, session_id: int) -> None:
        """Restores a session from the trash."""

    async def folders(self) -> Sequence[FolderView]:
        """All folders, in their order."""

    async def create_folder(self, name: str) -> int:
        """Adds an empty folder; returns its id."""

    async def rename_folder(self, folder_id: int, name: str) -> None:
        """Renames a folder."""

    async def remove_folder(self, folder_id: int) -> None:
        """Removes a folder; its sessions go back to the list."""

    async def move(self, session_id: int, folder_id: int | None) -> None:
        """Moves a session into a folder, or (None) back to the list."""

    async def tag(self, session_id: int, tags: Sequence[str]) -> None:
        """Replaces the tags of a session; `#tag` in a search finds them."""

    async def arrange(self, session_ids: Sequence[int]) -> None:
        """Sets the order of the pinned sessions, or of those of a folder."""

    async def trashed(self) -> Sequence[TrashedSession]:
        """The trash, the latest first."""

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        """Deletes those of these sessions that are in the trash; returns how many."""


class BranchCommands(Protocol):
    """The branches of an open session. Every coroutine may raise `Refusal`."""

    async def select(self, session_id: int, node_id: int, *, as_before: bool = False) -> SessionView:
        """Shows the path through `node_id`, down to the leaf that was last shown under it.

        With `as_before`, the turn ends at the node, even if it was continued since.
        """

    def has(self, session_id: int, node_id: int) -> bool:
        """Whether a node exists: an answer that failed without a token is removed once another path is shown."""

    async def show_turn(self, session_id: int, node_id: int) -> SessionView:
        """Shows a path through a node, from before its turn on; the present path if the node is on it."""

    async def prune(self, session_id: int, node_id: int, start: int, pruned: bool) -> None:
        """Hides a branch (a row's `node_id` from token `start` on) in the outline and among the variants, or shows it again."""

    async def rename(self, session_id: int, node_id: int, start: int, name: str) -> None:
        """Gives a branch a name in the outline; "" removes it."""

    async def bookmark(self, session_id: int, node_id: int, start: int, marked: bool) -> None:
        """Bookmarks a row of the tree, or removes the bookmark."""

    async def tree(self, session_id: int) -> Sequence[TreeRow]:
        """All turns of all branches, in reading order, without texts (`row_texts`)."""

    async def row_texts(self, session_id: int, rows: Sequence[TreeRow]) -> Sequence[RowText]:
        """The texts of these rows of the tree, read from the store if necessary."""

    async def find_rows(self, session_id: int, words: str) -> Sequence[tuple[int, int]]:
        """The keys of the rows that contain these words in any case, in reading order."""

    async def earlier_texts(self, session_id: int) -> Sequence[tuple[int, str, str]]:
        """Node, role and text of each turn of the path before those that are shown: see `SessionView.earlier`."""

    async def compare(self, session_id: int, left: int, right: int) -> BranchDiff:
        """The branches through two nodes of an open session, token by token."""
