"""The results of a session's members: segments, counts, reports."""

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
    """Consecutive tokens ``ids[start:end]`` of one origin."""

    kind: SegmentKind
    label: str  # given by the caller
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """The place where a new prefix differs from the session's tokens, and why."""

    at: int  # the first token that was not reused
    held: str  # the beginning of the old text from there on
    found: str  # the beginning of the new text from there on
    why: str


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """The result of `ensure_prefix`. Counts are tokens; `reused` and `prefilled` make up the prefix.

    Attributes:
        reused: Tokens whose KV was in the engine, computed for this session or another request.
        prefilled: Tokens pushed through the model by this call.
        dropped: Tokens removed from the session: an earlier suffix, generated tokens, the differing part of the prefix.
        prefix: Tokens of the prefix.
        resident: Tokens of the session.
        available: Room for more tokens.
        byte_hash: SHA-256 of the bytes of all resident tokens.
        token_hash: SHA-256 of the ids of all resident tokens, each as 32 bits, little-endian.
        manifest_digest: `Manifest.digest`.
        run: The session's new tokens with their scores; None where it records no scores.
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
    """The result of `prefill_suffix` and `prefill`. Counts are tokens.

    Attributes:
        suffix: Tokens added by this call.
        prefix: Tokens of the prefix before the suffix.
        resident: Tokens of the session.
        available: Room for more tokens.
        digest: SHA-256 of the ids of all resident tokens, as `PrefixStatus.token_hash`.
        seconds: The duration of the call.
        prefilled: Tokens pushed through the model: fewer than `suffix` where the engine held the KV of some, more where
            earlier tokens of the session had not been computed.
        joint_differs: Whether tokenising the text on both sides of the boundary together gives other tokens there; None for
            ids.
        run: The added tokens with their scores; None where the session records no scores.
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
    """The result of `truncate`, in tokens; `recomputed` are computed again from the last checkpoint on."""

    resident: int
    dropped: int
    recomputed: int
    available: int


@dataclass(frozen=True, slots=True)
class ContextReport:
    """The content of a session. Counts are tokens; hashes as in `PrefixStatus`.

    Attributes:
        divergence: Where the last `ensure_prefix` or `ensure_messages` differed from the session's tokens; None where it reused
            all of them.
        adapters: The adapters that each part is computed under. An activated adapter begins at its invocation; without one
            there is one span.
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
