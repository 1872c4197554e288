"""Turns and drafts: their values and commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from runtime import TokenRun
from ui.port.settings import TextFile, ToolCard
from ui.port.transfers import OnTransfer


class ResolvedOption(Struct, frozen=True):
    """An option in force, and its source: call, session, preset, model or default."""

    name: str
    value: str
    source: str


class Made(Struct, frozen=True):
    """The provenance of an answer."""

    facts: Mapping[str, str]  # name and value: model, engine, seed, counts, times, its end
    settings: tuple[ResolvedOption, ...]  # every option, the chosen ones first


class AnswerCommands(Protocol):
    """Messages and answers. Every coroutine may raise `Refusal`; tokens come as `TokensArrived`."""

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn, then streams an answer; returns when the answer has ended.

        With `replaces`, the turn becomes another version of that earlier user turn (edit). So does a message after one that
        did not fit into the context. If `replaces` is a turn of the model, the text becomes another version of that one;
        nothing is streamed, and `continue_turn` continues it.
        """

    async def suggest_title(self, session_id: int) -> str:
        """A title for the path shown, from the model; nothing is stored. May be cancelled."""

    async def open_as_text(self, session_id: int, node_id: int) -> None:
        """Copies the path to a turn as a branch of text without tokens, which any model can continue.

        If it ends with a question, an answer is streamed.
        """

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """Makes a sibling that replaces token `index` of the turn (an index into its run) by `token_id` and streams on."""

    async def write(self, session_id: int, node_id: int, index: int, text: str) -> None:
        """Makes a sibling that replaces the turn from token `index` on by these words, and streams on."""

    async def tokenise(self, text: str) -> None:
        """Tokenises words that are being typed, to prepare `write`; they do not leave this machine."""

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Generates another answer beside the model's turn `node_id`."""

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """Generates the model's turn again, with its own options, seed and model.

        The new turn's note tells whether both are equal token by token, or where they diverge.
        """

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Continues an answer that was stopped."""

    async def answer_call(self, session_id: int, node_id: int, results: Sequence[str]) -> None:
        """Adds the results of the calls in the answer `node_id`, in their order, as turns of tools; then streams an answer."""

    async def score(self, session_id: int, progress: OnTransfer) -> int:
        """Scores the unscored tokens of the path shown with the model in use; returns how many.

        Turns without tokens (of an imported session) are tokenised first. May be cancelled.
        """

    def stop(self, session_id: int) -> None:
        """Stops the stream of a session; the tokens that arrived are kept."""

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        """The provenance of an answer; None if it was not stored."""

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:
        """The bytes of token ids, without the engine; empty if the vocabulary is unknown."""

    def find_tokens(self, session_id: int, text: str, most: int) -> Sequence[int]:
        """The ids of at most `most` tokens that contain a text in any ASCII case; best match first, without the engine."""


class TurnStatus(StrEnum):
    """How far a turn is written, and whether it can be read."""

    COMPLETE = "complete"
    WAITING = "waiting"  # saved, the engine has not answered yet (starting, or reading the prompt)
    STREAMING = "streaming"
    PARTIAL = "partial"  # stopped, cut by a limit, or the engine died: the text is kept
    DAMAGED = "damaged"  # the stored rows fail their checksum


class Tier(StrEnum):
    """Where the turn's KV is."""

    WARM = "warm"
    DISK = "disk"
    COLD = "cold"
    SERVER = "server"  # unknown: the server decides


class TurnStats(Struct, frozen=True):
    """Figures of an answer, in seconds, nats and tokens."""

    reused: int | None  # prompt tokens found in the cache; None if no prompt was read
    computed: int | None  # prompt tokens computed by the model; None likewise
    first_token_seconds: float | None  # from when the engine was ready
    tokens_per_second: float | None
    logprob: float | None  # of the generated tokens together
    drafted: int | None = None  # drafted tokens; None without speculation or count
    accepted: int | None = None  # drafted tokens that the model drew as well


class TurnView(Struct, frozen=True):
    """One turn of the path shown."""

    node_id: int  # the turn's last node on this path: what `branch`, `regenerate` and `edit` refer to
    role: str  # system, user, assistant, tool
    run: TokenRun  # all its tokens along the path; the template's have origin TEMPLATE
    status: TurnStatus
    variants: tuple[int, ...]  # last nodes of the turn's siblings, in order; this turn's own is among them
    note: str = ""  # inline message, such as "stopped" or what failed and what to do
    tier: Tier = Tier.COLD
    stats: TurnStats | None = None
    can_repeat: bool = False  # its provenance is stored, so that it can be generated again exactly
    can_retry: bool = True  # False: a retry would fail again; the note says what to do instead
    overflowed: bool = False  # it never began: its question did not fit, and the next message replaces that one
    is_foreign: bool = False  # it failed because the path has tokens of another tokenizer than that of the model in use
    needs_model: bool = False  # it failed because its model could not be loaded, and no other one was chosen since
    calls: tuple[ToolCard, ...] = ()  # of tools, not answered yet
    called: tuple[ToolCard, ...] = ()  # of tools, answered by the next turn
    may_call: bool = False  # it is streaming, and tools are offered

    @property
    def variant(self) -> int:
        """The index of this turn among the variants."""
        return self.variants.index(self.node_id)


class PartKind(StrEnum):
    """The kind of a part of the context."""

    SYSTEM = "system"
    FILES = "files"
    HISTORY = "history"
    DRAFT = "draft"


class ContextPart(Struct, frozen=True):
    """The tokens of the system prompt, the files, the history or the draft."""

    kind: PartKind
    tokens: int
    warm: int  # tokens that need not be computed


class Composition(Struct, frozen=True):
    """The tokens and the context of a draft."""

    tokens: int | None  # None until an engine runs that can count them
    bits: float | None  # None until scored
    context_used: int  # tokens of path and draft together
    context_length: int | None  # None while no model is known
    parts: tuple[ContextPart, ...] = ()  # in order; empty if unknown
    can_grow: bool = False  # the model has a larger context than it was loaded with, whose KV fits into the budget
    whole_context: int | None = None  # tokens, if it was loaded with fewer
    whole_bytes: int = 0  # of KV for the whole context
    kv_budget: int = 0  # bytes
    files: tuple[int, ...] = ()  # tokens of each file; empty if not counted
    new_tokens: int | None = None  # to be computed before the first token of the answer
    takes_roles: bool = True  # False: the model has no chat format, and continues the text as it stands


class DraftCommands(Protocol):
    """The message before it is sent. Every coroutine may raise `Refusal`."""

    async def compose(self, session_id: int, text: str, replaces: int | None = None, files: Sequence[str] = ()) -> Composition:
        """Tokens and context of a draft, or of another version of the user's turn `replaces`; no forward.

        Args:
            session_id: Its session.
            text: The text of the draft.
            replaces: A node id.
            files: Parts of `text` that are also counted by themselves.
        """

    async def score(self, session_id: int, text: str, replaces: int | None = None) -> TokenRun | None:
        """The scored tokens of a draft, computed at the lowest priority; None if that is not possible now.

        Refused, with numbers, if too much would have to be computed.

        May be cancelled. Nothing is sent to a server.
        """

    async def read_file(self, path: str) -> TextFile:
        """Reads a text file for a message; refuses a binary or too large one, with numbers."""

    async def leave_out(self, session_id: int, text: str) -> int:
        """Makes room for a message: starts a branch with only the latest turns; returns how many turns are left out."""
