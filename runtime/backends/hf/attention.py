"""Our scaled dot-product attention, in place of the library's where that would copy keys and values."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from runtime.backends.hf.cache import SlotLayer, make_layers

OWN = "elsewise_sdpa"  # the name it is registered under


def use_own_attention(model: Any, device: torch.device) -> bool:
    """Sets a model to it where there is a use in it, and says whether it was.

    There is one on a CPU where query heads share key heads: transformers repeats keys and values whenever a mask is given,
    which copies the whole context at each decoded token of a tree. Measured on 8 rows over 3,000 slots, 9 heads over 3:
    3.8 ms as it is, 1.4 ms shared, equal bit for bit. And on every device where layers with attention stand beside recurrent
    ones, whose chains are rows of a batch: the rows then attend to one K/V.
    """
    if attention_of(model) != "sdpa" or not (_grouped(model, device) or _hybrid(model)):
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
    return str(getattr(model.config, "_attn_implementation", "eager"))  # no public name tells it


def own_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,  # (rows, heads, n, head_dim)
    key: torch.Tensor,  # (rows or 1, kv_heads, total, head_dim)
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The library's attention, but nothing is repeated: neither key heads, where there is a mask, nor keys that rows share."""
    rows, heads, n, width = query.shape
    shared = rows > key.shape[0]
    if shared:  # as so many queries of one row
        assert attention_mask is not None
        query = query.transpose(0, 1).reshape(1, heads, rows * n, width)
        attention_mask = attention_mask.reshape(1, 1, rows * n, -1)
    attended = _sdpa(module, query, key, value, attention_mask, **kwargs)
    return (attended.reshape(rows, n, heads, -1) if shared else attended), None


def _sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> torch.Tensor:  # (rows, n, heads, head_dim)
    plain = attention_mask is None or query.shape[1] == key.shape[1] or query.device.type != "cpu"
    if plain or kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        attended: torch.Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)[0]
        return attended
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling"), enable_gqa=True
    )
    return out.transpose(1, 2).contiguous()


def _grouped(model: Any, device: torch.device) -> bool:
    config = model.config.get_text_config(decoder=True)
    grouped = getattr(config, "num_key_value_heads", None) not in (None, getattr(config, "num_attention_heads", None))
    return grouped and device.type == "cpu"


def _hybrid(model: Any) -> bool:
    layers = make_layers(model.config.get_text_config(decoder=True))
    attends = any(isinstance(layer, SlotLayer) for layer in layers)
    return attends and any(hasattr(layer, "recurrent_states") for layer in layers)
