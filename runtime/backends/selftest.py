"""Checks at load that a model's numbers do not depend on how its tokens are pushed."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from runtime.backends.base import ROOT, PackTokens
from runtime.backends.facts import KvFormat
from runtime.backends.packs.packed import FirstForward, PackedBackend, chain_parents
from runtime.backends.packs.tree import Float32, Int64
from runtime.errors import MemoryBudgetError, ModelLoadError, RuntimeFault
from runtime.info import ModelInfo
from runtime.loading.measurements import keep_measurement, measurement
from runtime.loading.progress import report_checking
from runtime.version import __version__

log = logging.getLogger(__name__)
Warnings = tuple[str, ...]
T = TypeVar("T")

TOLERANCES = {"float32": 1e-3, "float16": 6e-2, "bfloat16": 4e-1}  # nats between log-probabilities
WORTH_SECONDS = 0.05  # if the first forward takes longer, its result is saved for later loads
WORTH_PARAMETERS = 20_000_000  # measurements of smaller models are not saved: these are slow only by chance
SLOW_SECONDS = 0.1  # if the first forward takes longer, the first chunk of a prompt is small
_version = cache(version)  # `version` itself keeps a new index of a folder after each change of the folder
_TOP = 20  # likeliest tokens, whose log-probabilities are compared
_KV_TOKENS = 56  # tokens of the text with which `kv_warning` measures
_TRUNK = 9  # tokens
_TAILS = (5, 1, 3)  # tokens of the branches: ragged on purpose
_CHUNK = 7  # tokens
_WAYS = ("tree", "stepwise", "buckets", "ragged", "shares", "together")  # attributes that the test of a copy sets


class UnprovenError(ModelLoadError):
    """The numbers of a model depend on how its tokens are pushed."""


class Copy(NamedTuple):
    """A small copy to test in place of a model.

    Attributes:
        make: Makes a backend over it.
        lengths: Lengths in tokens at which the computation may change.
        key: Equal for copies with equal numbers, which are tested once in a process.
    """

    make: Callable[[], PackedBackend[Any]]
    lengths: tuple[int, ...]
    key: Hashable


proofs: dict[Hashable, tuple[Warnings, dict[str, bool]]] = {}  # by `Copy.key`: warnings, and values of `_WAYS`


def prove(backend: PackedBackend[Any], copies: Iterable[Copy]) -> Warnings:
    """Runs the self-test on a small random copy of the model in float32, once in a process for each copy.

    So rounding to 16 bits and the model's depth do not matter. Switches off in `backend` the ways of pushing that failed.

    Args:
        backend: The model's backend.
        copies: The first one that can be made and computed is tested.

    Returns:
        Warnings for `ModelInfo.warnings`, empty when all is well.

    Raises:
        ModelLoadError: As `self_test`.
    """
    for make, lengths, key in copies:
        if key not in proofs:
            try:
                copy = make()
                copy.logits_uncached([1, 2])
            except MemoryBudgetError:
                raise
            except Exception as error:  # noqa: BLE001  # the library may fail with these sizes; the next copy has others
                log.debug("no small copy of %s: %s", backend.info.name, error)
                continue
            warnings = _guarded_test(copy, lengths, backend.info.name)
            proofs[key] = warnings, {way: getattr(copy, way) for way in _WAYS}
        warnings, ways = proofs[key]
        for way, works in ways.items():
            setattr(backend, way, works)
        break
    else:
        warnings = _guarded_test(backend, (), None, strict=_rounding(backend.info) == "float32")
    backend.on_device = backend.on_device and backend.together  # rows stay there only where parts share a forward
    return warnings


def _guarded_test(backend: PackedBackend[Any], lengths: Sequence[int], name: str | None, *, strict: bool = True) -> Warnings:
    """Runs `self_test`; raises errors of the library as `UnprovenError`."""
    try:
        return self_test(backend, lengths, name=name, strict=strict)
    except RuntimeFault:
        raise
    except Exception as error:  # the library's own error, if it cannot use our cache
        raise UnprovenError(
            f"{name or backend.info.name}: {backend.info.backend} fails on a text that is pushed in pieces "
            f"({type(error).__name__}: {str(error)[:200]}); this architecture is not supported"
        ) from error


def self_test(
    backend: PackedBackend[Any], lengths: Sequence[int] = (), *, name: str | None = None, strict: bool = True
) -> Warnings:
    """Pushes a small tree in every way and switches off the ways that disagree with plain single runs.

    Sets `backend.tree`, `stepwise`, `buckets`, `ragged`, `shares` and `together`. Computes about 90 tokens, 120 more where
    branches are not pushed as a tree, 60 more where rows share a prefix, and some texts about as long as each of `lengths`.

    Args:
        backend: The backend of the model, or of a copy.
        lengths: Lengths in tokens, within the context, at which the computation may change.
        name: The model's name, if `backend` computes a copy.
        strict: Whether a chain that disagrees is an error; else it is a warning.

    Returns:
        Warnings for `ModelInfo.warnings`, empty when all is well.

    Raises:
        ModelLoadError: Even a single chain disagrees with the library's own uncached forward.
    """
    rng = np.random.default_rng(20_260_101)
    vocabulary = backend.info.vocab_size
    ids = rng.integers(0, vocabulary, _TRUNK + sum(_TAILS))
    tolerance = TOLERANCES[_rounding(backend.info)]
    trunk, tails = ids[:_TRUNK], np.split(ids[_TRUNK:], np.cumsum(_TAILS)[:-1])
    plain = np.stack([backend.logits_uncached([*trunk, *tail]) for tail in tails])
    text = rng.integers(0, vocabulary, max(lengths, default=0))
    ends = sorted({n + d for n in lengths for d in (-1, 0, 1) if n + d <= len(text)})
    whole = [backend.logits_uncached(text[:end].tolist()) for end in ends]
    few = min(_CHUNK, len(text) - 1)  # tokens before the longest piece
    cuts = [range(0, len(text), _CHUNK), (0, few)] if len(text) else []

    def cached() -> float:
        """The largest gap of chains that are pushed in pieces."""
        apart = [_gap(_as_chain(backend, trunk, tail), row) for tail, row in zip(tails, plain, strict=True)]
        pieces = [row for starts in cuts for row in _in_chunks(backend, text, ends, starts)]
        return max([*apart, *map(_gap, pieces, whole * len(cuts))])

    warnings = []
    off = cached()
    if off > tolerance and backend.recurrent:
        backend.stepwise = True
        off = cached()
        warnings.append("this library carries recurrent state over one token at a time: long prompts are slow to continue")
    if not off <= tolerance:
        problem = (
            f"{backend.info.backend} answers {off:.3g} nats apart with and without a cache (allowed: {tolerance:g}"
            f"{', in a small copy of the model in float32' if name else ''})"
        )
        if strict:
            raise UnprovenError(f"{name or backend.info.name}: {problem}; this architecture is not supported")
        warnings.append(problem)
    if not backend.chained:
        gap, failed = float("inf"), ""
        try:
            gaps = [_gap(a, b) for a, b in zip(_as_tree(backend, trunk, tails), plain, strict=True)]
            for cut in (len(text) - 1, few) if len(text) else ():
                gaps += map(_gap, _side_by_side(backend, text, cut, trunk, tails[0]), (whole[-1], plain[0]))
            gap = max(gaps)
        except MemoryBudgetError:
            raise
        except Exception as error:  # noqa: BLE001  # the library's own error, if it takes no masks of ours: none are used then
            failed = f"failed ({type(error).__name__}: {error})"
        if not gap <= tolerance:
            backend.tree = False
            backend.ragged = False  # a library that fails with a tree's mask gets no other mask
            found = failed or f"came out {gap:.3g} nats apart"
            warnings.append(f"branches are computed one by one or by equal length: as a tree they {found}")
    if backend.together and (backend.chained or not _together_gap(backend, trunk, tails, plain, text, whole) <= tolerance):
        backend.together = False  # packs are then computed one after the other, with the same numbers
    if backend.chained:
        warnings += _check_rows(backend, trunk, tails, tolerance)
    return tuple(warnings)


@dataclass(frozen=True, slots=True)
class Measurements:
    """Saved measurements of a model in one form on this machine, with these versions.

    Attributes:
        weights: Digest of the weights; None: nothing is saved.
        conditions: What the measurements depend on, as text; part of their key.
    """

    weights: str | None
    conditions: str

    @classmethod
    def of(cls, info: ModelInfo, weights: str | None, libraries: Sequence[str]) -> Measurements:
        """The measurements of a model; those of a small model are not saved.

        Args:
            info: The model's complete `info`.
            weights: Digest of the weights.
            libraries: Names of the distributions that compute.
        """
        form = [str(info.options.get(name)) for name in ("device", "dtype", "weights", "offload")]
        machine = [platform.machine(), f"{os.cpu_count()} cores"]
        versions = [f"{name} {_version(name)}" for name in libraries]
        return cls(
            weights if info.parameters >= WORTH_PARAMETERS else None, ", ".join([__version__, *versions, *form, *machine])
        )

    def read(self, what: str, kind: type[T]) -> T | None:
        """A saved measurement; None where there is none, or it is not of this kind."""
        if self.weights is None:
            return None
        with suppress(msgspec.ValidationError):
            return msgspec.convert(measurement(self.weights, f"{what}, {self.conditions}"), kind, strict=True)
        return None

    def save(self, what: str, found: msgspec.Struct) -> None:
        """Saves a measurement for later loads."""
        if self.weights is not None:
            keep_measurement(self.weights, f"{what}, {self.conditions}", msgspec.to_builtins(found))


def first_forward(backend: PackedBackend[Any], measured: Measurements) -> FirstForward:
    """Pushes one token through the loaded model, or reads the result of an earlier load, since a forward reads all weights.

    Raises:
        ModelLoadError: As `check_finite`.
    """
    report_checking()
    found = measured.read("first forward", FirstForward)
    if found is None:
        seconds = check_finite(backend)
        found = FirstForward(seconds, backend.shapes, backend.state_shapes, backend.state_bytes)
        if seconds > WORTH_SECONDS:
            measured.save("first forward", found)
    else:
        backend.learn_unread(found)
        backend.state_shapes, backend.state_bytes = found.state_shapes, found.state_bytes
    if found.seconds > SLOW_SECONDS:
        backend.speed = min(1 / found.seconds, backend.speed)
    return found


def check_finite(backend: PackedBackend[Any]) -> float:
    """Pushes one token through the loaded model.

    Returns:
        The seconds that it took.

    Raises:
        ModelLoadError: The logits are not finite; the message names a broken tensor, if one is found.
    """
    with _packs(backend, 1) as (pack,):
        started = time.monotonic()
        token = np.array([backend.info.vocab_size // 3])
        _, logits = backend.forward(pack, token, np.array([ROOT]), np.array([0]))
    seconds = time.monotonic() - started
    if np.isfinite(logits).all():
        return seconds
    tensor, info = backend.broken_weights(), backend.info
    if tensor is not None:
        raise ModelLoadError(
            f"the weights of {info.name} hold numbers that are not finite (tensor {tensor}); fetch the model again"
        )
    if info.dtype != "float32":
        raise ModelLoadError(f"{info.name} answers with numbers that are not finite in {info.dtype}; use dtype='float32'")
    raise ModelLoadError(f"{info.name}: {info.backend} answers with numbers that are not finite; use another model")


def _rounding(info: ModelInfo) -> str:
    """The narrowest dtype of the activations: kernels for weights in few bits take only bfloat16."""
    return "bfloat16" if info.options.get("weights") in ("bfloat16", "int8", "int4") else info.dtype


class Seconds(msgspec.Struct, frozen=True):
    """The duration of one forward."""

    seconds: float


class KvGaps(msgspec.Struct, frozen=True):
    """Differences of log-probabilities by quantised KV, in nats, among the likeliest tokens."""

    most: float
    mean: float


def kv_warning(backend: PackedBackend[Any], kv: KvFormat, measured: Measurements) -> tuple[str, ...]:
    """Warns of the inexactness of quantised KV, measured on this model with about 70 tokens at its first load in this form."""
    n = min(_KV_TOKENS, backend.info.context_length)
    if kv.bits is None or n < 2:
        return ()
    if not backend.slot_bytes:
        return (
            f"kv_dtype {kv.name} has no meaning here: the model keeps no keys and values, and its state is never quantised",
        )
    found = measured.read(f"kv {kv.name}", KvGaps)
    if found is None:
        rng = np.random.default_rng(20_260_102)
        trunk, tail = np.split(rng.integers(0, backend.info.vocab_size, n), [n - n // 4])
        gaps = kv_gaps(backend, trunk, tail)
        found = KvGaps(float(gaps.max()), float(gaps.mean()))
        measured.save(f"kv {kv.name}", found)
    return (
        f"KV of idle segments is held in {kv.bits} bits: answers after a cached prefix differ from uncached ones, here by "
        f"{found.most:.2g} nats at most and {found.mean:.2g} on average among the {_TOP} likeliest tokens",
    )


def stream_warning(backend: PackedBackend[Any], kv: KvFormat, *, even: bool = False) -> tuple[str, ...]:
    """Warns that the same seed may draw other tokens in a batch or after a cached prefix.

    In a batch, sums are added up in another order and differ in the last bit of float32. Rounding to 16 bits turns that bit
    into a whole step of 16 bits; so does KV that is cached in fewer bits than it was computed in.

    Args:
        backend: The model's backend; its `info` is complete.
        kv: Format of its cached KV.
        even: Whether the library adds up a 16-bit row in the same order in every batch.
    """
    info, rounding = backend.info, _rounding(backend.info)
    if rounding in ("float16", "bfloat16") and not even:
        way_out = "dtype='float32'" if rounding == info.dtype else "weights='float32' (or 'float16')"
        return (
            f"numbers are rounded to {rounding}, a little differently beside others than alone: with the same seed a stream "
            f"can draw other tokens in a batch or after a branch; {way_out} keeps it the same",
        )
    if backend.slot_bytes and kv.name not in (info.dtype, "float32"):
        return (
            f"KV rests in {kv.name}: with the same seed a stream can draw other tokens after a cached prefix than afresh; "
            "kv_dtype='auto' keeps it the same",
        )
    return ()


def kv_gaps(backend: PackedBackend[Any], trunk: Int64, tail: Int64) -> Float32:
    """How far log-probabilities move when the KV of `trunk` comes from a payload.

    Returns:
        ``(len(tail), 20)`` absolute differences in nats, over the likeliest tokens after each of `tail`.
    """
    with _packs(backend, 2) as packs:
        slots = _push(backend, packs[0], trunk)
        held = backend.load(packs[1], backend.take(packs[0], slots), ROOT)
        rows = []
        for pack, end in zip(packs, (slots[-1], held[-1]), strict=True):
            parents = chain_parents(len(trunk), len(tail), int(end))
            rows.append(_log_softmax(backend.forward(pack, tail, parents, np.arange(len(tail)))[1]))
        likeliest = np.argsort(-rows[0], axis=-1)[:, :_TOP]
        gaps: Float32 = np.abs(np.take_along_axis(rows[1], likeliest, -1) - np.take_along_axis(rows[0], likeliest, -1))
        return gaps


@contextmanager
def _packs(backend: PackedBackend[Any], count: int) -> Iterator[list[Any]]:
    """Empty packs, closed at the end."""
    packs = [backend.open_pack() for _ in range(count)]
    try:
        yield packs
    finally:
        for pack in packs:
            backend.close(pack)


def _push(backend: PackedBackend[Any], pack: Any, text: Int64) -> Int64:
    """The slots of a text, pushed into an empty pack without reading logits."""
    return backend.forward(pack, text, chain_parents(0, len(text), ROOT), np.empty(0, np.int64))[0]


def _check_rows(backend: PackedBackend[Any], trunk: Int64, tails: list[Int64], tolerance: float) -> list[str]:
    """Compares chains of equal and different length as rows of a forward with single runs; switches off ways that disagree."""
    stems, more = (trunk, trunk, trunk[::-1]), trunk[:2]
    even = [np.concatenate([stem, tail]) for stem, tail in zip(stems, tails, strict=True)]
    plain = [backend.logits_uncached(text.tolist()) for text in (*even, *(np.append(text, more) for text in even))]
    shares, backend.shares = backend.shares, False  # first over copies, which rows over shared buffers fall back to
    gaps, failed = _row_gaps(backend, stems, tails, more, plain)
    if not gaps[0] <= tolerance:
        backend.buckets = False
        return [f"rows are computed one by one: as one batch they {failed or f'came out {gaps[0]:.3g} nats apart'}"]
    if not gaps[1] <= tolerance:
        backend.ragged = False
        return [f"only rows of equal length share a forward: others {failed or f'came out {gaps[1]:.3g} nats apart'}"]
    if not shares:
        return []
    backend.shares, before, backend.masked_per_copy = True, backend.masked_per_copy, float("inf")  # even where copies cost less
    try:
        gaps, failed = _row_gaps(backend, stems, tails, more, plain)
    finally:
        backend.masked_per_copy = before
    if not max(gaps) <= tolerance:
        backend.shares = False
        found = failed or f"came out {max(gaps):.3g} nats apart"
        return [f"each row has its prefix copied for its attention layers: over one prefix they {found}"]
    return []


def _row_gaps(
    backend: PackedBackend[Any], stems: tuple[Int64, ...], tails: list[Int64], more: Int64, plain: list[Float32]
) -> tuple[list[float], str]:
    """The largest gaps of rows over pasts of equal and of different length, and the error, after which gaps are infinite."""
    gaps, n = [float("inf")] * 2, len(stems[0])
    try:
        with _packs(backend, 1) as (pack,):
            roots = np.concatenate([chain_parents(0, n, ROOT), chain_parents(n, n, ROOT)])
            backend.forward(pack, np.concatenate([stems[0], stems[-1]]), roots, np.empty(0, np.int64))
            tips = [n - 1 if stem is stems[0] else 2 * n - 1 for stem in stems]
            for i, chains in enumerate((tails, [more] * len(tails))):
                ends = np.cumsum([len(chain) for chain in chains])
                base = backend.size(pack)
                starts = base + ends - [len(chain) for chain in chains]
                parents = [chain_parents(int(s), len(c), tip) for s, c, tip in zip(starts, chains, tips, strict=True)]
                slots, logits = backend.forward(pack, np.concatenate(chains), np.concatenate(parents), ends - 1)
                tips = slots[ends - 1].tolist()
                gaps[i] = max(map(_gap, logits, plain[i * len(tails) :]))
    except MemoryBudgetError:
        raise
    except Exception as error:  # noqa: BLE001  # the library's own error, if it computes no batches: none are used then
        return gaps, f"failed ({type(error).__name__}: {error})"
    return gaps, ""


def _as_chain(backend: PackedBackend[Any], trunk: Int64, tail: Int64) -> Float32:
    """The last row of trunk + tail, pushed as one chain in two pieces, with another text pushed in between.

    This detects a model that keeps its state in its modules instead of the cache: it continues from the other text's state.
    """
    with _packs(backend, 2) as (pack, other):
        _push(backend, pack, trunk)
        _push(backend, other, trunk[::-1].copy())
        parents = chain_parents(len(trunk), len(tail), len(trunk) - 1)
        last: Float32 = backend.forward(pack, tail, parents, np.array([len(tail) - 1]))[1][0]
        return last


def _in_chunks(backend: PackedBackend[Any], text: Int64, ends: Sequence[int], starts: Sequence[int]) -> list[Float32]:
    """The logits before each of `ends` of a text that is pushed in pieces, which begin at `starts`."""
    rows: list[Float32] = []
    with _packs(backend, 1) as (pack,):
        for start, stop in pairwise([*starts, len(text)]):
            piece = text[start:stop]
            want = np.array([end - 1 - start for end in ends if start < end <= start + len(piece)], np.int64)
            parents = chain_parents(start, len(piece), start - 1 if start else ROOT)
            rows += list(backend.forward(pack, piece, parents, want)[1])
    return rows


def _side_by_side(backend: PackedBackend[Any], text: Int64, cut: int, trunk: Int64, tail: Int64) -> Float32:
    """The last rows of a long text, whose tokens from `cut` on are pushed in one forward with all of a short one."""
    rest = text[cut:]
    with _packs(backend, 1) as (pack,):
        _push(backend, pack, text[:cut])
        short = np.concatenate([trunk, tail])
        parents = np.concatenate([chain_parents(cut, len(rest), cut - 1), chain_parents(len(text), len(short), ROOT)])
        want = np.array([len(rest), len(rest) + len(short)]) - 1
        return backend.forward(pack, np.concatenate([rest, short]), parents, want)[1]


def _together_gap(
    backend: PackedBackend[Any],
    trunk: Int64,
    tails: list[Int64],
    plain: Float32,
    text: Int64,
    whole: list[Float32],
) -> float:
    """The largest gap of a forward over several packs: a continued chain, a new one, branches, long texts."""
    cuts = [len(text) - 1, min(_CHUNK, len(text) - 1)] if len(text) else []
    n, first, second = len(trunk), len(tails[1]), len(tails[2])
    branches = np.concatenate([chain_parents(n, first, n - 1), chain_parents(n + first, second, n - 1)])
    fresh = np.concatenate([trunk, tails[0]])
    try:
        with _packs(backend, 3 + len(cuts)) as packs:
            parts = [
                _chain(packs[0], tails[0], n),
                _chain(packs[1], fresh, 0),
                PackTokens(packs[2], np.concatenate(tails[1:]), branches, np.cumsum([first, second]) - 1),
                *(_chain(pack, text[cut:], cut) for pack, cut in zip(packs[3:], cuts, strict=True)),
            ]
            for pack, stem in (
                (packs[0], trunk),
                (packs[2], trunk),
                *zip(packs[3:], (text[:cut] for cut in cuts), strict=True),
            ):
                if len(stem):
                    _push(backend, pack, stem)
            got = backend.begin(parts)()
            return max(map(_gap, got, [plain[0], plain[0], plain[1], plain[2], *whole[-1:] * len(cuts)]))
    except MemoryBudgetError:
        raise
    except Exception as error:  # noqa: BLE001  # the library's own error, if its attention is not ours
        log.debug("no forward over several packs of %s: %s", backend.info.name, error)
        return float("inf")


def _chain(pack: Any, tokens: Int64, base: int) -> PackTokens:
    """Tokens that continue a pack of one chain with `base` slots; only the last one's logits are wanted."""
    parents = chain_parents(base, len(tokens), base - 1 if base else ROOT)
    return PackTokens(pack, tokens, parents, np.array([len(tokens) - 1]))


def _as_tree(backend: PackedBackend[Any], trunk: Int64, tails: list[Int64]) -> Float32:
    """The last rows of all tails, pushed as one tree over the trunk."""
    base = len(trunk)
    with _packs(backend, 1) as (pack,):
        _push(backend, pack, trunk)
        starts = base + np.cumsum([0, *map(len, tails[:-1])])
        parents = [chain_parents(int(start), len(tail), base - 1) for start, tail in zip(starts, tails, strict=True)]
        want = np.cumsum([len(tail) for tail in tails]) - 1
        return backend.forward(pack, np.concatenate(tails), np.concatenate(parents), want)[1]


def _gap(a: Float32, b: Float32) -> float:
    """The largest difference of two rows' log-probabilities; infinite where one is not finite."""
    gap = float(np.abs(_log_softmax(a) - _log_softmax(b)).max())
    return gap if np.isfinite(gap) else float("inf")


def _log_softmax(logits: Float32) -> Float32:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    normal: Float32 = (wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))).astype(np.float32)
    return normal
