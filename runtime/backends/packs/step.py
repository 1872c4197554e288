"""One forward of a library's model, as packs see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import Stack, TokenStacks
from runtime.backends.packs.buckets import Bucket
from runtime.backends.packs.sized import State
from runtime.backends.packs.tree import Bool, Int64

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ragged:
    """New tokens as chains, one after the other, of which each sees its own path."""

    lengths: Int64  # (chains,) new tokens of each
    paths: Sequence[Int64]  # the slots before each; another chain's new ones may be among them


@dataclass(frozen=True, slots=True)
class Step:
    """One forward: new tokens, where their keys and values go, what they see."""

    tokens: Int64  # (n,)
    slots: Int64  # (n,) ascending
    positions: Int64  # (n,) depths in the tree
    want: Int64  # indices into tokens
    path: Int64 | None = None  # a chain's slots before these tokens; None: all slots in order (in place, or a tree)
    mask: Bool | None = None  # a tree's (n, slots in use): who sees whom; None: causal over the path
    ragged: Ragged | None = None  # in place of a mask
    state: State | None = None  # recurrent state to start from; None: from nothing
    read: str | None = None  # what is wanted in place of logits, (len(want), ...); one of the backend's `readings`
    stacks: TokenStacks | None = None  # of each token; None: the base alone

    @property
    def past(self) -> int:
        """How many tokens precede the new ones in the buffers that the model sees."""
        return int(self.slots[0]) if self.path is None else len(self.path)


def joint_stacks(steps: Sequence[Step]) -> TokenStacks | None:
    """The adapters of the tokens of several forwards that are computed as one."""
    if all(step.stacks is None for step in steps):
        return None
    tables: list[Stack] = []
    of: list[Int64] = []
    for step in steps:
        stacks = TokenStacks.uniform((), len(step.tokens)) if step.stacks is None else step.stacks
        of.append(stacks.of + len(tables))
        tables += stacks.table
    return TokenStacks(np.concatenate(of), tuple(tables))


def joint_want(steps: Sequence[Step]) -> Int64:
    """The wanted tokens of several forwards, as indices into all their tokens."""
    wants, start = [], 0
    for step in steps:
        wants.append(step.want + start)
        start += len(step.tokens)
    return np.concatenate(wants)


def steps_of(bucket: Bucket) -> Iterator[Step]:
    """The rows of a bucket as forwards of their own."""
    width = bucket.tokens.shape[1]
    for row, (tokens, slots, positions) in enumerate(zip(bucket.tokens, bucket.slots, bucket.positions, strict=True)):
        path = bucket.path[row] if bucket.missing is None else bucket.path[row, bucket.missing[row] :]
        want = bucket.want[bucket.want // width == row] % width
        yield Step(tokens, slots, positions, want, path=path, state=bucket.states[row] if bucket.states else None)


def joined(answers: Iterable[tuple[Float32, State | None]]) -> tuple[Float32, Sequence[State | None]]:
    """The answers to `steps_of` a bucket as the answer to it."""
    logits, states = zip(*answers, strict=True)
    return np.concatenate(logits), states
