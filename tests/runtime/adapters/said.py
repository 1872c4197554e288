"""The answers of a model to every kind of request, so that two states can be compared bit for bit."""

from __future__ import annotations

import numpy as np

from runtime import GenerationOptions, LanguageModel, SamplingOptions, TokenRecord
from runtime.records import Float32
from tests.runtime.backends.reference import random_ids

Said = tuple[list[Float32], list[list[TokenRecord]]]


def what_it_says(model: LanguageModel) -> Said:
    """Rows and streams of a model with an empty cache: uncached, cold, after a cached prefix, warm."""
    ids = random_ids(8, 40).tolist()
    options = GenerationOptions(
        max_tokens=20, sampling=SamplingOptions(temperature=0.9), seed=6, ignore_eos=True, resolve=False, stages=True
    )
    model.clear_cache()
    rows = [model.next_token_logprobs_uncached(ids)]
    rows.extend(model.next_token_logprobs_sync(ids[:n]) for n in (25, 26, 40))
    cold = list(model.generate_sync(ids, options))
    return rows, [cold, list(model.generate_sync(ids, options))]


def assert_same_bits(got: Said, wanted: Said) -> None:
    for row, other in zip(got[0], wanted[0], strict=True):
        np.testing.assert_array_equal(row, other)
    assert got[1] == wanted[1]  # ids, texts, log-probabilities, entropies, the top tokens, and the effect of each stage
