"""One token at the end of a chain, through a recording of the model's forward: its operations without the Python around them.

A library's Python costs a small model more than its arithmetic does, and a large one a tenth of it. torch records which
operations one forward calls (`torch.jit.trace`); the recording calls the same ones, in the same order.

What makes that safe for any architecture:
- the forward is first run on torch's meta device, which has no numbers: a model that decides anything by them (which expert
  to call, which frequencies to use) fails there, and is not recorded;
- every length at which something might be different is compared before it is relied on: the first tokens, then whenever a
  path is twice as long as any before. Both ways compute those tokens; the recording has to give the same logits, keys and
  values to the bit.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.func import functional_call
from transformers.cache_utils import Cache, CacheLayerMixin

from runtime.backends.hf.cache import SlotLayer, TorchPack
from runtime.backends.packed import Step

log = logging.getLogger(__name__)

AFTER = 16  # tokens: who wants fewer does not pay for a recording, which takes as long as some ten of them
COMPARED = 4  # tokens that are computed both ways before the recording is relied on
_HELD = 3  # slots of the buffers that a recording is made with


class Replay:
    """A model's forward of one token, recorded once there were enough of them to be worth it. Owner thread only.

    Args:
        model: Of transformers, with a cache of attention layers alone; nobody else changes its modules.
        takes: The names of its forward's arguments.
    """

    def __init__(self, model: Any, takes: frozenset[str]) -> None:
        self._model = _OneToken(model, last_alone="logits_to_keep" in takes)
        self._recorded: Callable[..., torch.Tensor] | None = None
        self._left = AFTER if {"past_key_values", "position_ids"} <= takes else -1  # forwards until it is made; -1: never
        self._agreed = 0  # comparisons
        self._known = 0  # tokens: a shorter past was compared
        self._ceiling: int | None = None  # tokens: with so long a past the numbers were others

    @property
    def in_force(self) -> bool:
        """Whether a recording is relied on."""
        return self._recorded is not None and self._agreed >= COMPARED

    def logits(self, pack: TorchPack, step: Step, forward: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What `forward` answers, ``(1, vocab)``, from the recording where that is known to answer the same.

        Args:
            pack: One chain.
            step: One token at its end, for whose place every layer is prepared.
            forward: The same by the model itself.
        """
        if self._recorded is None:
            return self._waiting(pack, forward)
        if not pack.attention[-1].is_initialized or (self._ceiling is not None and step.past >= self._ceiling):
            return forward()
        inputs = torch.from_numpy(step.tokens)[None], torch.from_numpy(step.positions)[None]
        views = [view for layer in pack.attention for view in layer.to_end()]
        if self._agreed >= COMPARED and step.past < self._known:
            return self._recorded(*inputs, *views)
        return self._compared(step.past, self._recorded(*inputs, *views), views, forward)

    def _waiting(self, pack: TorchPack, forward: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A forward by the model; after enough of them it is recorded."""
        logits = forward()
        self._left -= self._left > 0
        if self._left == 0:
            self._left = -1
            try:
                self._recorded = _record(self._model, list(pack.attention))
            except Exception as error:  # noqa: BLE001  # whatever the library cannot record stays as it is
                log.info("forwards of one token are not recorded: %s", error)
        return logits

    def _compared(
        self, past: int, got: torch.Tensor, views: list[torch.Tensor], forward: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """The model's own answer, whose keys and values stay; whether the recording may stand for it is known then."""
        written = [view[:, :, -1].clone() for view in views]
        logits = forward()
        if torch.equal(got, logits) and all(torch.equal(a, b[:, :, -1]) for a, b in zip(written, views, strict=True)):
            self._agreed += 1
            self._known = max(self._known, 2 * past)
        elif self._agreed < COMPARED:
            self._recorded = None
        else:
            self._ceiling = past
        return logits


class _OneToken(torch.nn.Module):
    """The model as a function of tensors alone: a token's id and position, and where each layer's keys and values are."""

    def __init__(self, model: Any, *, last_alone: bool) -> None:
        super().__init__()
        self.model = model
        self._more = {"logits_to_keep": 1} if last_alone else {}

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, *buffers: torch.Tensor) -> torch.Tensor:
        cache = Cache(layers=[_EndLayer(*pair) for pair in zip(buffers[::2], buffers[1::2], strict=True)])
        out = self.model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, **self._more)
        logits: torch.Tensor = out.logits[0]
        return logits


class _EndLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not followed by mypy
    """A layer whose last place is the new token's: ``(1, kv_heads, seen, head_dim)``.

    It says that nothing came before: all that is there is seen, for which no mask is needed, and no length is recorded.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The buffers are there."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  # what other cache classes want to know
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[:, :, -1:] = key_states
        self.values[:, :, -1:] = value_states
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def _record(model: _OneToken, layers: list[SlotLayer]) -> Callable[..., torch.Tensor]:
    """The recording; what it raises says why there is none."""
    like = [buffer for layer in layers for buffer in (layer.keys, layer.values)]
    inputs = torch.zeros(2, 1, 1, dtype=torch.int64, device=like[0].device)
    arguments = *inputs.unbind(), *(torch.zeros_like(buffer[:, :, :_HELD]) for buffer in like)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that lengths are fixed, and that torch.compile would be newer; it wants a compiler
        functional_call(model, dict(_without_numbers(model)), tuple(each.to("meta") for each in arguments))
        recorded: Callable[..., torch.Tensor] = torch.jit.trace(model, arguments, check_trace=False)
    return recorded


def _without_numbers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, tensor.to("meta")
