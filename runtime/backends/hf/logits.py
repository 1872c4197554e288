"""Logits that stay on the device: of a scored or drawn token a few numbers cross to the host, not a row of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from runtime.backends.hf.cache import to_device
from runtime.numerics.ranking import Ranked, likeliest
from runtime.numerics.scoring import empty_scores
from runtime.records import Float32, Int32, Scores

BLOCK_ENTRIES = 1 << 24  # 64 MiB of float32: what is worked on at once takes four times that
SPARE = 6  # entries that are fetched beyond the k asked for, so that equals at the border are seen

Bool = npt.NDArray[np.bool_]


class TorchLogits:
    """Raw logits of a forward on its device; see `runtime.backends.base.DeviceLogits`.

    Args:
        logits: ``(n, vocab)``, in the dtype of the model.
        computing: The context in which torch is called: no autograd, out of memory as our error.
    """

    def __init__(self, logits: torch.Tensor, computing: Callable[[], AbstractContextManager[None]]) -> None:
        self._logits, self._computing = logits, computing

    def __len__(self) -> int:
        return len(self._logits)

    def rows(self, chosen: npt.NDArray[np.int64]) -> Float32:
        """``(len(chosen), vocab)``."""
        with self._computing():
            found: Float32 = self._logits[to_device(chosen, self._logits.device)].float().cpu().numpy()
            return found

    def normalised(self, chosen: npt.NDArray[np.int64]) -> tuple[Float32, Float32, Float32, npt.NDArray[np.float64], Bool]:
        """Some rows, and what `runtime.numerics.scoring.normalisers` says of them."""
        with self._computing():
            rows = self._logits[to_device(chosen, self._logits.device)].float()
            _, *numbers = _normalised(rows)
            crossed = torch.cat([rows, *numbers], 1).cpu().numpy()  # the one time that the host waits
        top, total, log_total, entropy = crossed[:, -4:].T
        return crossed[:, :-4], top, log_total, _mass(total, log_total), np.isfinite(entropy)

    def score(self, chosen: npt.NDArray[np.int64], targets: Int32, k: int) -> tuple[Scores, Bool]:
        """As `runtime.numerics.scoring.score_logits` of some rows."""
        n, vocab = len(chosen), self._logits.shape[1]
        scores, finite = empty_scores(n, k), np.empty(n, np.bool_)
        at_once = max(BLOCK_ENTRIES // vocab, 1)
        with self._computing():
            device = self._logits.device
            places, own_ids = to_device(chosen, device), to_device(targets.astype(np.int64), device)
            parts = [
                _numbers(self._logits[places[at : at + at_once]].float(), own_ids[at : at + at_once], min(k + SPARE, vocab))
                for at in range(0, n, at_once)
            ]
            crossed = torch.cat(parts).cpu().numpy()  # the one time that the host waits
        logprob, entropy, rank, values, ids = np.split(crossed, [1, 2, 3, 3 + min(k + SPARE, vocab)], axis=1)
        scores.logprob[:], scores.entropy[:] = logprob[:, 0], entropy[:, 0]
        scores.rank[:] = rank[:, 0].view(np.int32)
        np.isfinite(scores.entropy, out=finite)
        self._keep_top(scores, values, ids.view(np.int32), chosen, min(k, vocab))
        covered = np.exp(scores.top_logprobs).sum(axis=-1, dtype=np.float64)
        scores.covered_mass[:] = np.minimum(covered, 1.0)
        return scores, finite

    def ranked(self, width: int, temperatures: npt.NDArray[np.float64] | None) -> tuple[list[Ranked], Float32, Bool]:
        """As `runtime.scheduler.prefill.distributions.normalise`, of all rows."""
        n, vocab = self._logits.shape
        fetched = min(width + 1, vocab)  # one more: of equals at the border it is not known which come first
        at_once = max(BLOCK_ENTRIES // vocab, 1)
        with self._computing():
            device = self._logits.device
            colder = None if temperatures is None else to_device((1.0 / temperatures).astype(np.float32)[:, None], device)
            parts = [
                _heads(self._logits[part].float(), None if colder is None else colder[part], fetched)
                for part in (slice(at, at + at_once) for at in range(0, n, at_once))
            ]
            crossed = torch.cat(parts).cpu().numpy()  # the one time that the host waits
        top, total, log_total, entropy, heated = crossed[:, :5].T
        values, ids = np.split(crossed[:, 5:], 2, axis=1)
        finite = np.isfinite(entropy)
        mass = _mass(total, log_total)
        hot = [None] * n if temperatures is None else list(zip(temperatures.tolist(), heated.tolist(), strict=True))
        ranked = [
            Ranked(
                partial(self._logprobs, i, top[i], log_total[i]),
                float(mass[i]),
                float(entropy[i]) if finite[i] else None,
                heated=hot[i],
                head=_head(values[i], ids[i].view(np.int32), whole=fetched == vocab),
            )
            for i in range(n)
        ]
        return ranked, top + log_total, finite

    def _logprobs(self, i: int, top: np.float32, log_total: np.float32) -> Float32:
        """One row, to the bit as it was ranked."""
        row: Float32 = self.rows(np.array([i]))[0]
        row -= top
        row -= log_total
        return row

    def _keep_top(self, scores: Scores, values: Float32, ids: Int32, chosen: npt.NDArray[np.int64], k: int) -> None:
        """The `k` likeliest of each row, ties by id; where more are equal than were fetched, the row itself is asked for."""
        if not k:
            return
        order = np.lexsort((ids, -values), axis=-1)[:, :k]
        scores.top_ids[:, :k] = np.take_along_axis(ids, order, axis=1)
        scores.top_logprobs[:, :k] = np.take_along_axis(values, order, axis=1)
        if values.shape[1] == self._logits.shape[1]:
            return
        for i in np.flatnonzero(values[:, k - 1] == values[:, -1]):
            row = self.rows(chosen[i : i + 1])[0]
            scores.top_ids[i, :k] = likeliest(row, k)


def _mass(total: Float32, log_total: Float32) -> npt.NDArray[np.float64]:
    """The sum of exp over log-probabilities."""
    with np.errstate(invalid="ignore"):  # rows that are no numbers
        return np.multiply(total, np.exp(-log_total, dtype=np.float64), dtype=np.float64)


def _head(values: Float32, ids: Int32, *, whole: bool) -> tuple[npt.NDArray[np.int64], Float32]:
    """What is known of a row's order by its largest entries, ties by id; nothing of those that equal the last of them."""
    held = len(values) if whole else int(np.count_nonzero(values > values[-1]))
    order = np.lexsort((ids[:held], -values[:held]))
    return ids[order].astype(np.int64), values[order]


def _numbers(raw: torch.Tensor, own_ids: torch.Tensor, width: int) -> torch.Tensor:
    """``(n, 3 + 2 * width)`` of raw logits ``(n, vocab)``: log-probability, entropy, rank, the likeliest and their ids.

    Ranks and ids are whole numbers in the bits of float32, so that all of it crosses at once.
    """
    logprobs, _, _, _, entropy = _normalised(raw)
    own = logprobs.gather(1, own_ids[:, None])
    rank = 1 + (logprobs > own).sum(-1, keepdim=True)
    values, ids = logprobs.topk(width)
    return torch.cat([own, entropy, _bits(rank), values, _bits(ids)], 1)


def _heads(raw: torch.Tensor, colder: torch.Tensor | None, width: int) -> torch.Tensor:
    """``(n, 5 + 2 * width)`` of raw logits: top, sum of weights, its logarithm, entropy, heated mass, likeliest, their ids.

    Args:
        raw: ``(n, vocab)``.
        colder: ``(n, 1)``, what the heated mass multiplies log-probabilities with; None: it means nothing.
        width: How many of the likeliest.
    """
    logprobs, top, total, log_total, entropy = _normalised(raw)
    values, ids = logprobs.topk(width)
    heated = total if colder is None else ((logprobs + log_total) * colder).exp().sum(-1, keepdim=True)
    return torch.cat([top, total, log_total, entropy, heated, values, _bits(ids)], 1)


def _normalised(raw: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Log-probabilities ``(n, vocab)``; and ``(n, 1)``: tops, sums of what weighs 1 at the top, their logarithms, entropies."""
    top = raw.amax(-1, keepdim=True)
    shifted = raw - top
    weights = shifted.exp()
    total = weights.sum(-1, keepdim=True)
    log_total = total.log()
    entropy = log_total - (weights * shifted).sum(-1, keepdim=True) / total
    return shifted.sub_(log_total), top, total, log_total, entropy


def _bits(whole: torch.Tensor) -> torch.Tensor:
    return whole.to(torch.int32).view(torch.float32)
