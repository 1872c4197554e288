"""The adapters of one model, independent of the library: which are loaded, and what each changes in the running forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from runtime.adapters.adapter import Adapter, LowRank, ModuleShape
from runtime.adapters.matching import check_copy
from runtime.adapters.stacks import TokenStacks, Use, uses
from runtime.backends.packs.tree import Bool, Int64
from runtime.backends.stored import LibraryArray
from runtime.errors import AdapterError, UnsupportedFeatureError
from runtime.records import Float32

M = TypeVar("M")  # a linear module of the library
A = TypeVar("A", bound=LibraryArray)  # an array of the library
Matrices = tuple[A, A, float]  # A, B, scaling


@dataclass(frozen=True, slots=True, eq=False)
class ActiveAdapter(Generic[A]):
    """The effect of one adapter on the running forward.

    Attributes:
        digest: The adapter's digest.
        tokens: Number of tokens in a module's input.
        rows: ``(k,)`` indices of the tokens that it applies to; None: all.
        scale: One factor for all tokens, or ``(k, 1)``.
        head: The same for a head whose input is only the wanted tokens.
    """

    digest: str
    tokens: int
    rows: A | None
    scale: A | float
    head: ActiveAdapter[A] | None = None


class LinearAdapters(ABC, Generic[M, A]):
    """The adapters of one model. Only modules that a loaded adapter changes are touched. Owner thread only.

    Args:
        modules: The model's modules by path; those that are not linear are left out.
    """

    def __init__(self, modules: Mapping[str, M]) -> None:
        shapes = {path: self._shape(module) for path, module in modules.items()}
        self._shapes = {path: shape for path, shape in shapes.items() if shape is not None}
        self._modules = {path: modules[path] for path in self._shapes}
        self._loaded: dict[str, tuple[str, ...]] = {}  # digest -> the paths that it changes
        self._weights: dict[str, dict[str, Matrices[A]]] = {}  # path -> digest -> A, B, scaling
        self._active: list[ActiveAdapter[A]] = []  # of the running forward

    @property
    def targets(self) -> Mapping[str, ModuleShape]:
        """The model's linear modules: path -> (in, out)."""
        return self._shapes

    def load(self, adapter: Adapter) -> int:
        """Loads an adapter's matrices without changing the modules' own; returns their bytes.

        Raises:
            AdapterError: Its copy of a base weight differs from the model's, or the model never calls a module that it changes.
        """
        if adapter.digest not in self._loaded:
            for path, pair in adapter.modules.items():
                self._check(path)
                if pair.base is not None:
                    check_copy(path, pair.base, self._base_weight(self._modules[path]))
            made = {path: self._matrices(pair) for path, pair in adapter.modules.items()}
            self._evaluate(made)
            for path, weights in made.items():
                if path not in self._weights:
                    self._weights[path] = {}
                    self._extend(path)
                self._weights[path][adapter.digest] = weights
            self._loaded[adapter.digest] = tuple(made)
        held = (self._weights[path][adapter.digest] for path in self._loaded[adapter.digest])
        return sum(int(a.nbytes) + int(b.nbytes) for a, b, _ in held)

    def unload(self, digest: str) -> None:
        """Unloads an adapter; restores the modules that no other adapter changes."""
        for path in self._loaded.pop(digest, ()):
            del self._weights[path][digest]
            if not self._weights[path]:
                del self._weights[path]
                self._restore(path)

    def close(self) -> None:
        """Unloads all adapters and restores the model."""
        for digest in list(self._loaded):
            self.unload(digest)
        self._modules.clear()

    @contextmanager
    def under(self, stacks: TokenStacks | None, want: Int64) -> Iterator[None]:
        """Applies these stacks to the forward that runs inside; `want`: the indices of the tokens whose logits it computes."""
        if stacks is None:
            yield
            return
        self._active = [self._activated(use, len(stacks.of), want) for use in uses(stacks)]
        try:
            yield
        finally:
            self._active = []

    def _activated(self, use: Use, n: int, want: Int64) -> ActiveAdapter[A]:
        if use.digest not in self._loaded:
            raise AdapterError(f"the adapter {use.digest[:12]} was unloaded before its request began; load it and ask again")
        if use.rows is None:
            assert isinstance(use.scale, float)
            return ActiveAdapter(use.digest, n, None, use.scale)
        at_head = np.flatnonzero(np.isin(want, use.rows))
        head = self._limited(use, at_head, np.isin(use.rows, want), len(want))
        return replace(self._limited(use, use.rows, np.ones(len(use.rows), bool), n), head=head)

    def _limited(self, use: Use, rows: Int64, which: Bool, tokens: int) -> ActiveAdapter[A]:
        """The adapter for tokens `rows` of `tokens` in all; `which` selects their scales in ``use.scale``."""
        given = use.scale
        scale = given if isinstance(given, float) else self._scales(given[which, None])
        return ActiveAdapter(use.digest, tokens, self._indices(rows), scale)

    def _with_adapters(self, path: str, x: A, y: A) -> A:
        """A module's output for `x`: its own output `y` plus the products of the running forward's adapters."""
        weights = self._weights[path]
        for each in self._active:
            active, pair = each, weights.get(each.digest)
            if pair is None:
                continue
            if active.rows is not None:
                given = self._tokens(x)
                if active.head is not None and given == active.head.tokens and self._is_head(path):
                    active = active.head
                if given != active.tokens or ".experts." in path:
                    raise UnsupportedFeatureError(
                        f"{path} is not given its tokens in order: it takes one stack of adapters at a time"
                    )
            y = self._add_product(x, y, pair, active)
        return y

    # ---- implemented for each library ------------------------------------------------------------------------------

    @abstractmethod
    def _shape(self, module: M) -> ModuleShape | None:
        """(in, out) of a linear module; None for other modules."""

    @abstractmethod
    def _base_weight(self, module: M) -> Float32 | None:
        """A module's own matrix ``(out, in)``; None where it is quantised."""

    @abstractmethod
    def _extend(self, path: str) -> None:
        """Passes the module's output through `_with_adapters` from now on."""

    @abstractmethod
    def _restore(self, path: str) -> None:
        """The inverse of `_extend`."""

    @abstractmethod
    def _matrices(self, pair: LowRank) -> Matrices[A]:
        """An adapter's matrices for one module, in the form that `_add_product` takes."""

    @abstractmethod
    def _scales(self, scales: Float32) -> A:
        """Scales ``(k, 1)`` as an array of the library, in the dtype of the products."""

    @abstractmethod
    def _indices(self, rows: Int64) -> A:
        """Token indices ``(k,)`` as an array of the library."""

    @abstractmethod
    def _tokens(self, x: A) -> int:
        """Number of tokens in a module's input."""

    @abstractmethod
    def _is_head(self, path: str) -> bool:
        """Whether the module's input may be only the wanted tokens."""

    @abstractmethod
    def _add_product(self, x: A, y: A, pair: Matrices[A], active: ActiveAdapter[A]) -> A:
        """`y` plus an adapter's product of `x`, for all rows or for the adapter's."""

    def _check(self, path: str) -> None:
        """Raises `AdapterError` for a module that no adapter can change."""

    def _evaluate(self, made: Mapping[str, Matrices[A]]) -> None:
        """Evaluates lazy arrays."""
