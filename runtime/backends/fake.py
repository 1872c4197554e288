"""A small working model in numpy with faults on demand, for tests of the engine.

One attention layer (or a recurrent one) over 256 bytes and three specials. Packs and payloads are the only place of keys
and values, so a wrong prefix, a wrong parent or a wrong depth shows in the numbers. Needs no files:
`load("anything", backend="fake")`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.adapters.adapter import Adapter, ModuleShape
from runtime.adapters.stacks import TokenStacks, Use, uses
from runtime.backends.base import ROOT, ForwardInterrupted
from runtime.backends.byte_text import VOCABULARY
from runtime.backends.packs.chains import Bucket, joined, steps_of
from runtime.backends.packs.packed import as_ids, chain_parents
from runtime.backends.packs.tree import Bool, Float32, ForwardStep, Int64, State
from runtime.backends.toy import ToyBackend, ToyPack, toy_info
from runtime.errors import AdapterError
from runtime.loading.model_folder import ModelFolder
from runtime.numerics.ranking import RankRequest
from runtime.options.load import LoadOptions

CONTEXT = 131_072  # tokens
WIDTH = 16  # of keys and values

Float64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class Behaviour:
    """The faults and their triggers. May be changed while the model is in use, on its owner thread.

    Attributes:
        raise_on: A forward that holds the token raises this.
        nan_on: A wanted row at the token is all NaN.
        delay: Seconds that every forward takes at least.
        delay_on: Seconds that a forward with the token takes longer.
        before_forward: Called with the tokens of each forward.
        recurrent: The model has a recurrent layer instead of attention (read at load).
        overlaps: A forward that was begun is computed only when its logits are fetched (read at load).
        interruptible: A forward can be abandoned after `before_forward` (read at load).
    """

    raise_on: Mapping[int, BaseException] = field(default_factory=dict)
    nan_on: frozenset[int] = frozenset()
    delay: float = 0.0
    delay_on: Mapping[int, float] = field(default_factory=dict)
    before_forward: Callable[[Int64], None] | None = None
    recurrent: bool = False
    overlaps: bool = False
    interruptible: bool = False


def load(source: ModelFolder | tuple[Any, Any] | str, options: LoadOptions) -> FakeBackend:
    """The registry's factory; `source` is ignored unless it is a pair that starts with a `Behaviour`."""
    behaviour = source[0] if isinstance(source, tuple) and isinstance(source[0], Behaviour) else Behaviour()
    return FakeBackend(options, behaviour)


class FakeBackend(ToyBackend):
    """The model and its faults. `behaviour` may be replaced at any time."""

    blank, stored = np.empty((0, 2 * WIDTH)), "kv"  # keys, then values
    readings = frozenset({"hidden", "layers"})

    def __init__(self, options: LoadOptions, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.recurrent, self.overlaps = behaviour.recurrent, behaviour.overlaps
        self.interruptible = behaviour.interruptible
        self.together = not self.recurrent
        rng = np.random.default_rng(7)
        self.embeddings: Float64 = rng.normal(size=(VOCABULARY, WIDTH))
        self._query, self._key, self._value = rng.normal(size=(3, WIDTH, WIDTH)) / np.sqrt(WIDTH)
        self._head: Float64 = rng.normal(size=(WIDTH, VOCABULARY))
        self._adapters: dict[str, Adapter] = {}  # by digest
        self.slot_bytes, self.state_bytes = 2 * WIDTH * 8, WIDTH * 8 * self.recurrent
        kinds = ("recurrent",) if self.recurrent else ("full",)
        self.info = toy_info("fake", options, CONTEXT, kv_bytes=2 * WIDTH * 8, kinds=kinds)

    def push(self, pack: ToyPack, step: ForwardStep) -> tuple[Float32, State | None]:
        self.count(len(step.tokens))
        self._misbehave(step.tokens)
        return self._compute(pack, step)

    def push_rows(self, pack: ToyPack, bucket: Bucket) -> tuple[Float32, Sequence[State | None]]:
        self.count(bucket.tokens.size)
        self._misbehave(bucket.tokens.ravel())
        return joined(self._compute(pack, step) for step in steps_of(bucket))

    def launch(
        self,
        packs: Sequence[ToyPack],
        steps: Sequence[ForwardStep],
        request: RankRequest | None = None,  # noqa: ARG002  # its logits are on the host
    ) -> Callable[[], Float32]:
        def compute() -> Float32:
            tokens = np.concatenate([step.tokens for step in steps])
            self.count(len(tokens))
            self._misbehave(tokens)
            return np.concatenate([self._compute(pack, step)[0] for pack, step in zip(packs, steps, strict=True)])

        if self.overlaps:
            return compute
        logits = compute()
        return lambda: logits

    def ready(
        self,
        packs: Sequence[ToyPack],
        steps: Sequence[ForwardStep],
        request: RankRequest | None,  # noqa: ARG002  # its logits are on the host
    ) -> Callable[[Int64], Callable[[], Float32]] | None:
        if not self.overlaps:
            return None
        ends = np.cumsum([len(step.tokens) for step in steps])[:-1]

        def launch(tokens: Int64) -> Callable[[], Float32]:
            parts = np.split(tokens, ends)
            return self.launch(packs, [replace(s, tokens=t) for s, t in zip(steps, parts, strict=True)])

        return launch

    def finite_slots(self, pack: ToyPack) -> Bool:
        return np.array(np.isfinite(pack.rows[: pack.tree.size]).all(axis=1), np.bool_)

    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:
        tokens = as_ids(ids)
        pack, counted = self.open_pack(), (self.forwards, self.pushed)
        try:
            _, logits = self.forward(pack, tokens, chain_parents(0, len(tokens), ROOT), np.array([len(tokens) - 1]), stacks)
        finally:  # backends do not count forwards without the cache
            self.forwards, self.pushed = counted
        last: Float32 = logits[0]
        return last

    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        rows = []
        for row in tokens:
            pack = self.open_pack()
            rows.append(self.extend(pack, row, "hidden", stacks and stacks.part(slice(len(row)))))
        return np.stack(rows)

    def adapter_targets(self) -> Mapping[str, ModuleShape]:
        return {"value": (WIDTH, WIDTH), "head": (WIDTH, VOCABULARY)}

    def load_adapter(self, adapter: Adapter) -> int:
        self._adapters[adapter.digest] = adapter
        return sum(pair.a.nbytes + pair.b.nbytes for pair in adapter.modules.values())

    def unload_adapter(self, digest: str) -> None:
        self._adapters.pop(digest, None)

    def _adapted(self, module: str, x: Float64, y: Float64, changes: Sequence[Use]) -> Float64:
        """A module's output `y` plus the products of the adapters."""
        for use in changes:
            if use.digest not in self._adapters:
                raise AdapterError(f"the adapter {use.digest[:12]} is not loaded")
            pair = self._adapters[use.digest].modules.get(module)
            if pair is not None:
                rows = np.arange(len(x)) if use.rows is None else use.rows
                y = y.copy()
                y[rows] += (x[rows] @ pair.a.T @ pair.b.T) * (np.reshape(use.scale, (-1, 1)) * pair.scaling)
        return y

    def _misbehave(self, tokens: Int64) -> None:
        behaviour = self.behaviour
        if behaviour.before_forward is not None:
            behaviour.before_forward(tokens)
        if self.interrupted is not None and self.interrupted():
            raise ForwardInterrupted
        seconds = behaviour.delay + sum(behaviour.delay_on.get(token, 0.0) for token in set(tokens.tolist()))
        if seconds:
            time.sleep(seconds)
        for token in tokens.tolist():
            if token in behaviour.raise_on:
                raise behaviour.raise_on[token]

    def _compute(self, pack: ToyPack, step: ForwardStep) -> tuple[Float32, State | None]:
        embedded = self.embeddings[step.tokens]
        changes = uses(step.stacks)
        values = self._adapted("value", embedded, embedded @ self._value, changes)
        kv = np.concatenate([_turned(embedded @ self._key, step.positions), values], axis=1)
        for at, row in zip(step.slots.tolist(), kv, strict=True):  # the slots of a chain need not be adjacent
            pack.write(at, row[None])
        state: Float64 | None = None
        if self.recurrent:
            hidden, state = self._recur(embedded, step.state)
        else:
            hidden = self._attend(pack, step, embedded)
        wanted = hidden if step.read == "hidden" else self._adapted("head", hidden, hidden @ self._head, changes)
        logits = wanted[step.want].astype(np.float32)
        if step.read == "layers":  # the embedding's logits, then those of the only layer
            before = self._adapted("head", embedded, embedded @ self._head, changes)[step.want]
            logits = np.stack([before.astype(np.float32), logits], axis=1)
        logits[np.isin(step.tokens[step.want], list(self.behaviour.nan_on))] = np.nan
        return logits, state

    def _attend(self, pack: ToyPack, step: ForwardStep, embedded: Float64) -> Float64:
        """``(n, WIDTH)``: one head of attention over the rows of the pack."""
        end = int(step.slots[-1]) + 1
        seen = pack.rows[:end] if step.path is None else pack.rows[np.concatenate([step.path, step.slots])]
        mask = step.mask
        if mask is None:
            mask = np.arange(len(seen)) <= len(seen) - len(embedded) + np.arange(len(embedded))[:, None]
        keys, values = seen[:, :WIDTH], seen[:, WIDTH:]
        scores = np.where(mask, _turned(embedded @ self._query, step.positions) @ keys.T, -np.inf)  # (n, seen)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        attended: Float64 = embedded + weights @ values / weights.sum(1, keepdims=True)
        return attended

    def _recur(self, embedded: Float64, state: Float64 | None) -> tuple[Float64, Float64]:
        """The hidden states ``(n, WIDTH)``, and the state after the last token."""
        hidden = np.empty_like(embedded)
        state = np.zeros(WIDTH) if state is None else state
        for i, row in enumerate(embedded):
            state = hidden[i] = np.tanh(self._key @ state + row)
        return hidden, state.copy()


def _turned(rows: Float64, positions: Int64) -> Float64:
    """Applies rotary positions to rows ``(n, WIDTH)``: number i of the first half forms a pair with number i of the second."""
    half = WIDTH // 2
    angles = positions[:, None] / 100.0 ** (np.arange(half) / half)  # (n, half)
    a, b = rows[:, :half], rows[:, half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], axis=1)
