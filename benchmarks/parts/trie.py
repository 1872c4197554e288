"""The token trie alone, with payloads that weigh something and hold nothing."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Limit, Verdict
from benchmarks.sizes import Sizes
from runtime import Trie

ROW = "trie"
PATH_BAR_MS = 50.0
TOKEN_BYTES = 1024
ROOM = 1 << 40  # bytes: nothing is evicted unless asked for
NAMESPACE = "bench"
STEM, TAIL = 1500, 8  # tokens
PLACES = 20  # of the stem, at which branches leave it
FIRST_TAIL = 50_000  # ids from here on begin a branch
RUN = 512  # tokens that a prefill publishes at a time
LEAST = "ms to copy those runs and compare them once, which whoever keeps and finds them must"


class _Weights:
    """Payloads are token counts."""

    def split(self, payload: int, n: int) -> tuple[int, int]:
        return n, payload - n

    def payload_bytes(self, payload: int) -> int:
        return payload * TOKEN_BYTES

    def payload_resumable(self, payload: int) -> bool:  # noqa: ARG002  # all are
        return True

    def copy_bytes(self, payload: int) -> int:
        return self.payload_bytes(payload)

    def owner(self, payload: int) -> None:
        """Every payload is a copy."""

    def joined(self, first: int, second: int) -> None:
        """Every join would be a copy."""

    def hold(self, payload: int) -> None:
        """Nothing is shared."""

    def release(self, payload: int) -> None:
        """Nothing is shared."""


def trie(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """One long path in, found and out; many branches off one stem, weighed."""
    tell(ROW)
    laps = [(_long_path(ids), _copied(ids)) for ids in [_path(sizes.trie_path)] * 5]
    path_ms, least_ms = (median(seconds) * 1000 for seconds in zip(*laps, strict=True))
    held, needed = _branches(sizes.trie_branches)
    what = f"ms: insert, lookup, evict {sizes.trie_path:,} tokens"
    weight = f"bytes / (stem + tails) of {sizes.trie_branches:,} branches"
    verdicts = (
        Verdict(ROW, case.backend, case.model, what, path_ms, PATH_BAR_MS, at_least=False, limit=Limit(least_ms, LEAST)),
        Verdict(ROW, case.backend, case.model, weight, held / needed, 1.0, at_least=False, timed=False),
    )
    return Findings(verdicts=verdicts)


def _path(tokens: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(9).integers(FIRST_TAIL, size=tokens).astype(np.int32)


def _copied(ids: npt.NDArray[np.int32]) -> float:
    """Seconds to copy the runs of a path and to compare all of them once."""
    started = time.perf_counter()
    kept = [ids[start : start + RUN].copy() for start in range(0, len(ids), RUN)]
    same = [np.array_equal(run, ids[i * RUN : (i + 1) * RUN]) for i, run in enumerate(kept)]
    seconds = time.perf_counter() - started
    if not all(same):
        raise ValueError("a copy differs from what it was made of")
    return seconds


def _long_path(ids: npt.NDArray[np.int32]) -> float:
    """Seconds to insert a path in runs as a prefill does, to find all but its last token, and to evict it."""
    tokens = len(ids)
    started = time.perf_counter()
    tree = Trie(_Weights(), ROOM)
    with tree.lookup([(NAMESPACE, ids)]) as lease:
        for start in range(0, tokens, RUN):
            run = ids[start : start + RUN]
            tree.insert(lease, NAMESPACE, run, len(run))
    with tree.lookup([(NAMESPACE, ids[:-1])]) as lease:
        found = lease.length
    tree.evict(tree.bytes)
    seconds = time.perf_counter() - started
    if found != tokens - 1 or tree.bytes:
        raise ValueError(f"the trie found {found:,} of {tokens - 1:,} tokens and kept {tree.bytes:,} bytes of what was evicted")
    return seconds


def _branches(count: int) -> tuple[int, int]:
    """Bytes held, and bytes of one stem and all tails, for branches that leave it at several places."""
    rng = np.random.default_rng(10)
    stem = rng.integers(FIRST_TAIL, size=STEM).astype(np.int32)
    places = rng.choice(np.arange(1, STEM + 1), size=PLACES, replace=False).tolist()
    tree = Trie(_Weights(), ROOM)
    with tree.lookup([(NAMESPACE, stem)]) as lease:
        tree.insert(lease, NAMESPACE, stem, STEM)
    for branch in range(count):
        tail = np.array([FIRST_TAIL + branch, *range(TAIL - 1)], np.int32)  # no two begin alike
        with tree.lookup([(NAMESPACE, stem[: places[branch % PLACES]])]) as lease:
            tree.insert(lease, NAMESPACE, tail, TAIL)
    return tree.bytes, (STEM + count * TAIL) * TOKEN_BYTES
