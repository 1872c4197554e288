"""The cache that transformers' models write to: growing buffers of a pack.

Subclasses of transformers' own cache classes, so that its models and mask functions treat them as any cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from runtime.backends.packs.chains import UNBOUNDED, Bucket
from runtime.backends.packs.packed import MOVED_SLOTS, WorkingPack
from runtime.backends.packs.tree import ForwardStep, Int64, Ragged
from runtime.backends.stored import Shape
from runtime.errors import UnsupportedFeatureError

FIRST_CAPACITY = 64  # slots

Tensors = tuple[torch.Tensor | None, ...]
LayerPlan = Sequence[Callable[[], Any]]  # one for each layer of a model: makes its cache layer


@dataclass(frozen=True, slots=True)
class RaggedKeys:
    """The keys of consecutive chains of new tokens: each chain sees the slots before it and itself, causally.

    It is an attribute of keys ``(1, kv_heads, total, head_dim)``, which hold the keys of one chain after the other; `own_sdpa`
    reads it.
    """

    queries: torch.Tensor  # (chains + 1,) int32: offset of each chain's new tokens; their number last
    keys: torch.Tensor  # (chains + 1,) int32: offset of the keys that each chain sees; their number last
    longest: tuple[int, int]  # most new tokens of a chain, and most keys
    seen: torch.Tensor | None  # (total,) slots; None: the new ones in order
    window: int | None = None

    @classmethod
    def made(cls, ragged: Ragged, start: int, device: torch.device) -> RaggedKeys:
        """The keys of new tokens in slots from `start` on."""
        before = np.array([len(path) for path in ragged.paths])
        queries, keys = (np.cumsum([0, *lengths], dtype=np.int32) for lengths in (ragged.lengths, ragged.lengths + before))
        seen = None
        if before.any():
            ends = start + queries
            parts = zip(ragged.paths, ends[:-1].tolist(), ends[1:].tolist(), strict=True)
            seen = to_device(np.concatenate([part for path, a, b in parts for part in (path, np.arange(a, b))]), device)
        longest = int(ragged.lengths.max()), int((ragged.lengths + before).max())
        return cls(to_device(queries, device), to_device(keys, device), longest, seen)

    def of(self, layer: SlotLayer, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that the chains see of a layer, after the new ones were written to its buffers."""
        if self.seen is None:
            keys = keys.view_as(keys)
        else:
            keys, values = layer.keys.index_select(2, self.seen), layer.values.index_select(2, self.seen)
        keys.ragged = replace(self, window=layer.window)  # a tensor takes attributes
        return keys, values


@dataclass(slots=True)
class Placement:
    """The slots that a forward writes and reads: the same in all layers of a pack."""

    end: int = 0  # the slot after the last new token
    start: int = 0  # the slot of the first new token
    past: int = 0  # tokens that the model sees before the new ones
    masked: bool = False
    path: torch.Tensor | None = None  # slots to gather before the new ones
    slots: torch.Tensor | slice | None = None  # of the new tokens, where they are not consecutive
    ragged: RaggedKeys | None = None  # for consecutive chains, each of which sees only its own path
    whole: bool = False  # whether the model attends to all slots, used or not
    seen: torch.Tensor | None = None  # for chains as rows: the slots that each row sees, the new ones last
    blank: torch.Tensor | slice | None = None  # for rows that share the buffers: slots to fill with zeros
    firsts: Mapping[int | None, int] | None = None  # for the same: the first slot that layers with a window need


NO_PLACEMENT = Placement()


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not followed by mypy
    """Keys and values of one attention layer by slot: ``(1, kv_heads, capacity, head_dim)``.

    Args:
        window: Positions that a sliding layer sees, the token itself included; None for a full layer. The window is only
            a mask: the whole past is kept, so that branches can start anywhere.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.place = NO_PLACEMENT  # of the running forward; set by the pack

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:1, :, :0], value_states[:1, :, :0]
        self.is_initialized = True

    def grow(self, slots: int) -> None:
        """Makes room for more slots, `slots` in all, by doubling the buffers."""
        self.resize(max(slots, 2 * self.keys.shape[2], FIRST_CAPACITY))

    def resize(self, capacity: int) -> None:
        """Makes room for exactly `capacity` slots; frees the old keys before it allocates new values."""
        self.keys = resized(self.keys, capacity)
        self.values = resized(self.values, capacity)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  # for other cache classes
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new keys and values ``(rows, kv_heads, n, head_dim)``; returns all that the model attends to.

        For rows that share the buffers that is ``(1, kv_heads, slots, head_dim)``.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place, end = self.place, self.place.end
        if place.whole:
            self.keys.index_copy_(2, place.slots, key_states)
            self.values.index_copy_(2, place.slots, value_states)
            return self.keys, self.values
        if end > self.keys.shape[2]:
            self.grow(end)
        if place.seen is not None:
            seen = place.seen[:, self._first_seen() :]
            return _write_rows(self.keys, key_states, place.slots, seen), _write_rows(
                self.values, value_states, place.slots, seen
            )
        if place.path is not None:
            return self._write_path(place.path, key_states, value_states)
        if place.firsts is not None:
            for buffer, new in ((self.keys, key_states), (self.values, value_states)):
                buffer[0, :, place.blank] = 0
                buffer[0, :, place.slots] = _side_by_side(new)
            first = place.firsts[self.window]
            return self.keys[:, :, first:end], self.values[:, :, first:end]
        start, keys, values = place.start, self.keys, self.values
        keys.narrow(2, start, end - start).copy_(key_states)
        values.narrow(2, start, end - start).copy_(value_states)
        if place.ragged is not None:
            return place.ragged.of(self, key_states, value_states)
        first = 0 if self.window is None else self._first_seen()
        return keys.narrow(2, first, end - first), values.narrow(2, first, end - first)

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`update` for one token ``(1, kv_heads, head_dim)`` with few calls of torch, as many packs each need it."""
        if not self.is_initialized:
            self.lazy_initialization(key[:, :, None], value[:, :, None])
        start, end = self.place.start, self.place.end
        if end > self.keys.shape[2]:
            self.grow(end)
        keys, values, first = self.keys, self.values, 0 if self.window is None else self._first_seen()
        keys.select(2, start).copy_(key)
        values.select(2, start).copy_(value)
        return keys.narrow(2, first, end - first), values.narrow(2, first, end - first)

    def _write_path(self, path: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(2, self.place.slots, keys)
        self.values.index_copy_(2, self.place.slots, values)
        past = path[self._first_seen() :]
        return (
            torch.cat([self.keys.index_select(2, past), keys], dim=2),
            torch.cat([self.values.index_select(2, past), values], dim=2),
        )

    def _first_seen(self) -> int:
        """The first slot of the path that is attended to: a sliding layer of a chain needs only its window."""
        return 0 if self.window is None or self.place.masked else max(self.place.past - self.window + 1, 0)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = self._first_seen()
        return self.place.past - first + query_length, first

    def get_seq_length(self) -> int:
        return self.place.past

    def get_max_length(self) -> int:
        return -1

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes) if self.is_initialized else 0


class HybridSlotLayer(LinearAttentionLayer, SlotLayer):  # type: ignore[misc]  # the same
    """A layer with attention and a recurrent state side by side."""

    is_compileable = False

    def __init__(self, window: int | None = None, number_of_states: int = 1) -> None:
        SlotLayer.__init__(self, window)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        owner = SlotLayer if args else LinearAttentionLayer  # attention passes tensors by position
        owner.lazy_initialization(self, *args, **kwargs)


class TorchPack(WorkingPack):
    """A pack's buffers: one cache layer per model layer.

    Args:
        plan: The result of `layer_plan`.
        shapes: Shapes of the attention layers, once known.
        like: An empty tensor of the model's dtype and device.
    """

    def __init__(self, plan: LayerPlan, shapes: Sequence[Shape], like: torch.Tensor) -> None:
        super().__init__()
        self.sound = True  # whether all forwards wrote finite numbers
        self.cache = Cache(layers=[make() for make in plan])
        self.attention: list[SlotLayer] = [layer for layer in self.cache.layers if isinstance(layer, SlotLayer)]
        empty = {shape: [like.new_empty(1, shape[0], 0, width) for width in shape[1:]] for shape in set(shapes)}
        for layer, shape in zip(self.attention, shapes, strict=False):
            layer.lazy_initialization(*empty[shape])

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the attention layers that have computed."""
        return tuple(
            (layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3])
            for layer in self.attention
            if layer.is_initialized
        )

    @property
    def capacity(self) -> int:
        """Slots that every buffer has room for; buffers are resized from the first to the last."""
        if not self.attention:
            return UNBOUNDED
        first, last = self.attention[0], self.attention[-1]
        return min(int(first.keys.shape[2]), int(last.values.shape[2])) if last.is_initialized else 0

    @property
    def addresses(self) -> tuple[int, ...]:
        """The capacity and the addresses of the buffers."""
        return (self.capacity, *(at.data_ptr() for layer in self.attention for at in (layer.keys, layer.values)))

    def resize(self, capacity: int) -> None:
        """Makes room for exactly `capacity` slots in every layer that has computed."""
        for layer in self.attention:
            if layer.is_initialized:
                layer.resize(capacity)

    def finite(self) -> torch.Tensor:
        """``(size,)`` whether the keys and values of each slot are finite."""
        size = self.tree.size
        found = torch.ones(size, dtype=torch.bool)
        for layer in self.attention:
            if layer.is_initialized:
                for buffer in (layer.keys, layer.values):
                    found = found.to(buffer.device) & torch.isfinite(buffer[0, :, :size]).all(-1).all(0)
        return found

    def gather(self, slots: torch.Tensor, start: int) -> None:
        """Moves rows to `start` through one scratch buffer; only its allocation can fail, before anything has moved."""
        buffers = [buffer for layer in self.attention if layer.is_initialized for buffer in (layer.keys, layer.values)]
        if not buffers:
            return
        most = min(len(slots), MOVED_SLOTS)
        scratch = buffers[0].new_empty(max(b.shape[1] * b.shape[3] for b in buffers) * most)
        for buffer in buffers:
            heads, width = buffer.shape[1], buffer.shape[3]
            for at in range(0, len(slots), most):
                part = slots[at : at + most]
                rows = scratch[: heads * len(part) * width].view(1, heads, len(part), width)
                torch.index_select(buffer, 2, part, out=rows)
                buffer[:, :, start + at : start + at + len(part)] = rows

    def begin(self, step: ForwardStep, device: torch.device) -> None:
        """Sets the slots that the layers' next `update` writes and returns."""
        start, end = int(step.slots[0]), int(step.slots[-1]) + 1
        if step.path is not None:
            path, slots = to_device(step.path, device), to_device(step.slots, device)
            place = Placement(end, past=len(step.path), masked=step.mask is not None, path=path, slots=slots)
        else:
            ragged = None if step.ragged is None else RaggedKeys.made(step.ragged, start, device)
            place = Placement(end, start, past=start, masked=step.mask is not None, ragged=ragged)
        for layer in self.attention:
            layer.place = place

    def begin_whole(self, step: ForwardStep, slots: torch.Tensor) -> None:
        """`begin` for a forward over all slots of the buffers, used or not, through a mask; new keys go to `slots`."""
        place = Placement(past=int(step.slots[0]), masked=step.mask is not None, slots=slots, whole=True)
        for layer in self.attention:
            layer.place = place

    def begin_rows(self, bucket: Bucket, device: torch.device) -> None:
        """`begin` for chains as rows; those that share the buffers need no copies, but blank slots filled with zeros."""
        if self.attention:
            slots, shared = to_index(bucket.slots.ravel(), device), bucket.shared
            seen = to_device(bucket.seen, device) if shared is None else None
            blank = None if shared is None else to_index(shared.blank, device)
            windows = {layer.window for layer in self.attention}
            firsts = None if shared is None else {window: bucket.first(window) for window in windows}
            end, past = int(bucket.slots.max()) + 1, bucket.past
            place = Placement(end, past=past, masked=bucket.masked, slots=slots, seen=seen, blank=blank, firsts=firsts)
            for layer in self.attention:
                layer.place = place

    def put_states(self, states: Sequence[Tensors | None]) -> None:
        """Sets recurrent layers to copies of stored states (the library updates them in place), one per row, or to no state."""
        parts = iter(zip(*states, strict=True)) if states[0] is not None else None
        for layer in self.cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                for i in range(layer.number_of_states):
                    conv, recurrent = (_joined(next(parts)), _joined(next(parts))) if parts else (None, None)
                    _set_state(layer, i, conv, recurrent)

    def get_states(self, rows: int) -> list[Tensors]:
        """Copies of the recurrent layers' states, one tuple in a fixed order for each row."""
        found = []
        for layer in self.cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                for i in range(layer.number_of_states):
                    found += [_rows_of(layer.conv_states[i], rows), _rows_of(layer.recurrent_states[i], rows)]
        return list(zip(*found, strict=True))


@dataclass(eq=False, repr=False)
class JointLayer(CacheLayerMixin):  # type: ignore[misc]  # the same
    """One attention layer of several packs: each token writes to its own pack's buffers and attends only to them."""

    layers: Sequence[SlotLayer]  # one of each pack
    lengths: list[int]  # new tokens of each
    masks: Sequence[torch.Tensor | None]  # (1, 1, n, seen) bool for each; None: causal from the first key on, or all is seen
    is_sliding: bool
    ragged: bool  # whether any pack's keys are those of chains (`RaggedKeys`)
    is_initialized = is_compileable = is_croppable = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: the packs' layers initialise their own buffers."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  # for other cache classes
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes ``(1, kv_heads, n, head_dim)``; returns keys with an attribute `joint` for `own_sdpa`.

        It holds this layer, and keys and values ``(1, kv_heads, seen, head_dim)`` of each pack.
        """
        if len(self.lengths) == key_states.shape[2] and not self.ragged:
            seen = list(map(SlotLayer.append, self.layers, key_states.unbind(2), value_states.unbind(2)))
        else:
            new = key_states.split(self.lengths, 2), value_states.split(self.lengths, 2)
            seen = list(map(SlotLayer.update, self.layers, *new))
        keys = key_states.view_as(key_states)
        keys.joint = self, seen  # a tensor takes attributes; other layers may attend to it as well
        return keys, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def layer_plan(config: Any) -> LayerPlan:
    """Factories of our cache layers for a model, in place of those of transformers, which take long to make.

    Raises:
        UnsupportedFeatureError: A kind of layer that our buffers cannot hold.
    """
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        raise UnsupportedFeatureError("chunked attention is not supported; use another model")
    plan: LayerPlan = [_slot_layer(layer) for layer in DynamicCache(config=config).layers]
    return plan or [partial(SlotLayer)] * config.num_hidden_layers


def _slot_layer(layer: Any) -> Callable[[], Any]:
    window = getattr(layer, "sliding_window", None)
    if isinstance(layer, LinearAttentionLayer) and isinstance(layer, DynamicLayer):
        return partial(HybridSlotLayer, window, layer.number_of_states)
    if type(layer) is LinearAttentionLayer:
        return lambda: LinearAttentionLayer(number_of_states=layer.number_of_states)
    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
        return partial(SlotLayer, window)
    if isinstance(layer, DummyLayer):
        return partial(DummyLayer)
    raise UnsupportedFeatureError(f"this model's {type(layer).__name__} cannot be kept in a token tree; use another model")


def _set_state(layer: Any, i: int, conv: torch.Tensor | None, recurrent: torch.Tensor | None) -> None:
    """Sets one state of a layer, and the attributes that transformers derives from it."""
    layer.conv_states[i], layer.recurrent_states[i] = conv, recurrent
    layer.is_conv_states_initialized[i] = conv is not None
    layer.is_recurrent_states_initialized[i] = recurrent is not None
    layer.has_previous_state[i] = conv is not None or recurrent is not None
    if conv is not None:
        layer.conv_kernel_size[i] = conv.shape[-1]
        layer.dtype, layer.device = conv.dtype, conv.device


def _joined(parts: Tensors) -> torch.Tensor | None:
    """A copy of all parts, one row for each."""
    return None if parts[0] is None else torch.cat(parts)


def _rows_of(tensor: torch.Tensor | None, rows: int) -> Sequence[torch.Tensor | None]:
    """A copy of each row in memory of its own, so that none keeps the others alive."""
    return [None] * rows if tensor is None else [row.clone() for row in tensor.split(1)]


def _write_rows(
    buffer: torch.Tensor, new: torch.Tensor, slots: torch.Tensor | slice | None, seen: torch.Tensor
) -> torch.Tensor:
    """Writes ``(rows, heads, width, dim)`` to a buffer; returns what each row sees of it, ``(rows, heads, seen, dim)``."""
    _, heads, _, dim = new.shape
    buffer[0, :, slots] = _side_by_side(new)
    gathered = buffer.index_select(2, seen.flatten()).view(heads, *seen.shape, dim)
    return gathered.transpose(0, 1)


def _side_by_side(new: torch.Tensor) -> torch.Tensor:
    """Rows ``(rows, heads, width, dim)`` as slots ``(heads, rows * width, dim)``."""
    return new.transpose(0, 1).flatten(1, 2)


def resized(buffer: torch.Tensor, capacity: int) -> torch.Tensor:
    """A copy ``(1, heads, capacity, width)``; new slots are undefined."""
    _, heads, old, width = buffer.shape
    made, n = buffer.new_empty((1, heads, capacity, width)), min(capacity, old)
    if made.is_cuda:
        made[:, :, n:] = 0  # masked keys must be finite, too (`begin_whole`)
    if n:
        made[:, :, :n] = buffer[:, :, :n]
    return made


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """An asynchronous copy on the device; on the CPU the array itself.

    A copy from pinned memory is queued on the device; for other memory the host waits until all earlier work is done
    (CUDA C++ Programming Guide, "Implicit Synchronization").
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_index(slots: Int64, device: torch.device) -> slice | torch.Tensor:
    """Consecutive slots as a slice, others as a tensor of indices."""
    if not len(slots):
        return slice(0, 0)
    if int(slots[-1]) - int(slots[0]) == len(slots) - 1 and (np.diff(slots) == 1).all():
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return to_device(slots, device)
