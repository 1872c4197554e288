"""A backend whose numbers are a fixed function of the token ids, as genlm-backend's MockAsyncLM: for tests of callers.

Needs no model: `load("anything", backend="mock")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.adapters.stacks import TokenStacks
from runtime.backends import facts
from runtime.backends.byte_text import CHATML, VOCABULARY
from runtime.backends.byte_text import byte_tokenizer as mock_tokenizer
from runtime.backends.packs.packed import PackedBackend, WorkingPack, as_ids, chain_parents
from runtime.backends.packs.tree import Float32, Int64, State, Step
from runtime.backends.stored import Stored
from runtime.errors import SnapshotFormatError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.loading.model_folder import ModelFolder
from runtime.options.load import LoadOptions

TEMPLATE = CHATML
CONTEXT = 32_768  # tokens
FIRST_CAPACITY = 64  # slots
SLOT_BYTES = 8


def load(source: ModelFolder | tuple[Any, Any] | str, options: LoadOptions) -> MockBackend:  # noqa: ARG001  # a mock of any model
    """The registry's factory; `source` is ignored."""
    return MockBackend(options)


@dataclass(frozen=True, slots=True, eq=False)
class MockPayload:
    """The tokens themselves: all that the numbers depend on."""

    tokens: Int64  # (n,)


class MockPack(WorkingPack):
    """The token of each slot, with room to grow."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = np.empty(0, np.int64)

    def write(self, start: int, tokens: Int64) -> None:
        """Puts tokens at `start`, doubling the buffer when it is too small."""
        end = start + len(tokens)
        if end > len(self.tokens):
            self.resize(max(end, 2 * len(self.tokens), FIRST_CAPACITY))
        self.tokens[start:end] = tokens

    def resize(self, capacity: int) -> None:
        """Room for exactly `capacity` slots, where the buffer is: nothing is there twice."""
        self.tokens.resize(capacity, refcheck=False)


class MockBackend(PackedBackend[MockPack]):
    """Logits are ``RandomState(sum((i + 1) * id_i)).rand(vocab)``; no keys, no values."""

    slot_bytes = SLOT_BYTES
    readings = frozenset({"hidden", "layers"})

    def __init__(self, options: LoadOptions) -> None:
        config = {"max_position_embeddings": CONTEXT}
        self.info = toy_info("mock", options, config, kv_bytes=SLOT_BYTES, kinds=("full",))

    def open_pack(self) -> MockPack:
        return MockPack()

    def load(self, pack: MockPack, payload: MockPayload, parent: int, skip: int = 0) -> Int64:
        base, n = pack.tree.size, len(payload.tokens) - skip
        pack.tree.append(chain_parents(base, n, parent))
        pack.write(base, payload.tokens[skip:])
        return np.arange(base, base + n)

    def push(self, pack: MockPack, step: Step) -> tuple[Float32, State | None]:
        self.count(len(step.tokens))
        pack.write(int(step.slots[0]), step.tokens)
        rows = [_logits(pack.tokens[pack.tree.path(int(step.slots[j]))]) for j in step.want]
        if step.read == "layers":  # one layer, which adds the text to the token's own answer
            return np.stack([[_logits(step.tokens[j : j + 1]), row] for j, row in zip(step.want, rows, strict=True)]), None
        width = VOCABULARY if step.read is None else self.info.hidden_size
        return np.stack(rows)[:, :width] if rows else np.empty((0, width), np.float32), None

    def take(self, pack: MockPack, slots: Int64) -> MockPayload:
        pack.tree.check_chain(slots)
        return MockPayload(pack.tokens[slots].copy())

    def split(self, payload: MockPayload, n: int) -> tuple[MockPayload, MockPayload]:
        return MockPayload(payload.tokens[:n].copy()), MockPayload(payload.tokens[n:].copy())

    def payload_bytes(self, payload: MockPayload) -> int:
        return int(payload.tokens.nbytes)

    def pack_bytes(self, pack: MockPack) -> int:
        return int(pack.tokens.nbytes)

    def capacity(self, pack: MockPack) -> int:
        return len(pack.tokens)

    def resize(self, pack: MockPack, capacity: int) -> None:
        pack.resize(max(capacity, pack.tree.size))

    def gather(self, pack: MockPack, slots: Int64, start: int) -> None:
        pack.tokens[start : start + len(slots)] = pack.tokens[slots]

    def close(self, pack: MockPack) -> None:
        pack.tokens = np.empty(0, np.int64)

    def export(self, payload: MockPayload, start: int = 0, stop: int | None = None) -> Stored:
        return {"tokens": payload.tokens[start:stop].copy()}

    def restore(self, tensors: Stored) -> MockPayload:
        if "tokens" not in tensors:
            raise SnapshotFormatError(f"stored KV is not what the mock backend writes: {sorted(tensors)}")
        return MockPayload(np.asarray(tensors["tokens"], np.int64))

    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:  # noqa: ARG002  # no adapters
        return _logits(as_ids(ids))

    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        return np.stack([self.extend(self.open_pack(), row, "hidden", stacks) for row in tokens])  # there are no adapters

    def unload(self) -> None:
        """Holds nothing."""


def toy_info(backend: str, options: LoadOptions, config: dict[str, Any], kv_bytes: int, kinds: tuple[str, ...]) -> ModelInfo:
    """The honest facts of a model that does not exist.

    Raises:
        UnsupportedFeatureError: Quantised KV: the toys keep theirs exactly.
    """
    warnings = tuple(
        facts.passed_over(options, name, f"{name}={given!r}: the {backend} backend has no weights")
        for name, given, plain in (("offload", options.offload, "none"), ("weights", options.weights, "auto"))
        if given != plain
    )
    if facts.kv_format(options, "float32").bits is not None:
        raise UnsupportedFeatureError(
            f"kv_dtype={options.kv_dtype!r}: the {backend} backend keeps its KV exactly; leave it on auto"
        )
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


def _logits(ids: Int64) -> Float32:
    seed = int((np.arange(1, len(ids) + 1) * ids).sum()) % (1 << 32)
    return np.random.RandomState(seed).rand(VOCABULARY).astype(np.float32)


__all__ = ["TEMPLATE", "MockBackend", "load", "mock_tokenizer", "toy_info"]
