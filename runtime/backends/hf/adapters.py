"""Low-rank adapters on a torch model: hooks on its linear modules, whose own weights are not touched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from runtime.adapters.adapter import LowRank, ModuleShape
from runtime.adapters.stacks import TokenStacks
from runtime.backends.adapting import ActiveAdapter, LinearAdapters
from runtime.backends.hf.cache import to_device
from runtime.backends.hf.offload import own_weight
from runtime.backends.hf.weights import PackedLinear
from runtime.backends.packs.tree import Int64
from runtime.errors import AdapterError
from runtime.records import Float32

Matrices = tuple[torch.Tensor, torch.Tensor, float]  # A (rank, in), B (out, rank), scaling


class TorchAdapters(LinearAdapters[torch.nn.Module, torch.Tensor]):
    """The adapters of one model. Only modules that a loaded adapter changes have hooks. Owner thread only."""

    def __init__(self, model: Any, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dict(model.named_modules()))
        self._head = model.get_output_embeddings()
        self._dtype, self._device = dtype, device
        self._hooks: dict[str, Any] = {}  # path -> handle
        self._called: set[str] | None = None  # paths of called modules, during `check_called`

    def close(self) -> None:
        super().close()
        self._head = None

    def check_called(self, digest: str, forward: Callable[[TokenStacks], object]) -> None:
        """Runs a forward of two tokens with an adapter, and unloads it if one of its modules was not called.

        Raises:
            AdapterError: The model does not call that module; the adapter is unloaded.
        """
        self._called = set()
        try:
            forward(TokenStacks.uniform(((digest, 1.0),), 2))
            missed = sorted(set(self._loaded[digest]) - self._called)
        finally:
            self._called = None
        if missed:
            self.unload(digest)
            raise AdapterError(f"this model never calls its module {missed[0]!r}, so an adapter cannot change it")

    def _shape(self, module: torch.nn.Module) -> ModuleShape | None:
        if isinstance(module, torch.nn.Linear | PackedLinear):
            return module.in_features, module.out_features
        if isinstance(module, Conv1D):  # GPT-2's linear layer
            return int(module.weight.shape[0]), int(module.weight.shape[1])
        return None

    def _base_weight(self, module: torch.nn.Module) -> Float32 | None:
        if isinstance(module, PackedLinear):
            return None
        own = own_weight(module)
        return own.T if isinstance(module, Conv1D) else own

    def _extend(self, path: str) -> None:
        self._hooks[path] = self._modules[path].register_forward_hook(partial(self._after, path))

    def _restore(self, path: str) -> None:
        self._hooks.pop(path).remove()

    def _after(self, path: str, _: Any, args: tuple[torch.Tensor, ...], y: torch.Tensor) -> torch.Tensor | None:
        if self._called is not None:
            self._called.add(path)
        return self._with_adapters(path, args[0], y) if self._active else None

    def _matrices(self, pair: LowRank) -> Matrices:
        a, b = (torch.from_numpy(np.ascontiguousarray(part)).to(self._device, self._dtype) for part in (pair.a, pair.b))
        return a, b, pair.scaling

    def _scales(self, scales: Float32) -> torch.Tensor:
        return to_device(scales, self._device).to(self._dtype)

    def _indices(self, rows: Int64) -> torch.Tensor:
        return to_device(rows, self._device)

    def _tokens(self, x: torch.Tensor) -> int:
        return int(x.shape[-2])

    def _is_head(self, path: str) -> bool:
        return self._modules[path] is self._head

    def _add_product(
        self, x: torch.Tensor, y: torch.Tensor, pair: Matrices, active: ActiveAdapter[torch.Tensor]
    ) -> torch.Tensor:
        rows, scale = active.rows, active.scale * pair[2]
        if rows is None:
            return y + _product(x, pair) * scale
        return y.index_add(-2, rows, (_product(x.index_select(-2, rows), pair) * scale).to(y.dtype))


def _product(x: torch.Tensor, pair: Matrices) -> torch.Tensor:
    linear = torch.nn.functional.linear
    return linear(linear(x.to(pair[0].dtype), pair[0]), pair[1])
