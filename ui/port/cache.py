"""The KV cache as a person looks at it: what is held, what can be kept or dropped, and whether it tells the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EdgeView:
    """One edge of the trie: its last words, its tokens, its bytes, how many running requests hold it, and its adapters."""

    tail: str
    tokens: int
    bytes: int
    leases: int
    adapters: str = ""  # which it was computed under, in words; empty for the model alone


@dataclass(frozen=True, slots=True)
class CacheView:
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


@dataclass(frozen=True, slots=True)
class CacheCheck:
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

    def cache(self, session_id: int) -> CacheView | None:
        """As the engine last told; None where no model runs. Asks nobody."""

    async def clear_cache(self) -> None:
        """Drops all KV in memory, that of pinned paths too; what running answers hold goes when they end."""

    async def keep_path(self, session_id: int, keep: bool) -> None:
        """Keeps what is held of the path that is shown in memory, or lets it go; other text does not push it out."""

    async def check_uncached(self, session_id: int) -> CacheCheck:
        """Asks the model for what follows the path that is shown twice: from the cache, and computed anew without it."""
