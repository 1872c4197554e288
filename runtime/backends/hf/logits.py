"""`DeviceLogits` with torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch

from runtime.backends.hf.cache import to_device
from runtime.backends.packs.logits import DeviceLogits
from runtime.backends.packs.tree import Int64
from runtime.records import Float32


class TorchLogits(DeviceLogits):
    """Raw logits of a forward.

    Args:
        logits: ``(n, vocab)``, in the dtype of the model.
        computing: The context of calls to torch: no autograd, out-of-memory errors as ours.
    """

    def __init__(self, logits: torch.Tensor, computing: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(*logits.shape)
        self._logits, self._computing = logits, computing

    def rows(self, chosen: Int64) -> Float32:
        with self._computing():
            return _crossed(self._chosen(chosen))

    def _entries(self, rows: slice, ids: Int64) -> Float32:
        with self._computing():
            return _crossed(self._logits[rows, to_device(ids, self._logits.device)].float())

    def _chosen(self, chosen: Int64) -> torch.Tensor:
        return self._logits[to_device(chosen, self._logits.device)].float()

    def take(self, chosen: Int64) -> TorchLogits:
        with self._computing():
            return TorchLogits(self._chosen(chosen), self._computing)

    def _numbers(self, chosen: Int64, targets: Int64, width: int) -> Float32:
        with self._computing():
            device = self._logits.device
            places, own_ids = to_device(chosen, device), to_device(targets, device)
            blocks = self._blocks(len(chosen))
            return _crossed(torch.cat([_numbers(self._logits[places[b]].float(), own_ids[b], width) for b in blocks]))

    def _begin_heads(
        self, colder: Float32 | None, width: int, whole: Int64, chosen: Int64 | None = None
    ) -> Callable[[], tuple[Float32, Float32]]:
        n, vocab = len(self) if chosen is None else len(chosen), self._vocab
        with self._computing():
            by = None if colder is None else to_device(colder, self._logits.device)
            rows = ((b, self._logits[b].float() if chosen is None else self._chosen(chosen[b])) for b in self._blocks(n))
            parts = [_heads(raw, None if by is None else by[b], width).flatten() for b, raw in rows]
            both = torch.cat(parts + [self._chosen(whole[b]).flatten() for b in self._blocks(len(whole))])

        def wait() -> tuple[Float32, Float32]:
            with self._computing():
                heads, rows = np.split(_crossed(both), [n * (5 + 2 * width)])
            return heads.reshape(n, -1), rows.reshape(-1, vocab)

        return wait


def _crossed(numbers: torch.Tensor) -> Float32:
    """Copies to the host; the only place where the host waits."""
    crossed: Float32 = numbers.cpu().numpy()
    return crossed


def _numbers(raw: torch.Tensor, own_ids: torch.Tensor, width: int) -> torch.Tensor:
    """See `DeviceLogits._numbers`, for raw logits ``(n, vocab)``."""
    logprobs, _, _, _, entropy = _normalised(raw)
    own = logprobs.gather(1, own_ids[:, None])
    rank = 1 + (logprobs > own).sum(-1, keepdim=True)
    values, ids = logprobs.topk(width)
    return torch.cat([own, entropy, _bits(rank), values, _bits(ids)], 1)


def _heads(raw: torch.Tensor, colder: torch.Tensor | None, width: int) -> torch.Tensor:
    """See `DeviceLogits._begin_heads`, for raw logits ``(n, vocab)``."""
    logprobs, top, total, log_total, entropy = _normalised(raw)
    values, ids = logprobs.topk(width)
    heated = total if colder is None else ((logprobs + log_total) * colder).exp().sum(-1, keepdim=True)
    return torch.cat([top, total, log_total, entropy, heated, values, _bits(ids)], 1)


def _normalised(raw: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Log-probabilities ``(n, vocab)``; and ``(n, 1)``: tops, sums of exp(logit - top), their logarithms, entropies."""
    top = raw.amax(-1, keepdim=True)
    shifted = raw - top
    weights = shifted.exp()
    total = weights.sum(-1, keepdim=True)
    log_total = total.log()
    entropy = log_total - (weights * shifted).sum(-1, keepdim=True) / total
    return shifted.sub_(log_total), top, total, log_total, entropy


def _bits(whole: torch.Tensor) -> torch.Tensor:
    return whole.to(torch.int32).view(torch.float32)
