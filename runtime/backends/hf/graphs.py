"""CUDA graphs of small forwards: launching their kernels one by one takes the host many times the device's own time.

A graph is recorded for a pack and a number of tokens. It writes to the pack's buffers at their addresses and attends to all
their slots through a mask, so that it is valid until the buffers move. Models that cannot be recorded (because they wait for
the device inside a forward, for example) compute without graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from runtime.backends.hf.cache import TorchPack
from runtime.backends.hf.forward import ForwardArguments
from runtime.backends.packs.tree import ForwardStep

MOST_TOKENS = 64  # of a recorded forward; with more, the device's work dominates
MOST_SLOTS = 1 << 15  # of a pack; with more, masked slots cost more than a graph saves
AGAIN = 256  # forwards until recording is tried again after it ran out of memory
PATIENCE = 4  # forwards of one kind before it is recorded; recording takes as long as two forwards

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Graph:
    """A recorded forward, with its input and output buffers."""

    graph: torch.cuda.CUDAGraph
    numbers: torch.Tensor  # (3, n) int64: tokens, positions, slots
    seen: torch.Tensor  # (windows, n, capacity) bool
    logits: torch.Tensor  # (n, vocab)

    def fill(self, numbers: torch.Tensor, seen: torch.Tensor) -> None:
        """Copies inputs from pinned memory."""
        self.numbers.copy_(numbers, non_blocking=True)
        self.seen.copy_(seen, non_blocking=True)


@dataclass(slots=True, eq=False)
class GraphEntry:
    """Forwards of one pack that can use one graph."""

    key: tuple[int, ...]  # number of tokens, capacity, addresses of the buffers
    forwards: int = 0
    graph: Graph | None = None


class Graphs:
    """The graphs of one model without recurrent layers. Owner thread only.

    Args:
        model: The model.
        arguments: Makes the arguments of its forwards.
        windows: Windows of its attention layers, in positions; None is a full one.
        device: The device that computes.
    """

    def __init__(
        self, model: torch.nn.Module, arguments: ForwardArguments, windows: Sequence[int | None], device: torch.device
    ) -> None:
        self._model, self._arguments, self._windows, self._device = model, arguments, windows, device
        self._side = torch.cuda.Stream(device)  # only one, as libraries keep memory for each stream
        self._entries: WeakKeyDictionary[TorchPack, GraphEntry] = WeakKeyDictionary()
        self._refused = False

    def logits(self, pack: TorchPack, step: ForwardStep) -> torch.Tensor | None:
        """``(n, vocab)`` raw logits of all tokens, in memory of their own; None: the forward is computed without a graph."""
        n = len(step.tokens)
        if self._refused or n > MOST_TOKENS or n != len(step.want) or step.stacks is not None or step.path is not None:
            return None
        if not pack.sound or not step.slots[-1] < pack.capacity <= MOST_SLOTS:
            return None
        key = (n, *pack.addresses)
        entry = self._entries.get(pack)
        if entry is None or entry.key != key:
            entry = self._entries[pack] = GraphEntry(key)
        entry.forwards += 1
        if entry.forwards <= PATIENCE:
            return None
        numbers, seen = self._filling(pack, step)
        if entry.graph is None:
            try:
                entry.graph = self._recorded(pack, step, numbers, seen)
            except RuntimeError as error:
                log.info("a forward could not be recorded: %s", error)
                self._refused = not isinstance(error, torch.OutOfMemoryError)
                entry.forwards = -AGAIN
                return None
        entry.graph.fill(numbers, seen)
        entry.graph.graph.replay()
        return entry.graph.logits.clone()

    def forget(self, pack: TorchPack) -> None:
        self._entries.pop(pack, None)

    def _filling(self, pack: TorchPack, step: ForwardStep) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = np.stack([step.tokens, step.positions, step.slots])
        first = int(step.slots[0])
        visible = pack.tree.visible(first) if step.mask is None else step.mask
        seen = np.zeros((len(self._windows), len(step.tokens), pack.capacity), np.bool_)
        for part, window in zip(seen, self._windows, strict=True):
            part[:, : visible.shape[1]] = visible if window is None else pack.tree.within(visible, first, window)
        return torch.from_numpy(numbers).pin_memory(), torch.from_numpy(seen).pin_memory()

    def _recorded(self, pack: TorchPack, step: ForwardStep, numbers: torch.Tensor, seen: torch.Tensor) -> Graph:
        graph, device = torch.cuda.CUDAGraph(), self._device
        static = numbers.to(device, non_blocking=True), seen.to(device, non_blocking=True)
        made = Graph(graph, *static, torch.empty(0, device=device))

        def forward() -> torch.Tensor:
            pack.begin_whole(step, made.numbers[2])
            arguments = self._arguments.of_whole(pack, made.numbers, made.seen, self._windows)
            logits: torch.Tensor = self._model(**arguments).logits[0]
            return logits

        current = torch.cuda.current_stream(device)
        self._side.wait_stream(current)
        try:
            with torch.cuda.stream(self._side):
                forward()  # a warm-up: libraries allocate their workspaces
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    made.logits = forward()
                finally:
                    graph.capture_end()
        finally:  # work that was launched there may still write
            current.wait_stream(self._side)
        return made
