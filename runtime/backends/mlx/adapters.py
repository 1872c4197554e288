"""Low-rank adapters on an mlx-lm model: linear modules get a subclass of their class; their weights do not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear

from runtime.adapters.adapter import LowRank, ModuleShape
from runtime.backends.adapting import ActiveAdapter, LinearAdapters
from runtime.backends.packs.tree import Int64
from runtime.errors import AdapterError, UnsupportedFeatureError
from runtime.records import Float32

LM_HEAD = "lm_head"  # name of the head in all of mlx-lm's models
_UNCALLED = {"mamba": (".dt_proj",)}  # transformers reads their weights without a call: peft's adapters have no effect

Matrices = tuple[mx.array, mx.array, float]  # A (in, rank), B (rank, out), scaling


class MlxAdapters(LinearAdapters[Any, mx.array]):
    """The adapters of one model. Only modules that a loaded adapter changes get another class. Owner thread only."""

    def __init__(self, model: Any, config: Mapping[str, Any], dtype: mx.Dtype) -> None:
        super().__init__(dict(model.named_modules()))
        self._folded = _folded(config)
        self._uncalled = _UNCALLED.get(str(config.get("model_type")), ())
        self._dtype = dtype
        self._classes: dict[str, type] = {}  # path -> the original class

    @property
    def targets(self) -> Mapping[str, ModuleShape]:
        """The model's linear modules: path -> (in, out).

        Raises:
            UnsupportedFeatureError: mlx-lm scales this model's weights, so that adapters do not fit them.
        """
        if self._folded:
            raise UnsupportedFeatureError(
                f"mlx-lm multiplies this architecture's weights by its {self._folded}, so adapters do not fit; use backend='hf'"
            )
        return super().targets

    def _shape(self, module: Any) -> ModuleShape | None:
        if isinstance(module, QuantizedLinear):
            return int(module.weight.shape[1]) * 32 // int(module.bits), int(module.weight.shape[0])
        if isinstance(module, Linear):
            return int(module.weight.shape[1]), int(module.weight.shape[0])
        return None

    def _check(self, path: str) -> None:
        if path.endswith(self._uncalled):
            raise AdapterError(f"{path} is never called where adapters of this architecture are trained (transformers)")

    def _base_weight(self, module: Any) -> Float32 | None:
        return None if module.weight.dtype == mx.uint32 else np.array(module.weight.astype(mx.float32))

    def _evaluate(self, made: Mapping[str, Matrices]) -> None:
        mx.eval([[a, b] for a, b, _ in made.values()])

    def _extend(self, path: str) -> None:
        """Gives one module object a subclass whose call adds the adapters' products."""
        module, adapters = self._modules[path], self
        base = self._classes[path] = type(module)

        def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            y: mx.array = base.__call__(self, x, *args, **kwargs)
            if not adapters._active or not x.size:  # empty: the head's input where no logits are wanted
                return y
            return adapters._with_adapters(path, x, y)

        module.__class__ = type(base.__name__, (base,), {"__call__": call})

    def _restore(self, path: str) -> None:
        self._modules[path].__class__ = self._classes.pop(path)

    def _matrices(self, pair: LowRank) -> Matrices:
        a, b = (mx.array(np.ascontiguousarray(part.T)).astype(self._dtype) for part in (pair.a, pair.b))
        return a, b, pair.scaling

    def _scales(self, scales: Float32) -> mx.array:
        return mx.array(scales).astype(self._dtype)

    def _indices(self, rows: Int64) -> mx.array:
        return mx.array(rows.astype(np.int32))

    def _tokens(self, x: mx.array) -> int:
        return x.size // x.shape[-1]  # the input is one row, or rows of width 1

    def _is_head(self, path: str) -> bool:
        return path.endswith(LM_HEAD)

    def _add_product(self, x: mx.array, y: mx.array, pair: Matrices, active: ActiveAdapter[mx.array]) -> mx.array:
        a, b, scaling = pair
        scale, rows = active.scale * scaling, active.rows
        if rows is None:
            return y + (((x @ a) @ b) * scale).astype(y.dtype)
        n = self._tokens(x)
        added = (((x.reshape(n, -1)[rows] @ a) @ b) * scale).astype(y.dtype)
        return y.reshape(n, -1).at[rows].add(added).reshape(y.shape)


def _folded(config: Mapping[str, Any]) -> str:
    """Names of the multipliers other than 1 that mlx-lm folds into falcon_h1's weights."""
    if config.get("model_type") != "falcon_h1":
        return ""
    names = sorted(name for name in config if name.endswith(("_multiplier", "_multipliers")))
    changed = [n for n in names if any(m != 1 for m in (config[n] if isinstance(config[n], list | tuple) else [config[n]]))]
    return ", ".join(changed)
