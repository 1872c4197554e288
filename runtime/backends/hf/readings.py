"""Outputs of a torch model's forward that can be read in place of its logits, by name.

A new reading is a method and a line in `Readings.TABLE`, here and in `runtime.backends.mlx.readings`; no module between these
and `runtime.scheduler` knows their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from runtime.errors import UnsupportedFeatureError


class Readings:
    """The readings of one model. Owner thread only."""

    def __init__(self, model: torch.nn.Module, layers: int) -> None:
        self._model: Any = model
        self._layers = LayerReader(model, layers)

    def read(self, name: str, arguments: Mapping[str, Any], want: torch.Tensor) -> torch.Tensor:
        """``(len(want), ...)`` of any dtype: one forward of one row, with arguments of `ForwardArguments.of`.

        `want` are indices in the row.
        """
        return self.TABLE[name](self, arguments, want)

    def states(self, **arguments: Any) -> torch.Tensor:
        """Hidden states after the final norm, ``(rows, length, hidden)``."""
        found: torch.Tensor = self._model.base_model(**arguments).last_hidden_state
        return found

    def _hidden(self, arguments: Mapping[str, Any], want: torch.Tensor) -> torch.Tensor:
        """The last layer's state after the final norm, ``(len(want), hidden)``."""
        return self.states(**arguments)[0, want]

    def _each_layer(self, arguments: Mapping[str, Any], want: torch.Tensor) -> torch.Tensor:
        """Logits of each layer (`runtime.lens`), the embedding's first: ``(len(want), layers + 1, vocab)``."""
        with self._layers.reading(want):
            logits: torch.Tensor = self._model(**arguments).logits  # gpt2 cuts them into rows
        return logits.reshape(len(want), self._layers.rows, -1)

    TABLE: ClassVar[dict[str, Callable[[Readings, Mapping[str, Any], torch.Tensor], torch.Tensor]]] = {
        "hidden": _hidden,
        "layers": _each_layer,
    }


class LayerReader:
    """Passes the states of all layers through the model's own norm and head, and whatever its class does after them.

    Hooks on the layers collect their states, which replace the last one as the input of the final norm. No part of an
    architecture is known by name: its layers are the only list of as many modules as it has layers; its final norm is the
    module that their owner calls next with the output of the last layer. A model of another form is refused.
    """

    def __init__(self, model: torch.nn.Module, layers: int) -> None:
        self._name = type(model).__name__
        owned = [
            (owner, child)
            for owner in model.modules()
            for child in owner.children()
            if isinstance(child, torch.nn.ModuleList) and len(child) == layers
        ]
        self._owned = owned[0] if len(owned) == 1 else None
        self._count = layers
        self.rows = layers + 1

    @contextmanager
    def reading(self, want: torch.Tensor) -> Iterator[None]:
        """The final norm of the one-row forward that runs inside gets ``(1, len(want) * (layers + 1), hidden)``.

        Args:
            want: Indices in the row; the states of each are consecutive, the embedding's first.

        Raises:
            UnsupportedFeatureError: The architecture is not made of layers, a norm and a head.
        """
        if self._owned is None:
            raise self._refusal(f"it has no single list of {self._count} layers")
        owner, layers = self._owned
        states: list[torch.Tensor] = []  # (len(want), hidden) each
        read: list[torch.nn.Module] = []  # the norm

        def take(hidden: Any) -> None:
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            if not isinstance(hidden, torch.Tensor) or hidden.ndim != 3 or len(hidden) != 1:
                raise self._refusal("what passes between its layers is not one vector for each token")
            states.append(hidden[0, want.to(hidden.device)])

        def before_first(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            take(args[0] if args else named.get("hidden_states"))

        def after_layer(_module: Any, _args: Any, out: Any) -> None:
            take(out)

        def before_norm(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if read or len(states) <= self._count or not args or not isinstance(args[0], torch.Tensor):
                return None
            given = args[0]
            if given.ndim != 3 or not torch.equal(given[0, want.to(given.device)], states[-1].to(given.device)):
                raise self._refusal("its final norm reads something else than what its last layer gave")
            read.append(module)
            together = torch.stack([state.to(given.device, given.dtype) for state in states], dim=1)
            return (together.flatten(0, 1)[None], *args[1:])

        others = [child for child in owner.children() if child is not layers]
        hooks = [layers[0].register_forward_pre_hook(before_first, with_kwargs=True)]
        hooks += [layer.register_forward_hook(after_layer) for layer in layers]
        hooks += [child.register_forward_pre_hook(before_norm) for child in others]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if not read:
            raise self._refusal("nothing like a final norm follows its last layer")

    def _refusal(self, why: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(f"the layers of a {self._name} cannot be read through its own norm and head: {why}")
