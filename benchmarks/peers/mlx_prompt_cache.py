"""mlx_lm's own batch generator behind its own prompt cache, put together as its server does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import LRUPromptCache, trim_prompt_cache
from mlx_lm.utils import load_model

from benchmarks.measure import Float32, Ids

ENTRIES = 64  # sequences kept; mlx_lm's default of 10 would lose the particles between two steps
KEY = "bench"  # the prompt cache's name for a model


class MlxPromptCache:
    """Looks each prompt up, generates for all of them as one batch, and puts the caches back.

    Args:
        folder: The model.
    """

    name = "mlx_lm, prompt cache"

    def __init__(self, folder: Path) -> None:
        model, _ = load_model(folder)
        self._model = _Counted(model)
        self._cache = LRUPromptCache(max_size=ENTRIES)

    @property
    def tokens_computed(self) -> int:
        """Input ids that the model was called with, padding included."""
        return self._model.tokens

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """The distribution that the generator draws its first token from."""
        return np.stack([first for _, first in self._generate(contexts, 1)])

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """One batch."""
        return [tokens for tokens, _ in self._generate(prompts, n)]

    def forget(self) -> None:
        """An empty prompt cache."""
        self._cache = LRUPromptCache(max_size=ENTRIES)

    def close(self) -> None:
        """Drops model and caches."""
        self.forget()
        del self._model

    def _generate(self, prompts: Sequence[Ids], n: int) -> list[tuple[list[int], Float32]]:
        """For each prompt its tokens and the first distribution ``(vocab,)``."""
        generator = BatchGenerator(self._model, max_tokens=n)
        found = [self._fetch(list(prompt)) for prompt in prompts]
        known = [list(prompt[: len(prompt) - len(rest)]) for prompt, (_, rest) in zip(prompts, found, strict=True)]
        caches = [cache for cache, _ in found]
        uids = generator.insert([rest for _, rest in found], caches=caches, all_tokens=known)
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        first: dict[int, Float32] = {}
        while responses := generator.next_generated():
            for response in responses:
                if response.uid not in first:
                    first[response.uid] = np.array(response.logprobs, dtype=np.float32).reshape(-1)
                tokens[response.uid].append(response.token)
                if response.finish_reason is not None:
                    self._cache.insert_cache(KEY, response.all_tokens, response.prompt_cache)
        generator.close()
        return [(tokens[uid], first[uid]) for uid in uids]

    def _fetch(self, prompt: list[int]) -> tuple[Any, list[int]]:
        """The nearest cache and what is still to be pushed, one token at least; None for the cache of nothing."""
        cache, rest = self._cache.fetch_nearest_cache(KEY, prompt)
        if not rest:
            trim_prompt_cache(cache, 1)
            rest = prompt[-1:]
        return cache, rest


class _Counted:
    """A model that counts the tokens it is called with; everything else is the model's own."""

    def __init__(self, model: Any) -> None:
        self.tokens = 0
        self._model = model

    def __call__(self, inputs: mx.array, **kwargs: Any) -> Any:
        self.tokens += inputs.size
        return self._model(inputs, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
