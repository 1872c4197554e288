"""Peers on mlx_lm: bare forwards, the prompt cache, streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator, stream_generate
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache, trim_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model
from transformers import AutoTokenizer

from benchmarks.clock import Lap, Stopwatch, timed, timed_steps
from benchmarks.measure import Float32, Ids
from benchmarks.peers.bare import BareRows, log_softmax, top
from benchmarks.peers.bare import records as records_of


class BareMlx(BareRows):
    """mlx_lm's model with mlx_lm's growing KV cache, one row per particle."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.tokens_computed = 0
        self._model, _ = load_model(folder)
        self.clear()

    def forward(self, rows: list[Ids]) -> Float32:
        tokens = mx.array(np.array(rows, np.int32))
        self.tokens_computed += tokens.size
        logits = np.array(self._model(tokens, cache=self._cache)[:, -1].astype(mx.float32))
        return log_softmax(logits)  # numpy's is several times faster than MLX's on a CPU

    def choose(self, rows: list[int]) -> None:
        chosen = mx.array(rows)
        for layer in self._cache:
            layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]

    def clear(self) -> None:
        self._cache = make_prompt_cache(self._model)

    def close(self) -> None:
        del self._model, self._cache


ENTRIES = 64  # cached sequences; mlx_lm's default of 10 would lose the particles between two steps
KEY = "bench"  # names the model in the prompt cache


class MlxPromptCache:
    """mlx_lm's prompt cache: looks up each prompt, generates for all as one batch, and stores the caches."""

    name = "mlx_lm, prompt cache"
    records = False  # whether to make a record of each token, like Elsewise

    def __init__(self, folder: Path) -> None:
        model, _ = load_model(folder)
        self._model = _Counted(model)
        self._cache = LRUPromptCache(max_size=ENTRIES)

    @property
    def tokens_computed(self) -> int:
        """Number of input ids that the model was called with, padding included."""
        return self._model.tokens

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Log-probabilities from which the generator draws its first token."""
        return np.stack([first for _, first in self._generate(contexts, 1)])

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """Greedy answers, generated as one batch."""
        return [tokens for tokens, _ in self._generate(prompts, n)]

    def forget(self) -> None:
        """Replaces the prompt cache by an empty one."""
        self._cache = LRUPromptCache(max_size=ENTRIES)

    def close(self) -> None:
        self.forget()
        del self._model

    def _generate(self, prompts: Sequence[Ids], n: int) -> list[tuple[list[int], Float32]]:
        """Generates `n` tokens per prompt; returns them with the first log-probabilities, ``(vocab,)``."""
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
                if self.records:
                    logprobs = np.array(response.logprobs, dtype=np.float32).reshape(1, -1)
                    records_of(logprobs, np.array([response.token]))
                if response.finish_reason is not None:
                    self._cache.insert_cache(KEY, response.all_tokens, response.prompt_cache)
        generator.close()
        return [(tokens[uid], first[uid]) for uid in uids]

    def _fetch(self, prompt: list[int]) -> tuple[Any, list[int]]:
        """The cache with the longest common prefix (None: there is none) and the tokens left to push, at least one."""
        cache, rest = self._cache.fetch_nearest_cache(KEY, prompt)
        if not rest:
            trim_prompt_cache(cache, 1)
            rest = prompt[-1:]
        return cache, rest


class MlxPromptCacheRecords(MlxPromptCache):
    """The prompt cache with records."""

    name = "mlx_lm, prompt cache, records"
    records = True


class _Counted:
    """Wraps a model and counts the tokens of its calls."""

    def __init__(self, model: Any) -> None:
        self.tokens = 0
        self._model = model

    def __call__(self, inputs: mx.array, **kwargs: Any) -> Any:
        self.tokens += inputs.size
        return self._model(inputs, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


ROWS = 64  # rows of logits that are scored at a time
NO_TOKEN = -1


class MlxStreams:
    """Greedy decoding and scoring by mlx_lm or by bare forwards, on a model as mlx_lm loads it."""

    def __init__(self, folder: Path) -> None:
        self._model, _ = load_model(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._tokenizer = TokenizerWrapper(tokenizer, eos_token_ids=[NO_TOKEN])  # no token ends an answer

    def stream_generate(self, prompt: Ids, n: int, *, records: bool) -> Lap:
        """Decodes with mlx_lm's `stream_generate`; with `records`, makes top-10 records from its log-probabilities."""
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
        """Decodes prompts of one length in a bare loop: one forward per step for all rows, and argmax."""
        step = partial(self._push, cache=make_prompt_cache(self._model), records=records)
        return timed_steps(step, mx.array(np.array(prompts, np.int32)), n)

    def records(self, prompt: Ids) -> Callable[[int], Lap]:
        """Returns laps of records alone: a lap of n makes the record of the first token after the prompt n times."""
        logits = np.array(self._model(mx.array(np.array([prompt], np.int32)))[:, -1].astype(mx.float32))
        chosen = logits.argmax(-1)
        return partial(timed, lambda _: records_of(log_softmax(logits), chosen))

    def _push(self, tokens: mx.array, cache: Any, *, records: bool) -> mx.array:
        """Pushes tokens ``(rows, n)``; returns the likeliest token after each row, ``(rows, 1)``."""
        logits = self._model(tokens, cache=cache)[:, -1].astype(mx.float32)
        chosen = mx.argmax(logits, -1, keepdims=True)
        mx.eval(logits, chosen)
        if records:
            records_of(log_softmax(np.array(logits)), np.array(chosen[:, 0]))
        return chosen

    def score(self, ids: Ids) -> Lap:
        """Scores a text by one forward: per position, the log-probability of the next token and the ten largest."""
        watch = Stopwatch().start()
        logits = self._model(mx.array(np.array([ids], np.int32)))[0]
        mx.eval(logits)
        for start in range(0, len(ids) - 1, ROWS):
            following = np.array(ids[start + 1 : start + 1 + ROWS])
            logprobs = log_softmax(np.array(logits[start : start + len(following)].astype(mx.float32)))
            np.take_along_axis(logprobs, following[:, None], -1)
            top(logprobs)
        return watch.lap(len(ids))

    def close(self) -> None:
        del self._model
