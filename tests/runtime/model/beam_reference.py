"""Beam search by transformers' own `generate`, to compare ours with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime import BeamOptions
from tests.runtime.backends.reference import RECURRENT, library_model


@dataclass(frozen=True, slots=True)
class Expected:
    """One hypothesis."""

    ids: list[int]
    score: float


@functools.cache  # both backends ask for the same
def by_transformers(name: str, prompt: tuple[int, ...], options: BeamOptions) -> list[Expected]:
    """The hypotheses of `generate(num_beams=...)` on a tiny model, best first.

    Recurrent models run without a cache: the library cannot reorder theirs.
    """
    import torch
    from transformers import GenerationConfig

    model, width = library_model(name), options.width
    before, model.generation_config = model.generation_config, GenerationConfig(pad_token_id=0)
    config = GenerationConfig(
        do_sample=False,
        num_beams=width,
        num_return_sequences=options.num_return or width,
        max_new_tokens=options.max_tokens,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
        eos_token_id=None if options.ignore_eos else list(options.eos_token_ids or ()),
        pad_token_id=0,
        use_cache=name not in RECURRENT,
        output_scores=True,
        return_dict_in_generate=True,
    )
    ids = torch.tensor([list(prompt)])
    try:
        with torch.inference_mode():
            out: Any = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    finally:
        model.generation_config = before
    if width == 1:  # which the library calls greedy search, and scores not at all
        return [Expected(_until_eos(out.sequences[0, len(prompt) :].tolist(), config.eos_token_id), float("nan"))]
    rows = zip(out.sequences[:, len(prompt) :].tolist(), out.sequences_scores.tolist(), strict=True)
    lengths = (out.beam_indices >= 0).sum(dim=1).tolist()
    return [Expected(row[:n], score) for (row, score), n in zip(rows, lengths, strict=True)]


def _until_eos(ids: list[int], eos: Sequence[int] | None) -> list[int]:
    ends = [at for at, token in enumerate(ids) if token in (eos or ())]
    return ids[: ends[0] + 1] if ends else ids
