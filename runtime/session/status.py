"""What a session's members return: segments, counts, reports."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from runtime.records import TokenRun
from runtime.session.manifest import AdapterSpan

SegmentKind = Literal["prefix", "suffix", "prefill", "generated", "picked"]


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a segment."""

    kind: SegmentKind
    label: str
    start: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one origin: ``ids[start:end]``."""

    kind: SegmentKind
    label: str  # the caller's
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the reuse of a session's tokens ended although it held more, and why."""

    at: int  # the first token that was not taken over
    held: str  # text from there on, as it was
    found: str  # and as it is now
    why: str


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """What `ensure_prefix` did. Counts are tokens; `reused` and `prefilled` make up the prefix.

    Attributes:
        reused: Held by the engine, computed for this session or another.
        prefilled: Pushed through the model now.
        dropped: The session's own tokens that are gone: an earlier suffix, what was generated, a prefix that differs.
        prefix: Tokens of the prefix.
        resident: Tokens of the session.
        available: That may still come.
        byte_hash: SHA-256 of the bytes of everything resident.
        token_hash: SHA-256 of the ids of everything resident, each as 32 bits, little-endian.
        manifest_digest: Of the rest of the session's key.
        run: The tokens that are new to the session and what the model thought of them; None where it keeps no scores.
    """

    reused: int
    prefilled: int
    dropped: int
    prefix: int
    resident: int
    available: int
    byte_hash: str
    token_hash: str
    manifest_digest: str
    run: TokenRun | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class SuffixStatus:
    """What `prefill_suffix` and `prefill` did. Counts are tokens.

    Attributes:
        suffix: That were added now.
        prefix: Of the prefix before.
        resident: Of the session.
        available: That may still come.
        digest: SHA-256 of the ids of everything resident, as `PrefixStatus.token_hash`.
        seconds: It took.
        prefilled: Pushed through the model; fewer than `suffix` where the engine held some, more where tokens before it
            stood in the session that no forward had seen yet.
        joint_differs: Whether tokenising text before and after the seam together would give other tokens there; None where
            ids were given.
        run: The tokens and what the model thought of them; None where the session keeps no scores.
    """

    suffix: int
    prefix: int
    resident: int
    available: int
    digest: str
    seconds: float
    prefilled: int
    joint_differs: bool | None = None
    run: TokenRun | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Truncation:
    """What `truncate` did, in tokens: `recomputed` counts what was pushed again from the last checkpoint on."""

    resident: int
    dropped: int
    recomputed: int
    available: int


@dataclass(frozen=True, slots=True)
class ContextReport:
    """What stands in a session. Counts are tokens; hashes as in `PrefixStatus`.

    Attributes:
        divergence: Where the last `ensure_prefix` or `ensure_messages` could not take over what was there; None where
            it took everything.
        adapters: Which of them each part is computed under: the tokens before an invocation are the base's, and so is their
            KV. One span where nothing is activated on the way.
    """

    resident: int
    prefix: int
    limit: int
    available: int
    byte_hash: str
    token_hash: str
    manifest_digest: str
    segments: tuple[Segment, ...]
    closed: bool
    divergence: Divergence | None = None
    adapters: tuple[AdapterSpan, ...] = ()


def token_hash(ids: Sequence[int]) -> str:
    """SHA-256 hex of token ids as little-endian unsigned 32-bit numbers."""
    return hashlib.sha256(np.asarray(ids, "<u4").tobytes()).hexdigest()


def byte_hash(pieces: Sequence[bytes]) -> str:
    """SHA-256 hex of the bytes of tokens."""
    return hashlib.sha256(b"".join(pieces)).hexdigest()
