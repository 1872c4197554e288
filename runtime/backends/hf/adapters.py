"""Low-rank adapters on a torch model: hooks on its linear modules, whose own weights nobody touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from runtime.adapters.adapter import Adapter, LowRank, ModuleShape
from runtime.adapters.matching import check_copy
from runtime.adapters.stacks import TokenStacks, Use, uses
from runtime.backends.hf.offload import own_weight
from runtime.backends.tree import Bool, Int64
from runtime.errors import AdapterError, UnsupportedFeatureError

Weights = tuple[torch.Tensor, torch.Tensor, float]  # A (rank, in), B (out, rank), scaling


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """One adapter in the forward that runs.

    Attributes:
        digest: Which.
        tokens: How many a module is given; the head may be given the wanted ones alone.
        rows: ``(k,)`` those of them that it applies to; None for all.
        scale: One for all, or ``(k, 1)``.
        head: The same for a head that is given the wanted tokens alone.
    """

    digest: str
    tokens: int
    rows: torch.Tensor | None
    scale: torch.Tensor | float
    head: _Change | None = None


class TorchAdapters:
    """The adapters of one model. Hooks stand only on modules that a loaded adapter changes. Owner thread only.

    Args:
        model: Whose modules.
        dtype: Of the products.
        device: Where they live.
    """

    def __init__(self, model: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._modules: dict[str, torch.nn.Module] = {path: m for path, m in model.named_modules() if _shape(m) is not None}
        self._head = model.get_output_embeddings()
        self._dtype, self._device = dtype, device
        self._loaded: dict[str, tuple[str, ...]] = {}  # digest -> the paths that it changes
        self._weights: dict[str, dict[str, Weights]] = {}  # path -> digest -> weights
        self._hooks: dict[str, Any] = {}  # path -> handle
        self._now: list[_Change] = []  # of the forward that runs
        self._seen: set[str] | None = None  # paths that were called, while somebody wants to know

    @property
    def targets(self) -> Mapping[str, ModuleShape]:
        """The model's linear modules: path -> (in, out)."""
        shapes = {path: _shape(module) for path, module in self._modules.items()}
        return {path: shape for path, shape in shapes.items() if shape is not None}

    def load(self, adapter: Adapter) -> int:
        """Puts an adapter's products beside the modules; the bytes they hold."""
        if adapter.digest not in self._loaded:
            for path, pair in adapter.modules.items():
                if pair.base is not None:
                    own = own_weight(self._modules[path])
                    check_copy(path, pair.base, own.T if isinstance(self._modules[path], Conv1D) else own)
            made = {path: self._made(pair) for path, pair in adapter.modules.items()}
            for path, weights in made.items():
                self._weights.setdefault(path, {})[adapter.digest] = weights
                if path not in self._hooks:
                    self._hooks[path] = self._modules[path].register_forward_hook(partial(self._after, path))
            self._loaded[adapter.digest] = tuple(made)
        held = (self._weights[path][adapter.digest] for path in self._loaded[adapter.digest])
        return sum(a.nbytes + b.nbytes for a, b, _ in held)

    def unload(self, digest: str) -> None:
        """Forgets an adapter; a module that no other one changes is without a hook again."""
        for path in self._loaded.pop(digest, ()):
            del self._weights[path][digest]
            if not self._weights[path]:
                del self._weights[path]
                self._hooks.pop(path).remove()

    def close(self) -> None:
        """Leaves the model as it was found."""
        for digest in list(self._loaded):
            self.unload(digest)
        self._modules.clear()
        self._head = None

    def check_called(self, digest: str, forward: Callable[[TokenStacks], object]) -> None:
        """Runs a forward of two tokens under an adapter and refuses it where one of its modules was not called.

        Raises:
            AdapterError: The model reads that module's weights in some other way; the adapter was unloaded again.
        """
        self._seen = set()
        try:
            forward(TokenStacks.uniform(((digest, 1.0),), 2))
            missed = sorted(set(self._loaded[digest]) - self._seen)
        finally:
            self._seen = None
        if missed:
            self.unload(digest)
            raise AdapterError(f"this model never calls its module {missed[0]!r}, so an adapter cannot change it")

    @contextmanager
    def under(self, stacks: TokenStacks | None, want: Int64) -> Iterator[None]:
        """The forward that runs inside is computed under these stacks; `want`: the tokens whose logits it gives."""
        if stacks is None:
            yield
            return
        self._now = [self._change(use, len(stacks.of), want) for use in uses(stacks)]
        try:
            yield
        finally:
            self._now = []

    def _change(self, use: Use, n: int, want: Int64) -> _Change:
        if use.digest not in self._loaded:
            raise AdapterError(f"the adapter {use.digest[:12]} was unloaded before its request began; load it and ask again")
        if use.rows is None:
            assert isinstance(use.scale, float)
            return _Change(use.digest, n, None, use.scale)
        at_head = np.flatnonzero(np.isin(want, use.rows))
        head = self._limited(use, at_head, np.isin(use.rows, want), len(want))
        return replace(self._limited(use, use.rows, np.ones(len(use.rows), bool), n), head=head)

    def _limited(self, use: Use, rows: Int64, which: Bool, tokens: int) -> _Change:
        """For some rows alone; `which` of the use's they are."""
        given = use.scale
        scale = given if isinstance(given, float) else torch.from_numpy(given[which, None]).to(self._device, self._dtype)
        return _Change(use.digest, tokens, torch.from_numpy(rows).to(self._device), scale)

    def _after(self, path: str, module: Any, args: tuple[torch.Tensor, ...], y: torch.Tensor) -> torch.Tensor | None:
        """What a module answers, with what the adapters of the forward that runs add to it."""
        if self._seen is not None:
            self._seen.add(path)
        if not self._now:
            return None
        x, weights = args[0], self._weights[path]
        for each in self._now:
            change, pair = each, weights.get(each.digest)
            if pair is None:
                continue
            if change.rows is None:
                y = y + _product(x, pair) * (change.scale * pair[2])
                continue
            if module is self._head and change.head is not None and x.shape[-2] == change.head.tokens:
                change = change.head
            rows = change.rows
            if rows is None or x.shape[-2] != change.tokens or ".experts." in path:
                raise UnsupportedFeatureError(
                    f"{path} is not given its tokens in order: it takes one stack of adapters at a time"
                )
            y = y.index_add(-2, rows, (_product(x.index_select(-2, rows), pair) * (change.scale * pair[2])).to(y.dtype))
        return y

    def _made(self, pair: LowRank) -> Weights:
        a, b = (torch.from_numpy(np.ascontiguousarray(part)).to(self._device, self._dtype) for part in (pair.a, pair.b))
        return a, b, pair.scaling


def _product(x: torch.Tensor, pair: Weights) -> torch.Tensor:
    linear = torch.nn.functional.linear
    return linear(linear(x.to(pair[0].dtype), pair[0]), pair[1])


def _shape(module: torch.nn.Module) -> ModuleShape | None:
    if isinstance(module, torch.nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, Conv1D):  # GPT-2's linear layer
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    return None
