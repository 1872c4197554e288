"""Low-rank adapters on an mlx-lm model: its linear modules get a subclass of their own class, their weights stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear

from runtime.adapters.adapter import Adapter, LowRank, ModuleShape
from runtime.adapters.matching import check_copy
from runtime.adapters.stacks import TokenStacks, Use, uses
from runtime.backends.tree import Bool, Int64
from runtime.errors import AdapterError, UnsupportedFeatureError

HEAD = "lm_head"  # as all of mlx-lm's models call it
_UNCALLED = {"mamba": (".dt_proj",)}  # modules whose weights transformers reads without calling them: peft's do nothing there

Weights = tuple[mx.array, mx.array, float]  # A (in, rank), B (rank, out), scaling


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
    rows: mx.array | None
    scale: mx.array | float
    head: _Change | None = None


class MlxAdapters:
    """The adapters of one model. Only modules that a loaded adapter changes have another class. Owner thread only.

    Args:
        model: Whose modules.
        config: Its configuration.
        dtype: Of the products.
    """

    def __init__(self, model: Any, config: Mapping[str, Any], dtype: mx.Dtype) -> None:
        self._modules: dict[str, Any] = {path: m for path, m in model.named_modules() if _shape(m) is not None}
        self._folded = _folded(config)
        self._uncalled = _UNCALLED.get(str(config.get("model_type")), ())
        self._dtype = dtype
        self._loaded: dict[str, tuple[str, ...]] = {}  # digest -> the paths that it changes
        self._weights: dict[str, dict[str, Weights]] = {}  # path -> digest -> weights
        self._classes: dict[str, type] = {}  # path -> the class it had
        self._now: list[_Change] = []  # of the forward that runs

    @property
    def targets(self) -> Mapping[str, ModuleShape]:
        """The model's linear modules: path -> (in, out).

        Raises:
            UnsupportedFeatureError: mlx-lm computes this model with other weights than an adapter was trained beside.
        """
        if self._folded:
            raise UnsupportedFeatureError(
                f"mlx-lm multiplies this architecture's weights by its {self._folded}, so adapters do not fit; use backend='hf'"
            )
        shapes = {path: _shape(module) for path, module in self._modules.items()}
        return {path: shape for path, shape in shapes.items() if shape is not None}

    def load(self, adapter: Adapter) -> int:
        """Puts an adapter's products beside the modules; the bytes they hold."""
        if adapter.digest not in self._loaded:
            for path, pair in adapter.modules.items():
                if path.endswith(self._uncalled):
                    raise AdapterError(f"{path} is never called where adapters of this architecture are trained (transformers)")
                if pair.base is not None:
                    weight = self._modules[path].weight
                    check_copy(path, pair.base, None if weight.dtype == mx.uint32 else np.array(weight.astype(mx.float32)))
            made = {path: self._made(pair) for path, pair in adapter.modules.items()}
            mx.eval([[a, b] for a, b, _ in made.values()])
            for path, weights in made.items():
                self._weights.setdefault(path, {})[adapter.digest] = weights
                if path not in self._classes:
                    self._extend(path)
            self._loaded[adapter.digest] = tuple(made)
        held = (self._weights[path][adapter.digest] for path in self._loaded[adapter.digest])
        return sum(int(a.nbytes + b.nbytes) for a, b, _ in held)

    def unload(self, digest: str) -> None:
        """Forgets an adapter; a module that no other one changes has its own class again."""
        for path in self._loaded.pop(digest, ()):
            del self._weights[path][digest]
            if not self._weights[path]:
                del self._weights[path]
                self._modules[path].__class__ = self._classes.pop(path)

    def close(self) -> None:
        """Leaves the model as it was found."""
        for digest in list(self._loaded):
            self.unload(digest)
        self._modules.clear()

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
        scale = given if isinstance(given, float) else mx.array(given[which, None]).astype(self._dtype)
        return _Change(use.digest, tokens, mx.array(rows.astype(np.int32)), scale)

    def _extend(self, path: str) -> None:
        """Gives one module object a subclass whose call adds what the adapters do."""
        module, adapters = self._modules[path], self
        base = self._classes[path] = type(module)

        def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            y: mx.array = base.__call__(self, x, *args, **kwargs)
            return adapters._after(path, x, y) if adapters._now else y

        module.__class__ = type(base.__name__, (base,), {"__call__": call})

    def _after(self, path: str, x: mx.array, y: mx.array) -> mx.array:
        """What a module answers, with what the adapters of the forward that runs add to it."""
        if not x.size:  # the head, where no logits are wanted
            return y
        weights = self._weights[path]
        for each in self._now:
            change, pair = each, weights.get(each.digest)
            if pair is None:
                continue
            a, b, scaling = pair
            if change.rows is None:
                y = y + (((x @ a) @ b) * (change.scale * scaling)).astype(y.dtype)
                continue
            n = x.size // x.shape[-1]  # tokens stand in one row, or each in one of its own
            if path.endswith(HEAD) and change.head is not None and n == change.head.tokens:
                change = change.head
            rows, flat = change.rows, x.reshape(n, -1)
            if rows is None or n != change.tokens or ".experts." in path:
                raise UnsupportedFeatureError(
                    f"{path} is not given its tokens in order: it takes one stack of adapters at a time"
                )
            added = (((flat[rows] @ a) @ b) * (change.scale * scaling)).astype(y.dtype)
            y = y.reshape(n, -1).at[rows].add(added).reshape(y.shape)
        return y

    def _made(self, pair: LowRank) -> Weights:
        a, b = (mx.array(np.ascontiguousarray(part.T)).astype(self._dtype) for part in (pair.a, pair.b))
        return a, b, pair.scaling


def _shape(module: Any) -> ModuleShape | None:
    if isinstance(module, QuantizedLinear):
        return int(module.weight.shape[1]) * 32 // int(module.bits), int(module.weight.shape[0])
    if isinstance(module, Linear):
        return int(module.weight.shape[1]), int(module.weight.shape[0])
    return None


def _folded(config: Mapping[str, Any]) -> str:
    """The multipliers that mlx-lm folds into falcon_h1's weights, where they are not all 1."""
    if config.get("model_type") != "falcon_h1":
        return ""
    names = sorted(name for name in config if name.endswith(("_multiplier", "_multipliers")))
    changed = [n for n in names if any(m != 1 for m in (config[n] if isinstance(config[n], list | tuple) else [config[n]]))]
    return ", ".join(changed)
