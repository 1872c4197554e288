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
    current: bool  # the tip of the path shown
    likely: float | None = None  # geometric mean of those tokens' probabilities: comparable between lengths
    start: int = 0  # the token of the node from which on the line speaks of it
    pruned: bool = False  # put out of sight, itself or with what it leaves
    text: str = ""  # what it says from there on, for a tooltip
    given: str = ""  # the name that a person gave it


class TreeRow(NamedTuple):
    """One row of the full-window tree: what a turn says along one branch. `node_id` and `start` name it.

    A tuple: thousands are made at once.
    """

    node_id: int
    start: int  # the token of that node at which it begins
    end: int  # its last node
    parent: int  # the place of the row that it stands under; -1: none
    head: int  # the place of the row with which its branch begins; its own, where a branch begins here
    depth: int
    role: str
    beside: bool = False  # a branch begins here that stands beside the one that goes on
    before: str = ""  # of a branch: shared words before it
    stem: str = ""  # and what was said before of the word in whose middle it leaves
    name: str = ""  # and its first words
    given: str = ""  # and the name that a person gave it
    common: int = 0  # bytes that it begins with as others beside it do
    stop: int | None = None  # tokens of the last node that belong to it; None: all
    ways: int = 0  # branches that leave it, without pruned ones of a branch that is not
    logprob: float | None = None  # nats, of its generated tokens; None: there are none, or they were not read
    on_path: bool = False  # part of the path shown
    current: bool = False  # its last row
    pruned: bool = False  # put out of sight, itself or with what it leaves
    bookmarked: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """Stays when other branches come and go."""
        return self.node_id, self.start


class RowText(Struct, frozen=True):
    """The beginning of what a row of the tree says."""

    run: TokenRun  # its first tokens, without the template's; text without tokens is one of them
    logprob: float | None  # nats, of its generated tokens


class Hit(Struct, frozen=True):
    """Where the words of a search stand in a session."""

    node_id: int
    before: str
    words: str  # as they stand there
    behind: str


class SessionSummary(Struct, frozen=True):
    """One line of the session list."""

    session_id: int
    title: str
    updated: float  # seconds since the epoch, for grouping by day only
    branches: int
    pinned: bool
    is_sample: bool  # the recorded one: it stays as it is, changes go into a copy
    folder_id: int | None = None
    tags: tuple[str, ...] = ()
    elsewhere: bool = False  # another window shows it
    answering: bool = False  # an answer is written in it
    hit: Hit | None = None  # of the search that it is a result of
    unseen: bool = False  # an answer has ended there while another session was shown


class SessionView(Struct, frozen=True):
    """An open session: the path shown, and the outline of all branches."""

    session_id: int
    title: str
    turns: tuple[TurnView, ...]
    branches: tuple[BranchRow, ...]
    branch_name: str = ""  # where the shown branch diverged; empty when there is one
    is_sample: bool = False
    context_used: int = 0  # tokens
    earlier: int = 0  # turns of the path before the first of `turns`: see `Workbench.show_earlier`


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
    """The list and the open session. Every coroutine may raise `Refusal`; what changes the list says `SessionsChanged`."""

    async def list(self, query: str = "") -> Sequence[SessionSummary]:
        """The session list, pinned first, then the latest; those whose title or text matches `query`."""

    async def open(self, session_id: int) -> SessionView:
        """Reads a session from the store; no model is needed.

        Raises:
            ShownElsewhere: Another window shows it; that one was told `WindowWanted`.
        """

    async def show_earlier(self, session_id: int) -> SessionView:
        """The same with more turns of the beginning of a long path, of which only the end is shown at first."""

    async def new(self) -> SessionView:
        """An empty session, or one that is still empty and in no other window; it stands in the list once it has a turn."""

    async def rename(self, session_id: int, title: str) -> None:
        """Gives it another title."""

    async def pin(self, session_id: int, pinned: bool) -> None:
        """To the top of the list, or back to its day."""

    async def trash(self, session_id: int) -> bool:
        """Into the trash, where it stays for 30 days; whether an answer was being written there, which is stopped."""

    async def restore(self, session_id: int) -> None:
        """Back out of the trash."""

    async def folders(self) -> Sequence[FolderView]:
        """All folders, in their order."""

    async def create_folder(self, name: str) -> int:
        """Adds an empty folder; returns its id."""

    async def rename_folder(self, folder_id: int, name: str) -> None:
        """Gives a folder another name."""

    async def remove_folder(self, folder_id: int) -> None:
        """Takes a folder away; its sessions go back to the list."""

    async def move(self, session_id: int, folder_id: int | None) -> None:
        """Into a folder, or (None) back to the list."""

    async def tag(self, session_id: int, tags: Sequence[str]) -> None:
        """These tags and no others; `#tag` in a search finds them."""

    async def arrange(self, session_ids: Sequence[int]) -> None:
        """The pinned sessions, or those of a folder, in this order."""

    async def trashed(self) -> Sequence[TrashedSession]:
        """The trash, the last thrown away first."""

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        """Deletes these for good, as far as they are in the trash; how many."""


class BranchCommands(Protocol):
    """The branches of an open session. Every coroutine may raise `Refusal`."""

    async def select(self, session_id: int, node_id: int, *, as_before: bool = False) -> SessionView:
        """Shows the path through `node_id`, down to the leaf that was last shown under it.

        `as_before`: a turn ended with the node, and still does where it was continued since.
        """

    def has(self, session_id: int, node_id: int) -> bool:
        """Whether a node can be selected: an answer that failed before it said anything is gone once it was left."""

    async def show_turn(self, session_id: int, node_id: int) -> SessionView:
        """Shows a path through a node, the one that is shown if it is on it, from before the node's turn on."""

    async def prune(self, session_id: int, node_id: int, start: int, pruned: bool) -> None:
        """Hides a branch (a row's `node_id` from token `start` on) in the outline and among the variants, or shows it again."""

    async def rename(self, session_id: int, node_id: int, start: int, name: str) -> None:
        """Gives a branch a name of its own in the outline; "" takes it away."""

    async def bookmark(self, session_id: int, node_id: int, start: int, marked: bool) -> None:
        """Marks a row of the tree, or no longer."""

    async def tree(self, session_id: int) -> Sequence[TreeRow]:
        """All turns of all branches, in reading order; what they say is had by `row_texts`."""

    async def row_texts(self, session_id: int, rows: Sequence[TreeRow]) -> Sequence[RowText]:
        """What these rows of the tree say, read where it was not read yet."""

    async def find_rows(self, session_id: int, words: str) -> Sequence[tuple[int, int]]:
        """The keys of the rows that contain these words in any case, in reading order."""

    async def earlier_texts(self, session_id: int) -> Sequence[tuple[int, str, str]]:
        """Node, role and text of each turn of the path before those that are shown: see `SessionView.earlier`."""

    async def compare(self, session_id: int, left: int, right: int) -> BranchDiff:
        """The branches through two nodes of an open session, token by token."""
