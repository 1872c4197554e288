"""The base of the toy backends: packs that are one numpy array with a row for each slot, and facts of a toy model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from runtime.backends import facts
from runtime.backends.byte_text import CHATML, VOCABULARY
from runtime.backends.packs.packed import PackedBackend, WorkingPack, state_size
from runtime.backends.packs.tree import Int64
from runtime.backends.stored import Stored
from runtime.errors import SnapshotFormatError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.options.load import LoadOptions

FIRST_CAPACITY = 64  # slots

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class ToyPayload:
    """The rows of n consecutive tokens."""

    rows: Array  # (n, ...)
    state: Array | None  # recurrent state after the last token

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes) + state_size([self.state])

    def split(self, n: int) -> tuple[ToyPayload, ToyPayload]:
        """The first `n` tokens and the rest, copied."""
        return ToyPayload(self.rows[:n].copy(), None), ToyPayload(self.rows[n:].copy(), self.state)


class ToyPack(WorkingPack):
    """A row for each slot, with room to grow."""

    def __init__(self, rows: Array) -> None:
        super().__init__()
        self.rows = rows

    @property
    def capacity(self) -> int:
        return len(self.rows)

    def write(self, start: int, rows: Array) -> None:
        """Writes rows at `start`; doubles the buffer when it is too small."""
        end = start + len(rows)
        if end > len(self.rows):
            self.resize(max(end, 2 * len(self.rows), FIRST_CAPACITY))
        self.rows[start:end] = rows

    def resize(self, capacity: int) -> None:
        """Makes room for exactly `capacity` slots in place, without a second copy."""
        self.rows.resize((capacity, *self.rows.shape[1:]), refcheck=False)


class ToyBackend(PackedBackend[ToyPack]):
    """A backend whose packs are numpy arrays.

    Attributes:
        blank: The rows of an empty pack, ``(0, ...)``.
        stored: Name of the exported rows.
    """

    blank: ClassVar[Array]
    stored: ClassVar[str]

    def open_pack(self) -> ToyPack:
        return ToyPack(self.blank.copy())

    def put(self, pack: ToyPack, payload: ToyPayload, start: int, skip: int) -> None:
        pack.write(start, payload.rows[skip:])

    def take(self, pack: ToyPack, slots: Int64) -> ToyPayload:
        slots = np.asarray(slots, np.int64)
        pack.tree.check_chain(slots)
        return ToyPayload(pack.rows[slots], self._checkpoint(pack, slots))

    def pack_bytes(self, pack: ToyPack) -> int:
        return int(pack.rows.nbytes) + state_size(pack.states.values())

    def resize(self, pack: ToyPack, capacity: int) -> None:
        pack.resize(max(capacity, pack.tree.size))

    def gather(self, pack: ToyPack, slots: Int64, start: int) -> None:
        pack.rows[start : start + len(slots)] = pack.rows[slots]

    def close(self, pack: ToyPack) -> None:
        pack.rows = self.blank.copy()
        pack.states.clear()

    def export(self, payload: ToyPayload, start: int = 0, stop: int | None = None) -> Stored:
        stop = payload.n if stop is None else stop
        tensors: Stored = {self.stored: payload.rows[start:stop].copy()}
        if payload.state is not None and stop == payload.n:
            tensors["state"] = payload.state.copy()
        return tensors

    def restore(self, tensors: Stored) -> ToyPayload:
        rows = np.asarray(tensors.get(self.stored, 0), self.blank.dtype)
        if rows.ndim != self.blank.ndim or rows.shape[1:] != self.blank.shape[1:]:
            raise SnapshotFormatError(f"stored KV is not what the {self.info.backend} backend writes: {sorted(tensors)}")
        state = tensors.get("state")
        return ToyPayload(rows, None if state is None else np.asarray(state, np.float64))

    def unload(self) -> None:
        """Does nothing: all memory is Python's."""


def toy_info(backend: str, options: LoadOptions, context: int, kv_bytes: int, kinds: tuple[str, ...]) -> ModelInfo:
    """The facts of a toy model.

    Raises:
        UnsupportedFeatureError: Quantised KV, offload or other weights were asked for.
    """
    warnings = tuple(
        facts.ignored_option(options, name, f"{name}={given!r}: the {backend} backend has no weights")
        for name, given, plain in (("offload", options.offload, "none"), ("weights", options.weights, "auto"))
        if given != plain
    )
    if facts.kv_format(options, "float32").bits is not None:
        raise UnsupportedFeatureError(
            f"kv_dtype={options.kv_dtype!r}: the {backend} backend keeps its KV exactly; leave it on auto"
        )
    config = {"max_position_embeddings": context}
    kv_print = facts.kv_fingerprint(backend, backend, "float32", "float32", {"kinds": kinds})
    return ModelInfo(
        name=backend,
        backend=backend,
        device="cpu",
        dtype="float32",
        architecture=backend,
        layers=1,
        heads=1,
        kv_heads=1,
        hidden_size=16,
        vocab_size=VOCABULARY,
        parameters=0,
        quantisation=None,
        attention_kinds=kinds,
        context_length=facts.context_length(config, options),
        whole_context=facts.whole_context(config),
        has_template=True,
        kv_bytes_per_token=kv_bytes,
        kv_fingerprint=kv_print,
        model_fingerprint=facts.model_fingerprint(kv_print, facts.digest(CHATML)),
        options=facts.options_in_force(
            options, device="cpu", dtype="float32", kv_dtype="float32", attention="none", weights="auto", offload="none"
        ),
        warnings=warnings,
    )
