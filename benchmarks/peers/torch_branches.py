"""Several continuations of one prompt, and beam search, by transformers' own `generate`."""

from __future__ import annotations

import torch

from benchmarks.clock import Lap, Stopwatch
from benchmarks.measure import Ids
from benchmarks.peers.transformers_model import TransformersModel


class TorchBranches(TransformersModel):
    """The library as it comes, on a model as `from_pretrained` gives it; no records are made."""

    def branches(self, prompt: Ids, n: int, tokens: int) -> Lap:
        """`tokens` drawn in each of `n` continuations of the prompt."""
        ids, watch = self.tensor([prompt]), Stopwatch()
        watch.start()
        with torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                num_return_sequences=n,
                max_new_tokens=tokens,
            )
        return watch.lap(n * tokens)

    def beams(self, prompt: Ids, width: int, tokens: int) -> Lap:
        """Beam search for hypotheses of `tokens`."""
        ids, watch = self.tensor([prompt]), Stopwatch()
        watch.start()
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=tokens,
            )
        return watch.lap(width * tokens, out[:, len(prompt) :].tolist())
