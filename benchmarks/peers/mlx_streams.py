"""What decoding and scoring cost with mlx_lm itself: its `stream_generate`, and the barest code around its forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import stream_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model
from transformers import AutoTokenizer

from benchmarks.clock import Lap, Stopwatch
from benchmarks.measure import Ids
from benchmarks.peers.numbers import log_softmax, top
from benchmarks.peers.numbers import records as records_of

ROWS = 64  # of logits that are made into numbers at a time
NO_TOKEN = -1


class MlxStreams:
    """Greedy decoding by other means than ours, on a model as mlx_lm loads it.

    Args:
        folder: The model.
    """

    def __init__(self, folder: Path) -> None:
        self._model, _ = load_model(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._tokenizer = TokenizerWrapper(tokenizer, eos_token_ids=[NO_TOKEN])  # no token ends an answer

    def stream_generate(self, prompt: Ids, n: int, *, records: bool) -> Lap:
        """The library's own generator; with `records`, top-10 records are made from the log-probabilities it returns."""
        watch = Stopwatch()
        answer: list[int] = []
        for response in stream_generate(self._model, self._tokenizer, list(prompt), max_tokens=n):
            answer.append(response.token)
            if records:
                records_of(np.array(response.logprobs.astype(mx.float32))[None], np.array([response.token]))
            if len(answer) == 1:
                watch.start()
        return watch.lap(n - 1, [answer])

    def loop(self, prompts: Sequence[Ids], n: int, *, records: bool) -> Lap:
        """One forward per step for all prompts, which are of one length, and argmax; nothing around it."""
        watch, cache = Stopwatch(), make_prompt_cache(self._model)
        tokens = self._push(mx.array(np.array(prompts, np.int32)), cache, records=records)
        watch.start()
        drawn = self._steps(tokens, cache, n, records=records)
        return watch.lap(len(prompts) * (n - 1), drawn)

    def records(self, prompt: Ids) -> Callable[[int], Lap]:
        """Records alone: each lap makes that of the token behind a prompt, which is pushed once, n times."""
        logits = np.array(self._model(mx.array(np.array([prompt], np.int32)))[:, -1].astype(mx.float32))
        chosen = logits.argmax(-1)

        def run(n: int) -> Lap:
            watch = Stopwatch()
            watch.start()
            for _ in range(n):
                records_of(log_softmax(logits), chosen)
            return watch.lap(n)

        return run

    def _steps(self, tokens: mx.array, cache: Any, n: int, *, records: bool) -> list[tuple[int, ...]]:
        """Every row's `n` tokens, the first of which are given ``(rows, 1)``."""
        drawn = [np.array(tokens[:, 0]).tolist()]
        for _ in range(n - 1):
            tokens = self._push(tokens, cache, records=records)
            drawn.append(np.array(tokens[:, 0]).tolist())
        return list(zip(*drawn, strict=True))

    def _push(self, tokens: mx.array, cache: Any, *, records: bool) -> mx.array:
        """The likeliest token after each row, ``(rows, 1)``."""
        logits = self._model(tokens, cache=cache)[:, -1].astype(mx.float32)
        chosen = mx.argmax(logits, -1, keepdims=True)
        mx.eval(logits, chosen)
        if records:
            records_of(log_softmax(np.array(logits)), np.array(chosen[:, 0]))
        return chosen

    def score(self, ids: Ids) -> Lap:
        """One forward over a text, and of each position the log-probability that followed and the ten largest."""
        watch = Stopwatch()
        watch.start()
        logits = self._model(mx.array(np.array([ids], np.int32)))[0]
        mx.eval(logits)
        for start in range(0, len(ids) - 1, ROWS):
            following = np.array(ids[start + 1 : start + 1 + ROWS])
            logprobs = log_softmax(np.array(logits[start : start + len(following)].astype(mx.float32)))
            np.take_along_axis(logprobs, following[:, None], -1)
            top(logprobs)
        return watch.lap(len(ids))

    def close(self) -> None:
        """Drops the model."""
        del self._model
