"""Turns of a session as texts, and as vectors: cached ones, or in batches from the running model."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from app.workbench.refusals import stored
from app.workbench.setup.beginning import Beginning
from app.workbench.setup.session_adapters import AdaptedModel
from app.workbench.tree.outline import hidden_nodes
from app.workbench.tree.reading import slices
from app.workbench.tree.session import OpenSession
from app.workbench.tree.tree import TreeTurn
from storage import NodeRow, SessionStore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from runtime import LanguageModel, Pooling, PromptProgress

IN_WORK: Final = "open"  # a stored answer that has not ended


class TurnText(Struct, frozen=True):
    """A version of a turn, named by its last node."""

    node_id: int
    role: str
    text: str
    damaged: bool  # part of it cannot be trusted


async def turn_texts(store: SessionStore, session: OpenSession) -> AsyncIterator[TurnText]:
    """All visible turns except running ones, oldest first; nodes read for this are not kept.

    Raises:
        Refusal: The store cannot read them.
    """
    hidden = hidden_nodes(session.tree, session.pruned)
    for ids in slices([i for i in session.tree.turn_ends() if i not in hidden]):
        turns = [session.tree.turn(i) for i in ids if i in session.tree.nodes]
        wanted = {segment.node.id for turn in turns for segment in turn.segments}
        rows = {i: session.tree.nodes[i] for i in wanted if session.tree.is_held(i)}
        unread = sorted(wanted - rows.keys())
        for row in await stored(store.load_nodes(session.id, unread)) if unread else ():
            rows[row.id] = row
        for turn in turns:
            nodes = [segment.node.id for segment in turn.segments]
            if all(i in rows and i not in session.states and rows[i].status != IN_WORK for i in nodes):
                yield _turn_text(turn, rows)


def _turn_text(turn: TreeTurn, rows: Mapping[int, NodeRow]) -> TurnText:
    nodes = [rows[segment.node.id] for segment in turn.segments]
    if turn.role == "system":
        text = Beginning.of(nodes[0]).content
    else:
        stops = [*(node.at_byte for node in nodes[1:]), None]
        parts = [node.text.encode()[:stop] for node, stop in zip(nodes, stops, strict=True)]
        text = b"".join(parts).decode(errors="replace")
    return TurnText(nodes[-1].id, turn.role, text, any(node.damaged for node in nodes))


LONGEST: Final = 4096  # most tokens that are read of a turn; less if the context is smaller
BATCH_BYTES: Final = 4096  # bytes of text between two reports of progress
BATCH_TURNS: Final = 64
AROUND: Final = 8  # tokens that a tokenizer may add around a text
FIRST_TOKENS: Final = ("[CLS]", "<cls>")  # mark models that are trained to summarise a text in its first token

OnDone = Callable[[int, int], None]  # turns with a vector, all turns


class _Wanted(Struct, frozen=True):
    """A text whose vector is not cached, cut to the tokens that are read."""

    key: Key
    text: str
    tokens: int  # see `Vector`


def limit_of(model: LanguageModel) -> int:
    """The most tokens that are read of a turn."""
    return min(LONGEST, model.info.context_length)


def poolings_of(model: LanguageModel) -> tuple[Pooling, ...]:
    """The poolings of hidden states that are meaningful for this model."""
    usual: tuple[Pooling, ...] = ("mean", "last", "max")
    pieces = model.str_vocab
    return (*usual, "cls") if any(token in pieces for token in FIRST_TOKENS) else usual


class VectorMaker:
    """Makes the vectors of one comparison. They stay cached even if it fails.

    Attributes:
        done: Turns with a vector.
        computed: Tokens that were computed, with padding.
    """

    def __init__(self, adapted: AdaptedModel, pooling: Pooling, vectors: VectorCache, on_done: OnDone) -> None:
        self._adapted, self._pooling, self._vectors, self._on_done = adapted, pooling, vectors, on_done
        self.done = self.computed = 0

    async def vectors(self, turns: Sequence[TurnText]) -> Mapping[int, Vector]:
        """The vector of each turn, by its node.

        Raises:
            RuntimeFault: The engine ended, or the model cannot make vectors.
        """
        keys = await asyncio.to_thread(self._keys, turns)
        texts = {keys[one.node_id]: one.text for one in turns}
        found = {key: vector for key in texts if (vector := self._vectors.get(key)) is not None}
        self._report(keys, found)
        missing = [await self._cut(key, text) for key, text in texts.items() if key not in found]
        for batch in _batches(missing):
            found.update(await self._embed(batch))
            self._report(keys, found)
        return {node_id: found[key] for node_id, key in keys.items()}

    def _keys(self, turns: Sequence[TurnText]) -> Mapping[int, Key]:
        return {one.node_id: Key.of(self._adapted.fingerprint, self._pooling, one.text) for one in turns}

    def _report(self, keys: Mapping[int, Key], found: Mapping[Key, Vector]) -> None:
        self.done = sum(key in found for key in keys.values())
        self._on_done(self.done, len(keys))

    async def _cut(self, key: Key, text: str) -> _Wanted:
        """Cuts a text to the tokens that are read; does not count those of a text with few bytes, which cannot be too long."""
        model, limit = self._adapted.model, limit_of(self._adapted.model)
        if len(text.encode(errors="surrogatepass")) + AROUND <= limit:
            return _Wanted(key, text, 0)
        ids = await model.tokenize_async(text)
        tokens, kept = len(ids), limit
        while len(ids) > limit:
            pieces = b"".join(map(model.decode_token, ids[:kept]))
            beginning = text[: max(len(pieces.decode(errors="ignore")), 1)]
            ids, kept = await model.tokenize_async(beginning), kept - AROUND  # a word that was cut may have more tokens
            if len(ids) <= limit or kept <= 0:
                return _Wanted(key, beginning, tokens)
        return _Wanted(key, text, 0)

    async def _embed(self, batch: Sequence[_Wanted]) -> dict[Key, Vector]:
        computed = 0

        def count(progress: PromptProgress) -> None:
            nonlocal computed
            computed = progress.computed or 0

        rows = await self._adapted.model.embed(
            [one.text for one in batch], self._pooling, adapters=self._adapted.adapters, on_progress=count
        )
        self.computed += computed
        found = {one.key: Vector(row.copy(), one.tokens) for one, row in zip(batch, rows, strict=True)}
        for key, vector in found.items():
            self._vectors.put(key, vector)
        return found


def _batches(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    """Batches of texts of similar length, the shortest first: a batch is padded to its longest text."""
    batch: list[_Wanted] = []
    size = 0
    for one in sorted(wanted, key=lambda one: len(one.text)):
        length = len(one.text.encode(errors="surrogatepass"))
        if batch and (size + length > BATCH_BYTES or len(batch) == BATCH_TURNS):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += length
    if batch:
        yield batch


BUDGET: Final = 128 << 20  # bytes: 50,000 vectors of a small model, 8,000 of a large one


class Key(NamedTuple):
    """Everything that a vector depends on."""

    fingerprint: str  # fingerprint of the model under its adapters
    pooling: Pooling
    text: bytes  # SHA-256 digest

    @classmethod
    def of(cls, fingerprint: str, pooling: Pooling, text: str) -> Key:
        return cls(fingerprint, pooling, hashlib.sha256(text.encode(errors="surrogatepass")).digest())


class Vector(Struct, frozen=True):
    """The vector of a text."""

    values: npt.NDArray[np.float32]  # ``(hidden,) float32``, of length 1
    tokens: int = 0  # tokens of a text of which only the beginning was read; 0 if all was read


class VectorCache:
    """Vectors within a budget, evicted least recently used first. The window's loop only."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._held: OrderedDict[Key, Vector] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> Vector | None:
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: Key, vector: Vector) -> None:
        """Adds a vector; a known key is left as it is."""
        if key in self._held:
            return
        self._held[key] = vector
        self._bytes += vector.values.nbytes
        while self._bytes > self._budget:
            self._bytes -= self._held.popitem(last=False)[1].values.nbytes
