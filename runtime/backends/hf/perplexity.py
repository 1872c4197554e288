"""What weights in fewer bits cost: the perplexity of a fixed text before and after, measured once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from runtime.backends.hf.weights import pack_weights
from runtime.errors import RuntimeFault
from runtime.loading.measurements import MOST_TOKENS, PLAIN, TEXT, Perplexities, keep_perplexities, kept_perplexities
from runtime.loading.model_folder import ModelFolder
from runtime.text.tokenizer import Tokenizer

_ROWS = 32  # of logits that are copied at once


def pack_and_measure(model: Any, source: ModelFolder, weights: str) -> Perplexities | None:
    """Packs a float32 model's linear weights; its perplexity before and after, out of what is kept where it is known.

    Args:
        model: On the CPU.
        source: Its folder, for the tokenizer.
        weights: See `pack_weights`.

    Returns:
        None where the text has no tokens that the model knows.
    """
    ids = _ids(source, int(model.config.get_text_config(decoder=True).vocab_size))
    found = kept_perplexities(source.weights_digest)
    complete = {PLAIN, weights} <= found.keys()
    if ids and PLAIN not in found:
        found[PLAIN] = perplexity(model, ids)
    pack_weights(model, weights)
    if ids and weights not in found:
        found[weights] = perplexity(model, ids)
    if not ids:
        return None
    if not complete:
        keep_perplexities(source.weights_digest, found)
    return Perplexities(weights, found[PLAIN], found[weights])


def perplexity(model: Any, ids: list[int]) -> float:
    """The exponential of the mean surprise of every token but the first, in one plain forward."""
    tokens = torch.tensor([ids])
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]  # (n - 1, vocab)
        parts = zip(logits.split(_ROWS), tokens[0, 1:].split(_ROWS), strict=True)
        surprise = sum(float(cross_entropy(rows.float(), wanted, reduction="sum")) for rows, wanted in parts)
    return math.exp(min(surprise / (len(ids) - 1), 700.0))  # above that a float ends


def _ids(source: ModelFolder, vocabulary: int) -> list[int]:
    try:
        tokenizer = Tokenizer.from_folder(source)
    except RuntimeFault:  # who loads the model for texts says so
        return []
    begin = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
    ids = [*begin, *tokenizer.encode(TEXT)][:MOST_TOKENS]
    return ids if len(ids) > 1 and max(ids) < vocabulary else []
