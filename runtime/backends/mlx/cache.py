"""The caches that mlx-lm's models write to: growing buffers of a pack.

A tree of new tokens is computed as batch rows of width 1 that share one K/V array: `offset` has one depth per row, for rope;
`make_mask` returns the slots that each row sees; `update_and_fetch` writes the new keys side by side into the one buffer and
returns it broadcast over the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask, scaled_dot_product_attention
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

from runtime.backends.mlx.masks import RowMasks, TreeMasks
from runtime.backends.packs.chains import UNBOUNDED, Bucket
from runtime.backends.packs.packed import MOVED_SLOTS, WorkingPack
from runtime.backends.packs.tree import ForwardStep, Int64
from runtime.backends.stored import Shape
from runtime.errors import UnsupportedFeatureError

FIRST_CAPACITY = 64  # slots
PIECE = 64  # slots moved at a time where memory is short

Arrays = tuple[mx.array | None, ...]
Buffers = tuple[mx.array | None, mx.array | None]  # of one layer: keys, values
OnLayer = Callable[[mx.array, mx.array], None]


@dataclass(frozen=True, slots=True)
class Placement:
    """The slots that a forward writes and reads: the same in all layers of a pack."""

    end: int = 0  # the slot after the last new token
    start: int = 0  # the slot of the first new token
    past: int = 0  # keys that the model sees before the new ones
    path: mx.array | None = None  # slots to gather before the new ones
    slots: mx.array | slice | None = None  # of the new tokens, where they are not consecutive
    masks: TreeMasks | RowMasks | None = None
    seen: mx.array | None = None  # for chains as rows: the slots that each row sees, the new ones last
    blank: mx.array | slice | None = None  # for rows that share the buffers: slots to fill with zeros
    firsts: Mapping[int | None, int] | None = None  # for the same: the first slot that layers with a window need


NO_PLACEMENT = Placement()


class SlotCache:
    """Keys and values of one attention layer by slot: ``(1, kv_heads, capacity, head_dim)``.

    Args:
        window: Positions that a sliding layer sees, the token itself included; None for a full layer, and where the model
            passes it to `make_mask`.
        on_layer: Called with the layer's new keys and values.
    """

    def __init__(self, on_layer: OnLayer, window: int | None = None) -> None:
        self.window = window
        self._on_layer = on_layer
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset: int | mx.array = 0  # position of the first new token, or one per row
        self.place = NO_PLACEMENT  # of the running forward; set by the pack

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes new keys and values, ``(1, kv_heads, n, head_dim)`` or one row each; returns all that the model attends to."""
        self._on_layer(keys, values)
        rows, place = keys.shape[0], self.place
        if rows > 1 and place.seen is None and place.firsts is None:
            keys, values = keys.transpose(2, 1, 0, 3), values.transpose(2, 1, 0, 3)  # (1, kv_heads, rows, head_dim)
        if self.keys is None or place.end > self.keys.shape[2]:
            self.grow(place.end, keys, values)
        if place.seen is not None:
            return self._write_rows(place.seen, keys, values)
        if place.firsts is not None:
            return self._write_shared(place.firsts[self.window], keys, values)
        assert self.keys is not None
        assert self.values is not None
        if place.path is not None:
            return self._write_path(place.path, keys, values)
        self.keys[..., place.start : place.end, :] = keys
        self.values[..., place.start : place.end, :] = values
        first = self._first_seen()
        seen = self.keys[..., first : place.end, :], self.values[..., first : place.end, :]
        return (_over_rows(seen[0], rows), _over_rows(seen[1], rows)) if rows > 1 else seen

    def make_mask(
        self,
        N: int,  # noqa: N803  # mlx-lm's own name
        return_array: bool = False,
        window_size: int | None = None,
    ) -> Any:
        """The mask for mlx-lm's attention: a bool array, "causal", or None where one token sees everything."""
        window = self.window or window_size
        place = self.place
        if place.masks is not None:
            return place.masks.of(window)[..., self._first_seen() :]
        self.window = window  # some sliding layers are recognised by their first call
        first = self._first_seen()
        if window is not None and N > 1 and place.past - first + N > window:
            return create_causal_mask(N, place.past - first, window_size=window)
        if N == 1:
            return None
        return create_causal_mask(N, place.past - first) if return_array else "causal"

    def grow(self, slots: int, keys: mx.array, values: mx.array) -> None:
        """Makes room for more slots, `slots` in all, by doubling the buffers; with the shapes of `keys` and `values`."""
        capacity = max(slots, 0 if self.keys is None else 2 * self.keys.shape[2], FIRST_CAPACITY)
        self.keys = resized(self.keys, capacity, keys.shape[1], keys.shape[3], keys.dtype)
        self.values = resized(self.values, capacity, values.shape[1], values.shape[3], values.dtype)

    def resize(self, capacity: int, shape: Shape, dtype: mx.Dtype) -> None:
        """Makes room for exactly `capacity` slots, evaluated; frees the old keys before it allocates new values."""
        heads, key_width, value_width = shape
        self.keys = _evaluated(resized(self.keys, capacity, heads, key_width, dtype))
        self.values = _evaluated(resized(self.values, capacity, heads, value_width, dtype))

    def gather(self, name: str, slots: mx.array, start: int) -> None:
        """Moves the rows `slots` of the buffer `name` to the slots from `start` on; none of them lies before `start`."""
        buffer = getattr(self, name)
        if buffer is None:  # never written: a first forward failed before this layer
            return
        rows = _evaluated(mx.take(buffer, slots, axis=2))  # evaluated before their buffer is written
        buffer[..., start : start + slots.shape[0], :] = rows
        mx.eval(buffer)

    @property
    def shape(self) -> Shape | None:
        """Heads, width of keys, width of values; None before the first forward."""
        if self.keys is None or self.values is None:
            return None
        return self.keys.shape[1], self.keys.shape[3], self.values.shape[3]

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    def _write_path(self, path: mx.array, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, self.place.slots] = keys
        self.values[:, :, self.place.slots] = values
        past = path[self._first_seen() :]
        return (
            mx.concatenate([mx.take(self.keys, past, axis=2), keys], axis=2),
            mx.concatenate([mx.take(self.values, past, axis=2), values], axis=2),
        )

    def _write_rows(self, seen: mx.array, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes ``(rows, heads, width, dim)``; returns a copy of what each row sees."""
        seen = seen[:, self._first_seen() :]
        answers = []
        for buffer, new in ((self.keys, keys), (self.values, values)):
            assert buffer is not None
            _, heads, _, dim = new.shape
            buffer[0, :, self.place.slots] = new.swapaxes(0, 1).reshape(heads, -1, dim)
            gathered = mx.take(buffer, seen.flatten(), axis=2).reshape(heads, *seen.shape, dim)
            answers.append(gathered.swapaxes(0, 1))
        return answers[0], answers[1]

    def _write_shared(self, first: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes ``(rows, heads, width, dim)``; returns the buffers for every row, without a copy."""
        answers = []
        for buffer, new in ((self.keys, keys), (self.values, values)):
            assert buffer is not None
            rows, heads, _, dim = new.shape
            buffer[0, :, self.place.blank] = 0
            buffer[0, :, self.place.slots] = new.swapaxes(0, 1).reshape(heads, -1, dim)
            answers.append(_over_rows(buffer[..., first : self.place.end, :], rows))
        return answers[0], answers[1]

    def _first_seen(self) -> int:
        """The first slot that is attended to: a sliding layer of a chain needs only its window."""
        place = self.place
        if place.firsts is not None:
            return place.firsts[self.window]
        return 0 if self.window is None or place.masks is not None else max(place.past - self.window + 1, 0)


class MlxPack(WorkingPack):
    """A pack's buffers: the result of `make_caches`, one entry per model layer."""

    def __init__(self, caches: list[Any]) -> None:
        super().__init__()
        self.caches = caches
        self.attention = [c for c in _flat(caches) if isinstance(c, SlotCache)]
        self.recurrent = [c for c in _flat(caches) if isinstance(c, ArraysCache)]

    @property
    def capacity(self) -> int:
        """Slots that every buffer has room for; buffers are resized from the first to the last."""
        if not self.attention:
            return UNBOUNDED
        first, last = self.attention[0].keys, self.attention[-1].values
        return 0 if first is None or last is None else min(first.shape[2], last.shape[2])

    def resize(self, capacity: int, shapes: Sequence[Shape], dtype: mx.Dtype) -> None:
        """Makes room for exactly `capacity` slots in every attention layer, whose shapes are known."""
        for cache, shape in zip(self.attention, shapes, strict=True):
            cache.resize(capacity, shape, dtype)

    def finite(self) -> mx.array:
        """``(size,)`` whether the keys and values of each slot are finite."""
        size = self.tree.size
        found = mx.ones(size, mx.bool_)
        for buffer in self.arrays():
            found = found & mx.isfinite(buffer[0, :, :size]).all(axis=(0, 2))
        return found

    def gather(self, slots: mx.array, start: int) -> None:
        """Moves rows (of ascending `slots`) to `start` in every buffer; fails only before anything has moved.

        Moves pieces from front to back. If memory runs out for a later piece, it is moved in smaller ones, as a second try
        of all would move the others twice.
        """
        buffers = [(cache, name) for cache in self.attention for name in ("keys", "values")]
        for number, (cache, name) in enumerate(buffers):
            for at in range(0, slots.shape[0], MOVED_SLOTS):
                piece = slots[at : at + MOVED_SLOTS]
                try:
                    cache.gather(name, piece, start + at)
                except (RuntimeError, MemoryError):
                    if number == at == 0:
                        raise
                    for least in range(0, piece.shape[0], PIECE):
                        cache.gather(name, piece[least : least + PIECE], start + at + least)

    def begin(self, step: ForwardStep, *, rows: bool) -> None:
        """Sets the slots and positions of the layers' next keys, and what they see; `rows`: each token is a batch row."""
        start = past = int(step.slots[0])
        path = slots = None
        if step.path is not None:
            path, slots, past = mx.array(step.path.astype(np.int32)), mx.array(step.slots.astype(np.int32)), len(step.path)
        masks = None if step.mask is None else TreeMasks(step.mask, self.tree.depths[: step.mask.shape[1]], rows=rows)
        place = Placement(int(step.slots[-1]) + 1, start, past, path, slots, masks)
        offset = mx.array(step.positions.astype(np.int32)) if rows else int(step.positions[0])
        for cache in self.attention:
            cache.place, cache.offset = place, offset

    def begin_rows(self, bucket: Bucket) -> None:
        """`begin` for chains as rows, each of which sees its own slots.

        Rows that share the buffers need no gathered copies (`seen`), but blank slots filled with zeros (`blank`).
        """
        if self.attention:
            shared, masks = bucket.shared, RowMasks(replace(bucket, states=None)) if bucket.masked else None
            seen = mx.array(bucket.seen.astype(np.int32)) if shared is None else None
            slots, blank = to_index(bucket.slots.ravel()), None if shared is None else to_index(shared.blank)
            windows = {cache.window for cache in self.attention}
            firsts = None if shared is None else {window: bucket.first(window) for window in windows}
            end, past, positions = int(bucket.slots.max()) + 1, bucket.past, bucket.positions[:, 0]
            place = Placement(end, past=past, slots=slots, masks=masks, seen=seen, blank=blank, firsts=firsts)
            offset = int(positions[0]) if masks is None else mx.array(positions.astype(np.int32))
            for cache in self.attention:
                cache.place, cache.offset = place, offset

    def put_states(self, states: Sequence[Arrays | None]) -> None:
        """Sets every recurrent layer to stored states, one for each row, or to no state."""
        parts = iter(zip(*states, strict=True)) if states[0] is not None else None
        for cache in self.recurrent:
            cache.cache = [_joined(next(parts)) if parts else None for _ in cache.cache]

    def get_states(self, rows: int) -> list[Arrays]:
        """The recurrent layers' states, one tuple for each row, of arrays in memory of their own."""
        indices = [mx.array([row]) for row in range(rows)]
        found = [a for cache in self.recurrent for a in cache.cache]
        return [tuple(None if a is None else _row(a, index) for a in found) for index in indices]

    @contextmanager
    def set_aside(self) -> Iterator[list[Buffers]]:
        """Restores the buffers at the end; yields a list, which then holds the buffers as written inside, for `adopt`."""
        before = [(cache.keys, cache.values) for cache in self.attention]
        built: list[Buffers] = []
        try:
            for cache in self.attention:  # a write changes the array object that it goes through
                cache.keys, cache.values = copy(cache.keys), copy(cache.values)
            yield built
            built += [(cache.keys, cache.values) for cache in self.attention]
        finally:
            for cache, (keys, values) in zip(self.attention, before, strict=True):
                cache.keys, cache.values = keys, values

    def adopt(self, built: list[Buffers]) -> None:
        """Takes the buffers of `set_aside`; empties the list, so that nothing else holds buffers that MLX may reuse."""
        for cache, (keys, values) in zip(self.attention, built, strict=True):
            cache.keys, cache.values = keys, values
        built.clear()

    def arrays(self) -> list[mx.array]:
        """All buffers, for one evaluation."""
        return [a for c in self.attention for a in (c.keys, c.values) if a is not None]


@dataclass(frozen=True, slots=True)
class JointMask:
    """The result of `JointCache.make_mask`: the window of the layers that get it."""

    window: int | None


@dataclass(slots=True, eq=False)
class JointCache:
    """One attention layer of several packs: each token writes to its own pack's buffers and attends only to them.

    Tokens are batch rows of width 1 with depths `offset`. In `attend` the tokens of a pack are the queries of one attention
    over its buffers, which are neither repeated nor copied.
    """

    caches: Sequence[SlotCache]  # of this layer in each pack, prepared by `begin`
    lengths: Sequence[int]  # number of tokens of each pack
    ends: Sequence[int]  # number of rows up to the end of each pack, except for the last pack
    offset: mx.array  # (rows,)
    masks: dict[tuple[int, int | None], Any]  # of this forward, by pack and window; shared by all layers
    seen: Sequence[tuple[mx.array, mx.array]] = ()  # keys and values of each pack, once written

    def make_mask(
        self,
        N: int,  # noqa: ARG002, N803  # mlx-lm's own name
        return_array: bool = False,  # noqa: ARG002  # the same
        window_size: int | None = None,
    ) -> JointMask:
        """Passes on the window; `attend` makes the masks."""
        return JointMask(self.caches[0].window or window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes ``(rows, kv_heads, 1, head_dim)``; the result is not used."""
        new = self._parts(keys), self._parts(values)
        self.seen = [cache.update_and_fetch(*each) for cache, *each in zip(self.caches, *new, strict=True)]
        return keys, values

    def attend(self, queries: mx.array, scale: float, mask: JointMask, sinks: mx.array | None) -> mx.array:
        """The attention of each row over its pack's buffers, ``(rows, heads, 1, head_dim)``."""
        attended = []
        for at, (part, seen) in enumerate(zip(self._parts(queries), self.seen, strict=True)):
            place = at, mask.window
            if place not in self.masks:
                self.masks[place] = self.caches[at].make_mask(self.lengths[at], window_size=mask.window)
            seen_by = self.masks[place]
            attended.append(mx.fast.scaled_dot_product_attention(part, *seen, scale=scale, mask=seen_by, sinks=sinks))
        return mx.concatenate(attended, axis=2).transpose(2, 1, 0, 3)

    def _parts(self, array: mx.array) -> list[mx.array]:
        """Splits ``(rows, heads, 1, head_dim)`` into ``(1, heads, rows, head_dim)`` for each pack."""
        whole = array.transpose(2, 1, 0, 3)
        return list(mx.split(whole, self.ends, axis=2)) if self.ends else [whole]


def attention_by_pack(model: Any) -> bool:
    """Routes the model's attention to `JointCache.attend`; the self-test checks that all layers use it.

    mlx-lm's models import one function of `mlx_lm.models.base` into their module, where it is replaced.

    Returns:
        Whether some module had the function.
    """
    modules = {sys.modules[cls.__module__] for part in model.modules() for cls in type(part).__mro__}
    called = [module for module in modules if hasattr(module, scaled_dot_product_attention.__name__)]
    for module in called:
        setattr(module, scaled_dot_product_attention.__name__, _attention)
    return bool(called)


def _attention(
    queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, mask: Any, sinks: mx.array | None = None
) -> mx.array:
    if isinstance(cache, JointCache):
        return cache.attend(queries, scale, mask, sinks)
    found: mx.array = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    return found


def make_caches(model: Any, window: int | None, on_layer: OnLayer) -> list[Any]:
    """Our caches for a model, in place of those of mlx-lm; `window`: a sliding one in all layers, which mlx-lm ignores.

    Raises:
        UnsupportedFeatureError: A kind of cache that our buffers cannot replace.
    """
    return [_slot_cache(cache, window, on_layer) for cache in make_prompt_cache(model)]


def _slot_cache(cache: Any, window: int | None, on_layer: OnLayer) -> Any:
    if type(cache) is KVCache:
        return SlotCache(on_layer, window)
    if type(cache) is RotatingKVCache and not cache.keep:
        return SlotCache(on_layer, cache.max_size)
    if type(cache) is ArraysCache:
        return ArraysCache(size=len(cache.cache))
    if type(cache) is CacheList:
        return CacheList(*(_slot_cache(part, window, on_layer) for part in cache.caches))
    raise UnsupportedFeatureError(f"this model's {type(cache).__name__} cannot be kept in a token tree; use another model")


def _flat(caches: Sequence[Any]) -> Iterator[Any]:
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from _flat(cache.caches)
        else:
            yield cache


def to_index(slots: Int64) -> slice | mx.array:
    """Consecutive slots as a slice, others as an array of indices."""
    if not len(slots):
        return slice(0, 0)
    # `take_many` passes several chains, whose slots need not ascend, which `consecutive` assumes
    return slice(int(slots[0]), int(slots[-1]) + 1) if (np.diff(slots) == 1).all() else mx.array(slots.astype(np.int32))


def _over_rows(array: mx.array, rows: int) -> mx.array:
    return mx.broadcast_to(array, (rows, *array.shape[1:]))


def resized(buffer: mx.array | None, capacity: int, heads: int, width: int, dtype: mx.Dtype) -> mx.array:
    """A copy ``(1, heads, capacity, width)``; new slots are 0."""
    held = 0 if buffer is None else buffer.shape[2]
    if buffer is not None and capacity <= held:
        return mx.contiguous(buffer[:, :, :capacity])
    room = mx.zeros((1, heads, capacity - held, width), dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)


def _evaluated(array: mx.array) -> mx.array:
    """Evaluates an array; raises before it is stored if it cannot be computed."""
    mx.eval(array)
    return array


def _joined(parts: Arrays) -> mx.array | None:
    if parts[0] is None or len(parts) == 1:
        return parts[0]
    return mx.concatenate([part for part in parts if part is not None])  # all are None, or none is


def _row(array: mx.array, index: mx.array) -> mx.array:
    """A copy in memory of its own: `mx.contiguous` may share small arrays, arithmetic may reuse the buffer."""
    return mx.take(array, index, axis=0)


class Blank:
    """``(size,) int32`` token ids in memory that Python may write until the graph is evaluated.

    MLX reads an evaluated array when it evaluates what depends on it, not when the graph is built. (An array and a numpy view
    of it share their memory: MLX's documentation, "Conversion to NumPy and other frameworks".)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.array = mx.array(np.zeros(size, np.int32))  # evaluated at once: `mx.zeros` would wait for running work
        self._view = np.array(self.array, copy=False)

    def fill(self, tokens: Int64) -> None:
        """Writes the ids, before the evaluation begins."""
        self._view[:] = tokens
