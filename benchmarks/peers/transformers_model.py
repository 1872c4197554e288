"""What both transformers peers share: the library's model on one device, and a count of what goes through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from benchmarks.measure import Float32, Ids


class TransformersModel:
    """A causal model as `from_pretrained` gives it.

    Args:
        folder: The model.

    Attributes:
        tokens_computed: Input ids that its forward was called with, padding included.
        model: The library's own object.
    """

    def __init__(self, folder: Path) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(1)  # as ours is
        self.tokens_computed = 0
        self._device = torch.device(_device())
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self.model: Any = model.to(self._device).eval()
        self.model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no token ends an answer
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)

    @property
    def layers(self) -> int:
        """How many of them the model has."""
        return int(self.model.config.num_hidden_layers)

    def logprobs_after(self, rows: Any, cache: Any = None) -> Float32:
        """Float32 log-probabilities after the last token of each row of ids, ``(rows, vocab)``."""
        with torch.inference_mode():
            out = self.model(input_ids=rows, past_key_values=cache, use_cache=cache is not None, logits_to_keep=1)
            logprobs: Float32 = torch.log_softmax(out.logits[:, -1].float(), -1).cpu().numpy()
        return logprobs

    def greedy(self, prompt: Ids, n: int, cache: Any = None) -> list[int]:
        """`n` tokens by the library's own `generate`, which keeps its cache for this one call unless it is given one."""
        ids = self.tensor([prompt])
        mask = torch.ones_like(ids)
        with torch.inference_mode():
            out = self.model.generate(ids, attention_mask=mask, max_new_tokens=n, past_key_values=cache)
        answer: list[int] = out[0, len(prompt) :].tolist()
        return answer

    def tensor(self, rows: list[Ids]) -> Any:
        """Ids on the device, ``(rows, length) int64``."""
        return torch.from_numpy(np.array(rows, np.int64)).to(self._device)

    def close(self) -> None:
        """Drops the model."""
        self.model = None

    def _count(self, _module: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tokens_computed += kwargs["input_ids"].numel()


def _device() -> str:
    """The one that Elsewise chooses for itself."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
