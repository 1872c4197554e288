"""Outputs of an mlx-lm model's forward that can be read in place of its logits; see `runtime.backends.hf.readings`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.nn.layers.base import Module

from runtime.backends.mlx.corrections import SelectRows
from runtime.errors import UnsupportedFeatureError


class Readings:
    """The readings of one model. Owner thread only."""

    def __init__(self, model: Any, select: SelectRows) -> None:
        self._model, self._select = model, select
        self._layers = LayerReader(model, select.body)

    def read(self, name: str, want: npt.NDArray[np.int64], tokens: mx.array, cache: list[Any]) -> mx.array:
        """``(1, len(want), ...)`` of any dtype: one forward of one row of tokens ``(1, n)``, not evaluated.

        `want` are indices in the row; `cache` has an entry for each layer.
        """
        return self.TABLE[name](self, tokens, cache, mx.array(want.astype(np.int32)))[None]

    def _hidden(self, tokens: mx.array, cache: list[Any], want: mx.array) -> mx.array:
        """The last layer's state after the final norm, ``(len(want), hidden)``."""
        return self._select.hidden(tokens, cache)[0, want]

    def _each_layer(self, tokens: mx.array, cache: list[Any], want: mx.array) -> mx.array:
        """Logits of each layer (`runtime.lens`), the embedding's first: ``(len(want), layers + 1, vocab)``."""
        with self._layers.reading(want):
            logits: mx.array = self._model(tokens, cache=cache)  # (1, wanted * (layers + 1), vocab)
        return logits.reshape(want.size, self._layers.rows, -1)

    TABLE: ClassVar[dict[str, Callable[[Readings, mx.array, list[Any], mx.array], mx.array]]] = {
        "hidden": _hidden,
        "layers": _each_layer,
    }


class LayerReader:
    """As `runtime.backends.hf.readings.LayerReader`; in place of hooks, modules are wrapped in `Watched` during a forward.

    `body` is the module that owns the layers; None: the model has none, and `reading` refuses it.
    """

    def __init__(self, model: Any, body: Any) -> None:
        self._name = str(getattr(model, "model_type", None) or type(model).__name__)
        self._body = body
        layers = {id(layer) for layer in model.layers}
        self._count = len(model.layers)
        self.rows = self._count + 1
        if body is None:
            return
        lists = [held for owner in body.modules() for held in owner.values() if isinstance(held, list)]
        # (owner, a list or a module, which is a dict; index or key in it; the module there)
        self._layers = [(held, at, one) for held in lists for at, one in enumerate(held) if id(one) in layers]
        self._others = [(body, at, one) for at, one in body.items() if isinstance(one, Module)]

    @contextmanager
    def reading(self, want: mx.array) -> Iterator[None]:
        """As hf's `reading`."""
        if self._body is None:
            raise self._refusal("it is not made of a body and a head")
        states: list[mx.array] = []  # (1, n, hidden) each
        read: list[bool] = []

        def layer(own: Callable[..., Any], hidden: mx.array, *args: Any, **named: Any) -> Any:
            if not states:
                take(hidden)
            out = own(hidden, *args, **named)
            take(out[0] if isinstance(out, tuple) else out)
            return out

        def take(hidden: Any) -> None:
            if not isinstance(hidden, mx.array) or hidden.ndim != 3 or hidden.shape[0] != 1:
                raise self._refusal("what passes between its layers is not one vector for each token")
            states.append(hidden)

        def norm(own: Callable[..., Any], given: Any, *args: Any, **named: Any) -> Any:
            if read or len(states) <= self._count or not isinstance(given, mx.array):
                return own(given, *args, **named)
            if given.shape != states[-1].shape or not mx.array_equal(given, states[-1]).item():
                raise self._refusal("its final norm reads something else than what its last layer gave")
            read.append(True)
            together = mx.stack([state[0, want].astype(given.dtype) for state in states], axis=1)
            return own(together.flatten(0, 1)[None], *args, **named)

        try:
            for act, places in ((layer, self._layers), (norm, self._others)):
                for owner, place, module in places:
                    owner[place] = Watched(module, act)
            yield
        finally:
            for owner, place, module in (*self._layers, *self._others):
                owner[place] = module
        if not read:
            raise self._refusal("nothing like a final norm follows its last layer")

    def _refusal(self, why: str) -> UnsupportedFeatureError:
        words = f"the layers of mlx-lm's {self._name} cannot be read through its own norm and head"
        return UnsupportedFeatureError(f"{words}: {why}")


class Watched(Module):
    """Wraps a module: calls go to `act`, with the module as the first argument; attributes are the module's."""

    def __init__(self, module: Module, act: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # its stub has no return type
        self["module"] = module
        self._act = act

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._act(self["module"], *args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self["module"], name)
