"""Low-rank adapters on a torch model: hooks on its linear modules, whose own weights nobody touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from runtime.adapters.adapter import Adapter, LowRank, ModuleShape
from runtime.adapters.matching import check_copy
from runtime.adapters.stacks import TokenStacks, Use, uses
from runtime.backends.tree import Int64
from runtime.errors import AdapterError, UnsupportedFeatureError

Weights = tuple[torch.Tensor, torch.Tensor, float]  # A (rank, in), B (out, rank), scaling


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """One adapter in the forward that runs; rows and scales by how many tokens a module is given."""

    digest: str
    rows: dict[int, torch.Tensor] | None  # None: all
    scales: dict[int, torch.Tensor | float]
    scale: float


class TorchAdapters:
    """The adapters of one model. Hooks stand only on modules that a loaded adapter changes. Owner thread only.

    Args:
        model: Whose modules.
        dtype: Of the products.
        device: Where they live.
    """

    def __init__(self, model: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._modules: dict[str, torch.nn.Module] = {path: m for path, m in model.named_modules() if _shape(m) is not None}
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
                    own = self._modules[path].weight.detach().float().cpu().numpy()
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
            return _Change(use.digest, None, {}, use.scale)
        at_head = np.flatnonzero(np.isin(want, use.rows))  # the head is given the wanted tokens alone
        given = {len(want): (at_head, np.isin(use.rows, want)), n: (use.rows, np.ones(len(use.rows), bool))}
        rows = {count: torch.from_numpy(places).to(self._device) for count, (places, _) in given.items()}
        if isinstance(use.scale, float):
            return _Change(use.digest, rows, dict.fromkeys(given, use.scale), use.scale)
        column = torch.from_numpy(use.scale[:, None]).to(self._device, self._dtype)
        scales = {count: column[torch.from_numpy(which).to(self._device)] for count, (_, which) in given.items()}
        return _Change(use.digest, rows, dict(scales), 0.0)

    def _after(self, path: str, module: Any, args: tuple[torch.Tensor, ...], y: torch.Tensor) -> torch.Tensor | None:  # noqa: ARG002  # a hook's signature
        """What a module answers, with what the adapters of the forward that runs add to it."""
        if self._seen is not None:
            self._seen.add(path)
        if not self._now:
            return None
        x, weights = args[0], self._weights[path]
        for change in self._now:
            pair = weights.get(change.digest)
            if pair is None:
                continue
            if change.rows is None:
                y = y + _product(x, pair) * (change.scale * pair[2])
                continue
            n = x.shape[-2]
            if n not in change.rows or ".experts." in path:
                raise UnsupportedFeatureError(
                    f"{path} is given {n} tokens out of order: it takes one stack of adapters at a time"
                )
            rows = change.rows[n]
            y = y.index_add(-2, rows, (_product(x.index_select(-2, rows), pair) * (change.scales[n] * pair[2])).to(y.dtype))
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
