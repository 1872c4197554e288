"""Turns and drafts: what the window shows of them, and what it asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from runtime import TokenRun
from ui.port.settings import TextFile, ToolCard
from ui.port.transfers import OnTransfer


class Setting(Struct, frozen=True):
    """An option that held, and its source: call, session, preset, model or default."""

    name: str
    value: str
    source: str


class Made(Struct, frozen=True):
    """One answer's making."""

    facts: Mapping[str, str]  # name and value: model, engine, seed, counts, times, its end
    settings: tuple[Setting, ...]  # every option; those that were chosen first


class AnswerCommands(Protocol):
    """Messages and answers. Every coroutine may raise `Refusal`; tokens come as `TokensArrived`."""

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn, then streams an answer; returns when the answer has ended.

        With `replaces`, the turn stands beside that earlier user turn as another version of it (edit). So does a message
        after one that did not fit into the context. Beside a turn of the model's, the text is another version of that one;
        nothing is streamed, and `continue_turn` goes on from it.
        """

    async def suggest_title(self, session_id: int) -> str:
        """A title for the path shown, from the model; nothing is stored. May be cancelled."""

    async def open_as_text(self, session_id: int, node_id: int) -> None:
        """The path to a turn once more, as another beginning without tokens, which any model can go on from.

        Where it ends with a question, an answer is streamed.
        """

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """Makes a sibling that replaces token `index` of the turn (an index into its run) by `token_id` and streams on."""

    async def write(self, session_id: int, node_id: int, index: int, text: str) -> None:
        """Makes a sibling that has these words in the place of token `index` and what follows it, and streams on."""

    async def tokenise(self, text: str) -> None:
        """Prepares `write` for words that are being typed; they do not leave this machine."""

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Another answer beside the model's turn `node_id`."""

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """The model's turn once more beside it, with the options, seed and model that made it.

        Its note says whether the two are the same, token for token, or where they part.
        """

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Goes on with an answer that was stopped."""

    async def answer_call(self, session_id: int, node_id: int, results: Sequence[str]) -> None:
        """The results of the calls in the answer `node_id`, in their order, each a tool's turn; then streams an answer."""

    async def score(self, session_id: int, progress: OnTransfer) -> int:
        """Gives the tokens of the path shown that have no numbers theirs, by the model in use; how many got some.

        Turns that no model has seen yet (of an imported session) get tokens first. May be cancelled.
        """

    def stop(self, session_id: int) -> None:
        """Stops the stream of a session; what arrived is kept."""

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        """How an answer was made; None where it was not stored."""

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:
        """The bytes of any token (alternatives), without the engine; empty where the vocabulary is not known."""

    def find_tokens(self, session_id: int, text: str, most: int) -> Sequence[int]:
        """The ids of at most `most` tokens that contain a text in any ASCII case; best match first, without the engine."""


class TurnStatus(StrEnum):
    """Where a turn stands."""

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
    SERVER = "server"  # the server's matter


class TurnStats(Struct, frozen=True):
    """How an answer was made. Seconds; nats; tokens."""

    reused: int | None  # prompt tokens found in the cache; None where nothing of the prompt was read
    computed: int | None  # prompt tokens pushed through the model; None likewise
    first_token_seconds: float | None  # from when the engine was there to be asked
    tokens_per_second: float | None
    logprob: float | None  # of the generated tokens together
    drafted: int | None = None  # drafted tokens; None where there was no speculation, or no count
    accepted: int | None = None  # of them, those that the model drew as well


class TurnView(Struct, frozen=True):
    """One turn of the path that is shown."""

    node_id: int  # the turn's last node on this path: what `branch`, `regenerate` and `edit` refer to
    role: str  # system, user, assistant, tool
    run: TokenRun  # all its tokens along the path; the template's have origin TEMPLATE
    status: TurnStatus
    variants: tuple[int, ...]  # last nodes of the turn's siblings, in order; this turn's own is among them
    note: str = ""  # inline message, such as "stopped" or what failed and what to do
    tier: Tier = Tier.COLD
    stats: TurnStats | None = None
    can_repeat: bool = False  # how it was made is known: it can be made again exactly
    can_retry: bool = True  # False: the same again can only fail again; the note says what to do instead
    overflowed: bool = False  # it never began: its question did not fit, and the next message takes the place of that one
    is_foreign: bool = False  # it failed since the path has another tokenizer's tokens, and the model is that one still
    needs_model: bool = False  # it failed since its model could not be loaded, and no other one was chosen since
    calls: tuple[ToolCard, ...] = ()  # of tools, not answered yet
    called: tuple[ToolCard, ...] = ()  # of tools, that the next turn answers
    may_call: bool = False  # it is being written, and tools are offered

    @property
    def variant(self) -> int:
        """Which of the variants this is, from 0."""
        return self.variants.index(self.node_id)


class PartKind(StrEnum):
    """What a part of the context is."""

    SYSTEM = "system"
    FILES = "files"
    HISTORY = "history"
    DRAFT = "draft"


class ContextPart(Struct, frozen=True):
    """A stretch of the context."""

    kind: PartKind
    tokens: int
    warm: int  # of them, those that need not be computed


class Composition(Struct, frozen=True):
    """What the typed text will cost."""

    tokens: int | None  # None until an engine runs that can count them
    bits: float | None  # None until scored
    context_used: int  # tokens of path and draft together
    context_length: int | None  # None while no model is known
    parts: tuple[ContextPart, ...] = ()  # in order; empty where they are not known
    can_grow: bool = False  # the model has a larger context than it was loaded with, and the KV of all of it has room
    whole_context: int | None = None  # tokens, where it was loaded with fewer
    whole_bytes: int = 0  # of KV that all of it takes
    kv_budget: int = 0  # bytes, that KV may take
    files: tuple[int, ...] = ()  # tokens of each file; empty where they are not counted
    new_tokens: int | None = None  # to be computed before the first token of the answer
    takes_roles: bool = True  # False: the model has no chat format, and continues the text as it stands


class DraftCommands(Protocol):
    """The message before it is sent. Every coroutine may raise `Refusal`."""

    async def compose(self, session_id: int, text: str, replaces: int | None = None, files: Sequence[str] = ()) -> Composition:
        """Tokens and context of a draft, or of another version of the user's turn `replaces`; no forward.

        Args:
            session_id: Where it stands.
            text: What would be sent.
            replaces: A node id.
            files: Parts of `text` that are counted by themselves, too.
        """

    async def score(self, session_id: int, text: str, replaces: int | None = None) -> TokenRun | None:
        """The tokens of a draft with their numbers, computed behind everything else; None where that is not to be had now.

        Refused, with numbers, where too much would have to be computed.

        May be cancelled. Nothing of it leaves for a server.
        """

    async def read_file(self, path: str) -> TextFile:
        """A text file to go with a message; a binary one or one that is too large is refused, with numbers."""

    async def leave_out(self, session_id: int, text: str) -> int:
        """Makes room for a message: the latest turns alone go on, beside the whole conversation; how many are left out."""
