"""A backend whose numbers are a fixed function of the token ids, as genlm-backend's MockAsyncLM: for tests of callers.

Needs no model: `load("anything", backend="mock")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.adapters.stacks import TokenStacks
from runtime.backends.byte_text import VOCABULARY
from runtime.backends.packs.packed import as_ids
from runtime.backends.packs.tree import Float32, ForwardStep, Int64, State
from runtime.backends.toy import ToyBackend, ToyPack, toy_info
from runtime.loading.model_folder import ModelFolder
from runtime.options.load import LoadOptions

CONTEXT = 32_768  # tokens
SLOT_BYTES = 8


def load(source: ModelFolder | tuple[Any, Any] | str, options: LoadOptions) -> MockBackend:  # noqa: ARG001  # a mock of any model
    """The registry's factory; `source` is ignored."""
    return MockBackend(options)


class MockBackend(ToyBackend):
    """Logits are ``RandomState(sum((i + 1) * id_i)).rand(vocab)``; without keys and values, a slot's row is its token."""

    blank, stored = np.empty(0, np.int64), "tokens"
    slot_bytes = SLOT_BYTES
    readings = frozenset({"hidden", "layers"})

    def __init__(self, options: LoadOptions) -> None:
        self.info = toy_info("mock", options, CONTEXT, kv_bytes=SLOT_BYTES, kinds=("full",))

    def push(self, pack: ToyPack, step: ForwardStep) -> tuple[Float32, State | None]:
        self.count(len(step.tokens))
        pack.write(int(step.slots[0]), step.tokens)
        rows = [_logits(pack.rows[pack.tree.path(int(step.slots[j]))]) for j in step.want]
        if step.read == "layers":  # one layer: first the logits of the token without its past, then those of the text
            return np.stack([[_logits(step.tokens[j : j + 1]), row] for j, row in zip(step.want, rows, strict=True)]), None
        width = VOCABULARY if step.read is None else self.info.hidden_size
        return np.stack(rows)[:, :width] if rows else np.empty((0, width), np.float32), None

    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:  # noqa: ARG002  # no adapters
        return _logits(as_ids(ids))

    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        return np.stack([self.extend(self.open_pack(), row, "hidden", stacks) for row in tokens])  # there are no adapters


def _logits(ids: Int64) -> Float32:
    seed = int((np.arange(1, len(ids) + 1) * ids).sum()) % (1 << 32)
    return np.random.RandomState(seed).rand(VOCABULARY).astype(np.float32)
