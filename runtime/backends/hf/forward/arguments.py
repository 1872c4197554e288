"""What a transformers model's forward is called with: tokens, positions, who sees whom, which answers are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch

from runtime.backends.hf.cache import JointCache, TorchPack, to_device
from runtime.backends.packs.buckets import Bucket
from runtime.backends.packs.step import Step
from runtime.backends.packs.tree import Bool, Int64

FOLDED = 64  # tokens: a mask of more is dearer with a copy for each head than what its heads would copy
FULL, SLIDING = ("full_attention", "hybrid"), ("sliding_attention", "hybrid_sliding")  # what transformers calls layers


class Arguments:
    """Of one model.

    Args:
        takes: Names of its forward's parameters.
        windows: Of its attention layers, in positions; None is a full one.
        device: Where it computes.
        dtype: Of its scores.
        eager: Whether its attention adds masks to scores (`torch.finfo(dtype).min` hides) instead of taking bool ones.
        heads: That share keys: masks of few tokens come folded where that is more than one (`own_sdpa`).
    """

    def __init__(
        self,
        takes: Set[str],
        windows: Set[int | None],
        device: torch.device,
        dtype: torch.dtype,
        *,
        eager: bool,
        heads: int = 1,
    ) -> None:
        self._takes, self._windows, self._device, self._dtype, self._eager = takes, windows, device, dtype, eager
        self._heads = heads

    def of(self, pack: TorchPack, step: Step) -> dict[str, Any]:
        """For tokens that go on from a pack, as one row."""
        arguments: dict[str, Any] = {"input_ids": to_device(step.tokens, self._device)[None], "use_cache": True}
        arguments["past_key_values" if "past_key_values" in self._takes else "cache_params"] = pack.cache
        if "position_ids" in self._takes:
            arguments["position_ids"] = to_device(step.positions, self._device)[None]
        if "logits_to_keep" in self._takes and step.read is None:
            arguments["logits_to_keep"] = self._kept(step.want, len(step.tokens))
        if step.mask is not None:  # a tree; else the library's own causal mask serves
            visible, first = step.mask, step.mask.shape[1] - step.mask.shape[0]
            by_window = {w: visible if w is None else pack.tree.within(visible, first, w) for w in self._windows}
            arguments["attention_mask"] = self._masks(by_window, fold=self._heads > 1 and len(step.tokens) <= FOLDED)
        elif step.ragged is not None:
            arguments["attention_mask"] = self._unread(len(step.tokens))
        return arguments

    def of_whole(
        self, pack: TorchPack, numbers: torch.Tensor, seen: torch.Tensor, windows: Sequence[int | None]
    ) -> dict[str, Any]:
        """For some tokens of one pack that see of all its slots what a mask says, with all of it on the device.

        Args:
            pack: The pack.
            numbers: ``(3, n)``: tokens, positions, slots.
            seen: ``(windows, n, slots)`` bool.
            windows: Of the attention layers.
        """
        masks = {window: self._folded(part[None, None]) for window, part in zip(windows, seen, strict=True)}
        return {
            "input_ids": numbers[0][None],
            "position_ids": numbers[1][None],
            "past_key_values": pack.cache,
            "use_cache": True,
            "attention_mask": self._by_kind(masks),
        }

    def of_joint(self, joint: JointCache, steps: Sequence[Step], want: Int64) -> dict[str, Any]:
        """For tokens of several packs, as one row; `JointLayer` knows what each one sees."""
        tokens = np.concatenate([step.tokens for step in steps])
        positions = np.concatenate([step.positions for step in steps])
        arguments: dict[str, Any] = {
            "input_ids": to_device(tokens, self._device)[None],
            "position_ids": to_device(positions, self._device)[None],
            "past_key_values": joint.cache,
            "use_cache": True,
            "attention_mask": self._unread(len(tokens)),
        }
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = self._kept(want, len(tokens))
        return arguments

    def of_rows(self, pack: TorchPack, bucket: Bucket) -> dict[str, Any]:
        """The same for chains side by side; the library's own causal mask serves where they are equally long."""
        arguments: dict[str, Any] = {"input_ids": to_device(bucket.tokens, self._device), "use_cache": True}
        arguments["past_key_values" if "past_key_values" in self._takes else "cache_params"] = pack.cache
        if "position_ids" in self._takes:
            arguments["position_ids"] = to_device(bucket.positions, self._device)
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = self._kept(bucket.columns, bucket.tokens.shape[1])
        if bucket.masked:
            arguments["attention_mask"] = self._masks({w: bucket.visible(w)[..., bucket.first(w) :] for w in self._windows})
        return arguments

    def _kept(self, want: Int64, n: int) -> int | torch.Tensor:
        if len(want) == n:
            return 0  # all
        if len(want) == 1 and want[0] == n - 1:
            return 1  # the last
        return to_device(want, self._device)

    def _masks(self, by_window: Mapping[int | None, Bool], *, fold: bool = False) -> torch.Tensor | dict[str, torch.Tensor]:
        """4-D masks for a call; where full and sliding layers alternate, one for each kind.

        Recurrent layers leave a 4-D mask alone: only a 2-D one, for padding, is multiplied into what they read.
        """
        return self._by_kind({w: self._mask(mask, fold=fold) for w, mask in by_window.items()})

    def _unread(self, n: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Masks for a call whose attention knows what each token sees."""
        return self._masks(dict.fromkeys(self._windows, np.ones((1, n), np.bool_)))

    def _by_kind(self, masks: Mapping[int | None, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
        if len(masks) == 1:
            return next(iter(masks.values()))
        return {kind: mask for w, mask in masks.items() for kind in (SLIDING if w else FULL)}

    def _mask(self, mask: Bool, *, fold: bool) -> torch.Tensor:
        rows = mask if mask.ndim == 3 else mask[None]
        seen = to_device(rows, self._device)[:, None]  # (rows, 1, n, slots)
        if not self._eager:
            return self._folded(seen) if fold else seen
        return torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill(~seen, torch.finfo(self._dtype).min)

    def _folded(self, seen: torch.Tensor) -> torch.Tensor:
        """A mask ``(1, 1, n, slots)`` as ``(1, 1, heads * n, slots)`` to be added to scores, rows of one head, then the next's.

        Each begins at an address that kernels like.
        """
        n, slots = seen.shape[2:]
        made = torch.full((1, self._heads, n, -(-slots // 8) * 8), -torch.inf, dtype=self._dtype, device=self._device)
        made[..., :slots].masked_fill_(seen, 0.0)
        return made.view(1, 1, self._heads * n, -1)[..., :slots]
