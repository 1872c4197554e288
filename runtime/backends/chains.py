"""Chains of new tokens, as rows of one forward where the library can: for recurrent models, and where trees fail."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from runtime.backends.buckets import Bucket, Row, aligned, alike, levels, pieces
from runtime.backends.sized import P, SizedBackend, State, shapes_of, state_size
from runtime.backends.step import Float32, Step, joined, steps_of
from runtime.backends.tree import ROOT, Int64, count_chains, segments
from runtime.errors import InvalidRequestError


class ChainedBackend(SizedBackend[P]):
    """How a call goes through a model chain by chain. Owner thread only.

    Attributes:
        tree: Whether a branching call may go through the model in one forward.
        stepwise: Whether a kept recurrent state takes only one token at a time (a library's limit, found at load).
        buckets: Whether chains may share a forward as its rows; else each has one of its own.
        ragged: Whether rows of one forward may have pasts of different length.
        forwards: Calls of the model, since load; those that failed too.
        pushed: Tokens that it was called with, padding included.
    """

    tree: bool = True
    recurrent: bool = False
    stepwise: bool = False
    buckets: bool = True
    ragged: bool = True
    forwards: int = 0
    pushed: int = 0

    @abstractmethod
    def push(self, pack: P, step: Step) -> tuple[Float32, State | None]:
        """One forward: the wanted raw logits ``(len(want), vocab) float32`` and the recurrent state after it.

        Where the step says `hidden`: the wanted rows of the last layer after its norm, ``(len(want), hidden) float32``.
        """

    def push_rows(self, pack: P, bucket: Bucket) -> tuple[Float32, Sequence[State | None]]:
        """One forward of chains side by side: the wanted raw logits as in `push`, and each row's state after it.

        Row by row where the library knows no better.
        """
        return joined(self.push(pack, step) for step in steps_of(bucket))

    @property
    def chained(self) -> bool:
        """Whether a branching call goes through the model as chains."""
        return self.recurrent or not self.tree

    def copy_cost(self, pack: P, parents: Int64) -> int:
        """See `runtime.backends.base.Backend.copy_cost`: as if all chains were as long as the longest can be."""
        if not (self.chained and self.buckets):
            return 0
        base, chains = pack.tree.size, count_chains(parents - pack.tree.size)
        if chains < 2:
            return 0
        above = parents[(parents >= 0) & (parents < base)]
        past = int(pack.tree.depths[above].max()) + 1 if len(above) else 0
        return chains * self.row_bytes(past + len(parents) - chains + 1)

    def resumable(self, pack: P, slot: int) -> bool:
        """Whether a token may be appended under `slot`."""
        return not self.recurrent or slot == ROOT or slot in pack.states

    def count(self, tokens: int) -> None:
        """The model is about to be called with so many tokens."""
        self.forwards += 1
        self.pushed += tokens

    def _chains(self, pack: P, step: Step, parents: Int64, base: int) -> Float32:
        """Chains side by side where they may be; states live on at each one's end, and where children may still come."""
        width = self.info.hidden_size if step.hidden else self.info.vocab_size
        logits = np.empty((len(step.want), width), np.float32)
        answer = np.full(len(step.tokens), -1)  # the row of `logits` of each token; -1: not wanted
        answer[step.want] = np.arange(len(step.want))
        extended: set[int] = set()
        shared = self.buckets and step.stacks is None and not step.hidden  # under adapters each chain goes alone
        for level in levels(segments(parents, base), parents, base):
            rows = self._rows(pack, level, [int(parents[chain[0]]) for chain in level])
            for group in alike(rows, ragged=self.ragged) if shared else ([row] for row in rows):
                for start, stop, reaching in pieces(group, stepwise=self.stepwise):
                    for part in self._uniform(step, group[0].chain, start, stop):
                        for few in self._bounded(reaching):
                            self._push_rows(pack, step, few, part, answer, logits)
            if self.recurrent:
                pack.states.update((int(step.slots[row.chain[-1]]), row.state) for row in rows)
                self.state_bytes = self.state_bytes or state_size([rows[0].state])
                self.state_shapes = self.state_shapes or shapes_of(rows[0].state)
                extended.update(row.parent for row in rows)
        for slot in extended - pack.kept:
            pack.states.pop(slot, None)
        return logits

    def _rows(self, pack: P, chains: Sequence[Int64], parents: Sequence[int]) -> list[Row]:
        """The chains of a level, each with what it goes on from."""
        for parent in parents:
            if not self.resumable(pack, parent):
                raise InvalidRequestError(f"slot {parent} holds no recurrent state: continue from a checkpoint before it")
        paths = pack.tree.paths(parents) if self.looks_back(pack) else [np.empty(0, np.int64)] * len(parents)
        return [
            Row(chain, parent, len(path), path, pack.states.get(parent))
            for chain, parent, path in zip(chains, parents, paths, strict=True)
        ]

    def _uniform(self, step: Step, chain: Int64, start: int, stop: int) -> Iterator[slice]:
        """A part of a chain by the adapters of its tokens: some modules of recurrent layers see one token at a time."""
        runs = [(0, stop - start)] if step.stacks is None else step.stacks.part(chain[start:stop]).runs()
        for number, (first, last) in enumerate(runs):
            width = 1 if self.stepwise and number else last - first
            yield from (slice(start + at, start + at + width) for at in range(first, last, width))

    def _bounded(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Rows by rows, so that the copies of a forward stay within what was lent."""
        longest = max(len(row.path) + len(row.chain) for row in rows)
        at_once = max(self.lent // max(self.row_bytes(longest), 1), 1)
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _push_rows(self, pack: P, step: Step, rows: Sequence[Row], part: slice, answer: Int64, logits: Float32) -> None:
        """Pushes a part of some chains, writes its wanted rows, and moves each row on."""
        indices = np.stack([row.chain[part] for row in rows])  # (rows, width)
        wanted = answer[indices].ravel()
        want = np.flatnonzero(wanted >= 0)
        tokens, slots, positions = step.tokens[indices], step.slots[indices], step.positions[indices]
        states: Sequence[State | None]
        if len(rows) == 1:
            in_place = not self.looks_back(pack) or (len(rows[0].path) == slots[0, 0] and _consecutive(slots[0]))
            path = None if in_place else rows[0].path
            stacks = None if step.stacks is None else step.stacks.part(indices[0])
            alone = Step(
                tokens[0], slots[0], positions[0], want, path=path, state=rows[0].state, hidden=step.hidden, stacks=stacks
            )
            got, state = self.push(pack, alone)
            states = [state]
        else:
            kept = [row.state for row in rows] if rows[0].state is not None else None
            got, states = self.push_rows(pack, Bucket(tokens, slots, positions, want, *aligned(rows), kept))
        logits[wanted[want]] = got
        for row, state, added in zip(rows, states, slots, strict=True):
            row.state = state
            if self.looks_back(pack):
                row.path = np.concatenate([row.path, added])


def _consecutive(slots: Int64) -> bool:
    return int(slots[-1]) - int(slots[0]) == len(slots) - 1
