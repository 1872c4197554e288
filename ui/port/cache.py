"""The cache and the similar turns, as the window sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ui.port.comparison import OnCompared

if TYPE_CHECKING:
    from ui.port.tokens import Pooling


class EdgeView(Struct, frozen=True):
    """One edge of the trie: its last words, its tokens, its bytes, how many running requests hold it, and its adapters."""

    tail: str
    tokens: int
    bytes: int
    leases: int
    adapters: str = ""  # which it was computed under, in words; empty for the model alone


class CacheView(Struct, frozen=True):
    """The trie at one moment, and what it has of the path that is shown.

    Attributes:
        hits: Lookups that found something; `misses` those that found nothing.
        leases: Held by running requests, pins among them.
        working_bytes: Of prompts and answers in work, beside `bytes`.
        found: Tokens that the last request found.
        ended: Why its prefix ended there; "" where none was asked for.
        kept: Tokens at the beginning of the path shown that are pinned; None where it is not pinned.
        largest: The edges with the most bytes.
    """

    edges: int
    tokens: int
    bytes: int
    budget: int
    leases: int
    leased_bytes: int
    hits: int
    misses: int
    pins: int
    working_bytes: int
    found: int
    ended: str
    kept: int | None = None
    largest: tuple[EdgeView, ...] = ()


class CacheCheck(Struct, frozen=True):
    """What the cache answers beside what the model answers without it.

    Attributes:
        difference: The largest |difference| of all log-probabilities, nats.
        tokens: Of the path, that both had before them.
        entries: Of the vocabulary.
        same_first: Both have the same token in the first place.
    """

    difference: float
    tokens: int
    entries: int
    same_first: bool


class CacheCommands(Protocol):
    """The cache of the model that runs. Every coroutine may raise `Refusal`."""

    def view(self, session_id: int) -> CacheView | None:
        """As the engine last told; None where no model runs. Makes no request."""

    async def clear(self) -> None:
        """Drops all KV in memory, that of pinned paths too; what running answers hold goes when they end."""

    async def keep_path(self, session_id: int, keep: bool) -> None:
        """Keeps what is held of the path that is shown in memory, or lets it go; other text does not push it out."""

    async def check_uncached(self, session_id: int) -> CacheCheck:
        """Asks the model for what follows the path that is shown twice: from the cache, and computed anew without it."""


class SimilarTurn(Struct, frozen=True):
    """One turn beside the one that was asked about.

    Attributes:
        node_id: Its last node.
        role: system, user, assistant, tool.
        words: The first of them, on one line.
        similarity: The cosine of the two turns' vectors, -1 to 1.
        on_path: Whether it is part of the path shown.
        branch: What its branch is called, where it is not.
        tokens: That it has, where only the first of them were compared; 0: all of it was.
    """

    node_id: int
    role: str
    words: str
    similarity: float
    on_path: bool = True
    branch: str = ""
    tokens: int = 0


class SimilarTurns(Struct, frozen=True):
    """All turns that have words, the most similar first. Vectors are remembered in memory; nothing of it is saved.

    Attributes:
        session_id: Whose turns.
        node_id: The turn that the others were compared with.
        words: The first of its words.
        pooling: How vectors were made of hidden states.
        model: What the model is called that made them.
        rows: The other turns.
        poolings: What this model can be asked for.
        limit: Tokens that are compared of a turn.
        tokens: That the turn asked about has, where that is more; else 0.
        damaged: Turns that were left out since what is stored of them cannot be trusted.
        computed: Tokens that were pushed through the model for this, padding too; 0: all vectors were remembered.
    """

    session_id: int
    node_id: int
    words: str
    pooling: Pooling
    model: str
    rows: tuple[SimilarTurn, ...]
    poolings: tuple[Pooling, ...]
    limit: int
    tokens: int = 0
    damaged: int = 0
    computed: int = 0


class SimilarCommands(Protocol):
    """Turns that are alike. Every coroutine may raise `Refusal`."""

    async def find(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        """Compares a turn with all others of its session, on all branches that are in sight; behind everything else.

        What the model made of a turn is remembered until the app ends: of the same text nothing is computed again. May be
        cancelled; what was made by then stays.

        Raises:
            ModelRefusal: No model can be asked: another one may be chosen.
        """
