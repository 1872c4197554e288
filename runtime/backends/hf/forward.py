"""The arguments of a transformers model's forward, and our scaled dot-product attention.

The attention replaces the library's where that would copy keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from runtime.backends.hf.cache import JointLayer, RaggedKeys, SlotLayer, TorchPack, layer_plan, to_device
from runtime.backends.packs.chains import Bucket
from runtime.backends.packs.tree import Bool, ForwardStep, Int64

FOLDED = {"cuda": 64, "cpu": 16}  # tokens; for more, a folded mask costs more than it saves (`ForwardArguments._with_folded`)
FULL, SLIDING = ("full_attention", "hybrid"), ("sliding_attention", "hybrid_sliding")  # transformers' names of layers
WIDEST_SHARED = 256  # largest head dimension for which the library lets query heads share keys without a mask
_SHARED_KEYS = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}  # others need no flag
OWN = "elsewise_sdpa"  # the name under which `own_sdpa` is registered


class ForwardArguments:
    """Makes the arguments of one model's forwards.

    Args:
        takes: Names of the parameters of its forward.
        windows: Windows of its attention layers, in positions; None is a full one.
        device: The device that computes.
        dtype: The dtype of its attention scores.
        eager: Whether its attention adds masks to scores (`torch.finfo(dtype).min` hides) instead of taking bool ones.
        heads: Number of heads that share keys; if more than one, masks of up to `FOLDED` tokens carry a folded mask
            (`own_sdpa`).
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
        self._heads, self._few = heads, FOLDED.get(device.type, 0) if heads > 1 else 0
        unread = self._mask(np.ones((1, 1), np.bool_))
        self._unread = self._by_kind(dict.fromkeys(windows, unread))  # a placeholder, for attention that finds masks elsewhere

    def of(self, pack: TorchPack, step: ForwardStep) -> dict[str, Any]:
        """Arguments for tokens that continue a pack, as one row; prepares the pack for them."""
        pack.begin(step, self._device)
        arguments = self._common(step.tokens[None], step.positions[None], pack.cache)
        if "logits_to_keep" in self._takes and step.read is None:
            arguments["logits_to_keep"] = self._kept(step.want, len(step.tokens))
        if step.mask is not None:  # a tree; else the library's causal mask suffices
            masks, first = {}, step.mask.shape[1] - step.mask.shape[0]
            for window in self._windows:
                seen = step.mask if window is None else pack.tree.within(step.mask, first, window)
                few = len(step.tokens) <= self._few
                masks[window] = self._with_folded(to_device(seen, self._device)[None, None]) if few else self._mask(seen)
            arguments["attention_mask"] = self._by_kind(masks)
        elif step.ragged is not None:
            arguments["attention_mask"] = self._unread
        elif 1 < len(step.tokens) <= self._few and len(pack.attention) == len(pack.cache.layers):
            kinds = {layer.window: layer for layer in pack.attention}
            causal = {window: _seen_by(pack, step, layer, self._device) for window, layer in kinds.items()}
            masks = {window: self._with_folded(mask) for window, mask in causal.items() if mask is not None}
            if len(masks) == len(kinds):
                arguments["attention_mask"] = self._by_kind(masks)
        return arguments

    def of_whole(
        self, pack: TorchPack, numbers: torch.Tensor, seen: torch.Tensor, windows: Sequence[int | None]
    ) -> dict[str, Any]:
        """Arguments for tokens of one pack that attend to all its slots through a mask, with all inputs on the device.

        Args:
            pack: The pack of the tokens.
            numbers: ``(3, n)``: tokens, positions, slots.
            seen: ``(windows, n, slots)`` bool.
            windows: Windows of the attention layers.
        """
        masks = {window: self._with_folded(part[None, None]) for window, part in zip(windows, seen, strict=True)}
        return {
            "input_ids": numbers[0][None],
            "position_ids": numbers[1][None],
            "past_key_values": pack.cache,
            "use_cache": True,
            "attention_mask": self._by_kind(masks),
        }

    def of_joint(self, packs: Sequence[TorchPack], steps: Sequence[ForwardStep], step: ForwardStep) -> dict[str, Any]:
        """Arguments for tokens of several packs, as one row; prepares the packs. `JointLayer` has the masks.

        Args:
            packs: The packs; none has recurrent layers.
            steps: One for each pack.
            step: All steps, `merged`.
        """
        lengths, attention, ragged = list[int](), list[list[SlotLayer]](), False
        for pack, own in zip(packs, steps, strict=True):
            ragged = ragged or own.ragged is not None
            pack.begin(own, self._device)
            lengths.append(len(own.tokens))
            attention.append(pack.attention)
        masks: dict[int | None, list[torch.Tensor | None]] = {}  # by the layers' window
        joint = []
        for layers in zip(*attention, strict=True):
            window = layers[0].window
            if window not in masks:
                masks[window] = []
                for pack, own, layer in zip(packs, steps, layers, strict=True):
                    mask = _seen_by(pack, own, layer, self._device)
                    masks[window].append(self._with_folded(mask) if mask is not None and mask.shape[2] <= self._few else mask)
            joint.append(JointLayer(layers, lengths, masks[window], window is not None, ragged))
        arguments: dict[str, Any] = {
            "input_ids": to_device(step.tokens, self._device)[None],
            "position_ids": to_device(step.positions, self._device)[None],
            "past_key_values": Cache(layers=joint),
            "use_cache": True,
            "attention_mask": self._unread,
        }
        if "logits_to_keep" in self._takes:
            every = len(step.want) == len(step.tokens)
            arguments["logits_to_keep"] = 0 if every else to_device(step.want, self._device)
        return arguments

    def of_rows(self, pack: TorchPack, bucket: Bucket) -> dict[str, Any]:
        """Arguments for chains as rows; the library's causal mask suffices if they are equally long."""
        pack.begin_rows(bucket, self._device)
        arguments = self._common(bucket.tokens, bucket.positions, pack.cache)
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = self._kept(bucket.columns, bucket.tokens.shape[1])
        if bucket.masked:
            masks = {w: self._mask(bucket.visible(w)[..., bucket.first(w) :]) for w in self._windows}
            arguments["attention_mask"] = self._by_kind(masks)
        return arguments

    def _common(self, tokens: Int64, positions: Int64, cache: Cache) -> dict[str, Any]:
        """The arguments of every forward; `tokens` and `positions` are ``(rows, n)``."""
        arguments: dict[str, Any] = {"input_ids": to_device(tokens, self._device), "use_cache": True}
        arguments["past_key_values" if "past_key_values" in self._takes else "cache_params"] = cache
        if "position_ids" in self._takes:
            arguments["position_ids"] = to_device(positions, self._device)
        return arguments

    def _kept(self, want: Int64, n: int) -> int | torch.Tensor:
        if len(want) == n:
            return 0  # all
        if len(want) == 1 and want[0] == n - 1:
            return 1  # the last
        return to_device(want, self._device)

    def _by_kind(self, masks: Mapping[int | None, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
        """4-D masks for a call; where full and sliding layers alternate, one for each kind.

        Recurrent layers ignore a 4-D mask: they apply only a 2-D one, for padding.
        """
        if len(masks) == 1:
            return next(iter(masks.values()))
        return {kind: mask for w, mask in masks.items() for kind in (SLIDING if w else FULL)}

    def _mask(self, mask: Bool) -> torch.Tensor:
        rows = mask if mask.ndim == 3 else mask[None]
        seen = to_device(rows, self._device)[:, None]  # (rows, 1, n, slots)
        if not self._eager:
            return seen
        return torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill(~seen, torch.finfo(self._dtype).min)

    def _with_folded(self, seen: torch.Tensor) -> torch.Tensor:
        """A bool mask ``(1, 1, n, slots)`` with an attribute `folded`: ``(1, 1, heads * n, slots)``, to be added to scores.

        The folded mask repeats the rows for each head, at aligned addresses. A model that reads its mask itself reads the bool
        one.
        """
        n, slots = seen.shape[2:]
        made = torch.full((1, self._heads, n, -(-slots // 8) * 8), -torch.inf, dtype=self._dtype, device=self._device)
        made[..., :slots].masked_fill_(seen, 0.0)
        seen.folded = made.view(1, 1, self._heads * n, -1)[..., :slots]  # a tensor takes attributes
        return seen


def _seen_by(pack: TorchPack, step: ForwardStep, layer: SlotLayer, device: torch.device) -> torch.Tensor | None:
    """The mask of a pack's new tokens in a layer, ``(1, 1, n, seen)``; None: causal from the first key on, or everything."""
    n, window = len(step.tokens), layer.window
    if step.ragged is not None or (n == 1 and step.mask is None):
        return None
    if step.mask is not None:
        mask = step.mask
        if window is not None:
            mask = pack.tree.within(mask, mask.shape[1] - n, window)
        return to_device(mask, device)[None, None]
    seen, _ = layer.get_mask_sizes(n)
    if seen == n and (window is None or n <= window):
        return None
    query = torch.arange(seen - n, seen, device=device)[:, None]
    key = torch.arange(seen, device=device)
    causal = key <= query
    return (causal if window is None else causal & (query - key < window))[None, None]


def use_own_attention(model: Any) -> bool:
    """Sets a model with attention layers to `own_sdpa`; returns whether it did.

    transformers repeats keys and values whenever a mask is given, which copies the whole context at each decoded token of a
    tree: measured on 8 rows over 3,000 slots, 9 heads over 3: 3.8 ms repeated, 1.4 ms shared, equal bit for bit. With it, rows
    of a batch can attend to one K/V (attention layers beside recurrent ones), and tokens of several packs to their own.
    """
    if attention_of(model) != "sdpa":
        return False
    if not any(isinstance(make(), SlotLayer) for make in layer_plan(model.config.get_text_config(decoder=True))):
        return False
    AttentionInterface.register(OWN, own_sdpa)
    AttentionMaskInterface.register(OWN, sdpa_mask)
    try:
        model.set_attn_implementation(OWN)
    except ValueError:  # an architecture with attention code of its own
        return False
    return True


def attention_of(model: Any) -> str:
    """The attention implementation in use."""
    return str(getattr(model.config, "_attn_implementation", "eager"))  # it has no public name


def own_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,  # (rows, heads, n, head_dim)
    key: torch.Tensor,  # (rows or 1, kv_heads, total, head_dim)
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The library's attention, without repeating key heads under a mask or keys that rows share.

    Calls torch's kernel directly where the library would on a CPU, and where it would repeat keys for a mask. Keys with a
    `JointLayer` are those of several packs, each of which attends to its own. With a folded mask, heads that share keys
    become queries of one head.
    """
    joint: JointLayer | None
    joint, seen = getattr(key, "joint", (None, ()))
    bare = kwargs.get("softcap") is None and kwargs.get("position_bias") is None
    plain = bare and query.device.type == "cpu"
    if joint is not None:
        scale, heads = kwargs.get("scaling"), query.shape[1]
        if plain and not joint.ragged and key.shape[-1] == value.shape[-1] <= WIDEST_SHARED:
            parts = list[torch.Tensor]()  # (n, kv_heads, heads / kv_heads, head_dim)
            rows = query.transpose(0, 2).reshape(query.shape[2], key.shape[1], -1, query.shape[3]).split(joint.lengths)
            for n, part, (keys, values), mask in zip(joint.lengths, rows, seen, joint.masks, strict=True):
                if n == 1:
                    added = getattr(mask, "folded", None)
                    bias = mask if added is None or added.shape[2] != part.shape[2] else added
                    parts.append(scaled_dot_product_attention(part, keys, values, bias, scale=scale))
                    continue
                own = part.flatten(1, 2).transpose(0, 1)[None]  # (1, heads, n, head_dim)
                if mask is None:
                    own = scaled_dot_product_attention(own, keys, values, None, 0.0, True, scale=scale, enable_gqa=True)
                    own = own.transpose(1, 2)
                else:
                    own = own_sdpa(module, own, keys, values, mask, **kwargs)[0]
                parts.append(own.reshape(part.shape))
            return torch.cat(parts).view(1, query.shape[2], heads, -1), None
        pairs = zip(query.split(joint.lengths, 2), seen, joint.masks, strict=True)
        parts = [own_sdpa(module, part, keys, values, mask, **kwargs)[0] for part, (keys, values), mask in pairs]
        return torch.cat(parts, 1), None
    ragged: RaggedKeys | None = getattr(key, "ragged", None)
    if ragged is not None:
        return _ragged(query, key, value, ragged, kwargs.get("scaling")), None
    rows, heads, n, width = query.shape
    folded: torch.Tensor | None = getattr(attention_mask, "folded", None)
    if bare and folded is not None and folded.shape[2] == n * heads // key.shape[1]:  # else for another number of heads
        query, scale = query.reshape(1, key.shape[1], -1, width), kwargs.get("scaling")
        attended = scaled_dot_product_attention(query, key, value, attn_mask=folded, scale=scale)
        return attended.reshape(1, heads, n, -1).transpose(1, 2).contiguous(), None
    shared = rows > key.shape[0]
    if shared:  # rows become queries of one row
        assert attention_mask is not None
        query = query.transpose(0, 1).reshape(1, heads, rows * n, width)
        attention_mask = attention_mask.reshape(1, 1, rows * n, -1)
    if plain and (attention_mask is not None or key.shape[-1] == value.shape[-1] <= WIDEST_SHARED):
        given = kwargs.get("is_causal")
        causal = attention_mask is None and query.shape[2] > 1 and (module.is_causal if given is None else given)
        scale = kwargs.get("scaling")
        if attention_mask is None and n == 1:
            attended = scaled_dot_product_attention(_by_key_head(query, key.shape[1]), key, value, scale=scale)
            return attended.reshape(rows, 1, heads, -1), None
        attended = scaled_dot_product_attention(query, key, value, attention_mask, 0.0, causal, scale=scale, enable_gqa=True)
        attended = attended.transpose(1, 2).contiguous()
    else:
        attended = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)[0]
    return (attended.reshape(rows, n, heads, -1) if shared else attended), None


def _by_key_head(query: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Queries of one token each ``(rows, heads, 1, width)`` as ``(rows, kv_heads, heads / kv_heads, width)``.

    The CPU kernel reads keys once for each head: measured with 1,000 and 4,000 keys, this is 1.4 to 2.7 times as fast.
    """
    return query.reshape(query.shape[0], kv_heads, -1, query.shape[-1])


def _ragged(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ragged: RaggedKeys, scale: float | None
) -> torch.Tensor:  # (1, n, heads, head_dim)
    attended: torch.Tensor = varlen_attn(
        *(part[0].transpose(0, 1) for part in (query, key, value)),  # (n or total, heads, head_dim)
        ragged.queries,
        ragged.keys,
        *ragged.longest,
        scale=scale,
        window_size=(-1 if ragged.window is None else ragged.window - 1, 0),
        **_SHARED_KEYS,
    )
    return attended[None]
