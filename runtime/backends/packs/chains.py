"""Chains of new tokens, as rows of one forward where the library can: for recurrent models, and where trees fail."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from runtime.backends.packs.buckets import Bucket, Row, Shared, aligned, alike, levels, pieces, worth_sharing
from runtime.backends.packs.sized import UNBOUNDED, P, SizedBackend, State, shapes_of, state_size
from runtime.backends.packs.step import Float32, Step, joined, steps_of
from runtime.backends.packs.tree import ROOT, Bool, Int64, SlotTree, count_chains, segments
from runtime.errors import InvalidRequestError


class Call:
    """One call's way through the model, forward by forward.

    Args:
        step: All of its tokens.
        shared: Whether rows with a past look into the pack's own buffers.
    """

    def __init__(self, step: Step, *, shared: bool) -> None:
        self.step, self.shared = step, shared
        self.answers: Float32 | None = None  # (len(step.want), ...), once a forward has shown what an answer is
        self.answer = np.full(len(step.tokens), -1)  # the row of `answers` of each token; -1: not wanted
        self.answer[step.want] = np.arange(len(step.want))
        self.written = np.zeros(len(step.tokens), np.bool_)  # tokens whose keys stand in the pack, or zeros in their place
        self._visible: Bool | None = None

    def write(self, rows: Int64, got: Float32) -> None:
        """Enters answers ``(len(rows), ...)``."""
        if self.answers is None:
            self.answers = np.empty((len(self.step.want), *got.shape[1:]), np.float32)
        self.answers[rows] = got

    def looks_in(self, rows: Sequence[Row]) -> bool:
        """Whether these rows, alike in that, look into the pack's own buffers."""
        return self.shared and not rows[0].fresh

    def view(self, tree: SlotTree, indices: Int64) -> Shared:
        """What the tokens `indices` ``(rows, width)`` see there; whoever asks for it fills what is blank."""
        base, last = int(self.step.slots[0]), int(indices.max())
        if self._visible is None:
            self._visible = tree.visible(base)
        self.written[indices] = True
        blank = np.flatnonzero(~self.written[:last])
        self.written[blank] = True
        slots = base + last + 1
        return Shared(self._visible[indices, :slots], tree.depths[:slots], base + blank)


class ChainedBackend(SizedBackend[P]):
    """How a call goes through a model chain by chain. Owner thread only.

    Attributes:
        tree: Whether a branching call may go through the model in one forward.
        stepwise: Whether a kept recurrent state takes only one token at a time (a library's limit, found at load).
        buckets: Whether chains may share a forward as its rows; else each has one of its own.
        ragged: Whether rows of one forward may have pasts of different length.
        shares: Whether they may look into the pack's own buffers, each through a mask, instead of copies of their paths.
        vain, reach: See `runtime.backends.packs.buckets.worth_sharing`.
        together: Whether one forward may run over several packs.
        forwards: Calls of the model, since load; those that failed too.
        speed: Tokens per second to begin with: a guess, but where the forward at load was slow.
        layer_calls: Calls of its layers, where the library lets them be counted: a slow forward is seen to go on.
        pushed: Tokens that it was called with, padding included.
    """

    tree: bool = True
    recurrent: bool = False
    stepwise: bool = False
    buckets: bool = True
    ragged: bool = True
    shares: bool = False
    together: bool = False
    reach: int = UNBOUNDED
    vain: float = 2.0  # a copy is read and written beside the one reading that both ways have
    forwards: int = 0
    speed: float = 400.0
    layer_calls: int = 0
    pushed: int = 0

    @abstractmethod
    def push(self, pack: P, step: Step) -> tuple[Float32, State | None]:
        """One forward: the wanted raw logits ``(len(want), vocab) float32`` and the recurrent state after it.

        Where the step has a `read`: that in place of logits, ``(len(want), ...) float32``.
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
        above, longest = parents[(parents >= 0) & (parents < base)], len(parents) - chains + 1
        if self.shares:
            undo = pack.tree.append(parents)
            shared = self._looks_in(pack, segments(parents, base), parents)
            pack.tree.rollback(undo)
            if shared:
                fresh = int((parents == ROOT).sum())
                return fresh * self.row_bytes(longest) + (chains - fresh) * self.row_bytes(0)
        past = int(pack.tree.depths[above].max()) + 1 if len(above) else 0
        return chains * self.row_bytes(past + longest)

    def resumable(self, pack: P, slot: int) -> bool:
        """Whether a token may be appended under `slot`."""
        return not self.recurrent or slot == ROOT or slot in pack.states

    def count(self, tokens: int) -> None:
        """The model is about to be called with so many tokens."""
        self.forwards += 1
        self.pushed += tokens

    def _looks_in(self, pack: P, chains: Sequence[Int64], parents: Int64) -> bool:
        """Whether the rows of a call, whose slots stand in the tree by now, look into the pack's own buffers."""
        if not self.shares or not self.looks_back(pack):
            return False
        heads = np.array([(parents[chain[0]], len(chain)) for chain in chains])  # the slot that each follows, and its length
        heads = heads[heads[:, 0] != ROOT]
        pasts = pack.tree.depths[heads[:, 0]] + 1
        return worth_sharing(pasts, heads[:, 1], pack.tree.size, vain=self.vain, reach=self.reach)

    def _chains(self, pack: P, step: Step, parents: Int64, base: int) -> Float32:
        """Chains side by side where they may be; states live on at each one's end, and where children may still come."""
        chains = segments(parents, base)
        call = Call(step, shared=self._looks_in(pack, chains, parents))
        extended: set[int] = set()
        together = self.buckets and step.stacks is None and step.read is None  # under adapters each chain goes alone
        for level in levels(chains, parents, base):
            rows = self._rows(pack, level, [int(parents[chain[0]]) for chain in level])
            for group in self._groups(rows, shared=call.shared) if together else ([row] for row in rows):
                for start, stop, reaching in pieces(group, stepwise=self.stepwise):
                    for part in self._uniform(step, group[0].chain, start, stop):
                        for few in self._bounded(call, reaching):
                            self._push_rows(pack, call, few, part)
            if self.recurrent:
                pack.states.update((int(step.slots[row.chain[-1]]), row.state) for row in rows)
                self.state_bytes = self.state_bytes or state_size([rows[0].state])
                self.state_shapes = self.state_shapes or shapes_of(rows[0].state)
                extended.update(row.parent for row in rows)
        for slot in extended - pack.kept:
            pack.states.pop(slot, None)
        assert call.answers is not None  # there is at least one token
        return call.answers

    def _rows(self, pack: P, chains: Sequence[Int64], parents: Sequence[int]) -> list[Row]:
        """The chains of a level, each with what it goes on from."""
        for parent in parents:
            if not self.resumable(pack, parent):
                raise InvalidRequestError(f"slot {parent} holds no recurrent state: continue from a checkpoint before it")
        depths, back = pack.tree.depths, self.looks_back(pack)
        return [
            Row(chain, parent, int(depths[parent]) + 1 if back and parent != ROOT else 0, parent, pack.states.get(parent))
            for chain, parent in zip(chains, parents, strict=True)
        ]

    def _groups(self, rows: Sequence[Row], *, shared: bool) -> Iterator[list[Row]]:
        """Rows that may go side by side: where nothing is copied, however long their pasts are."""
        apart = [row for row in rows if row.fresh or not shared]
        yield from alike(apart, ragged=self.ragged)
        if len(apart) < len(rows):
            yield [row for row in rows if not row.fresh]

    def _uniform(self, step: Step, chain: Int64, start: int, stop: int) -> Iterator[slice]:
        """A part of a chain by the adapters of its tokens: some modules of recurrent layers see one token at a time."""
        runs = [(0, stop - start)] if step.stacks is None else step.stacks.part(chain[start:stop]).runs()
        for number, (first, last) in enumerate(runs):
            width = 1 if self.stepwise and number else last - first
            yield from (slice(start + at, start + at + width) for at in range(first, last, width))

    def _bounded(self, call: Call, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Rows by rows, so that the copies of a forward stay within what was lent."""
        copied = 0 if call.looks_in(rows) else max(row.past + len(row.chain) for row in rows)
        at_once = max(self.lent // max(self.row_bytes(copied), 1), 1)
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]

    def _push_rows(self, pack: P, call: Call, rows: Sequence[Row], part: slice) -> None:
        """Pushes a part of some chains, writes its wanted rows, and moves each row on."""
        indices = np.stack([row.chain[part] for row in rows])  # (rows, width)
        wanted = call.answer[indices].ravel()
        want = np.flatnonzero(wanted >= 0)
        got, states = self._computed(pack, call, rows, indices, want)
        call.written[indices] = True
        call.write(wanted[want], got)
        for row, state, index in zip(rows, states, indices[:, -1], strict=True):
            row.state, row.tip = state, int(call.step.slots[index])

    def _computed(
        self, pack: P, call: Call, rows: Sequence[Row], indices: Int64, want: Int64
    ) -> tuple[Float32, Sequence[State | None]]:
        """One forward of rows ``(rows, width)``: their wanted answers, and each one's state after it."""
        step = call.step
        tokens, slots, positions = step.tokens[indices], step.slots[indices], step.positions[indices]
        if len(rows) == 1 and (alone := self._alone(pack, call, rows[0], indices[0])) is not None:
            got, state = self.push(pack, replace(alone, want=want))
            return got, [state]
        kept = [row.state for row in rows] if rows[0].state is not None else None
        if call.looks_in(rows):
            shared = call.view(pack.tree, indices)
            nothing = np.empty((len(rows), 0), np.int64)
            got, states = self.push_rows(pack, Bucket(tokens, slots, positions, want, nothing, None, kept, shared))
            if np.isfinite(got).all():
                return got, states
            # what one row holds that is no number reached the others with the weight 0: once more, over copies
        paths = pack.tree.paths([row.tip for row in rows]) if self.looks_back(pack) else [slots[0, :0]] * len(rows)
        return self.push_rows(pack, Bucket(tokens, slots, positions, want, *aligned(paths), kept))

    def _alone(self, pack: P, call: Call, row: Row, indices: Int64) -> Step | None:
        """A part of one chain as a forward of its own, nothing wanted yet; None where it has to be a row all the same."""
        step = call.step
        slots, positions = step.slots[indices], step.positions[indices]
        stacks = None if step.stacks is None else step.stacks.part(indices)
        none = indices[:0]
        alone = Step(step.tokens[indices], slots, positions, none, state=row.state, read=step.read, stacks=stacks)
        follows = _consecutive(slots)
        if not self.looks_back(pack) or (follows and positions[0] == slots[0]):  # in place: whatever stands before is its path
            return alone
        if call.looks_in([row]):
            if stacks is None:
                return None
            if follows and call.written[: indices[0]].all():
                return replace(alone, mask=call.view(pack.tree, indices[None]).mask[0])
        return replace(alone, path=pack.tree.path(row.tip))


def _consecutive(slots: Int64) -> bool:
    return int(slots[-1]) - int(slots[0]) == len(slots) - 1
