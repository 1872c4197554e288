"""Peers on transformers: bare forwards, one cache, no cache, branches and streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from benchmarks.clock import Lap, Stopwatch, timed, timed_steps
from benchmarks.measure import Float32, Ids, common_prefix
from benchmarks.peers.bare import BareRows


class TransformersModel:
    """A causal model as `from_pretrained` gives it.

    Attributes:
        tokens_computed: Number of input ids that the forward was called with, padding included.
        model: The transformers model.
    """

    def __init__(self, folder: Path) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(1)  # like Elsewise
        self.tokens_computed = 0
        self._device = torch.device(_device())
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self.model: Any = model.to(self._device).eval()
        self.model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no token ends an answer
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def logprobs_after(self, rows: Any, cache: Any = None) -> Float32:
        """Log-probabilities after the last token of each row of ids, ``(rows, vocab) float32``."""
        with torch.inference_mode():
            out = self.model(input_ids=rows, past_key_values=cache, use_cache=cache is not None, logits_to_keep=1)
            logprobs: Float32 = torch.log_softmax(out.logits[:, -1].float(), -1).cpu().numpy()
        return logprobs

    def generated(self, ids: Any, n: int, **options: Any) -> Any:
        """What transformers' `generate` returns for rows of one length and `n` new tokens."""
        with torch.inference_mode():
            return self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, **options)

    def greedy(self, prompt: Ids, n: int, cache: Any = None) -> list[int]:
        """Generates `n` tokens with transformers' `generate`; without `cache`, it uses one for this call only."""
        out = self.generated(self.tensor([prompt]), n, past_key_values=cache)
        answer: list[int] = out[0, len(prompt) :].tolist()
        return answer

    def tensor(self, rows: list[Ids]) -> Any:
        """Ids on the device, ``(rows, length) int64``."""
        return torch.from_numpy(np.array(rows, np.int64)).to(self._device)

    def close(self) -> None:
        self.model = None

    def _count(self, _module: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tokens_computed += kwargs["input_ids"].numel()


def _device() -> str:
    """The device that Elsewise would choose."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


SPARE = 64  # tokens of spare capacity at first; the capacity doubles when it is used up


class InPlaceLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not followed by mypy
    """Keys and values of one full-attention layer for rows of one length: ``(rows, kv_heads, capacity, head_dim)``."""

    is_compileable = False
    is_sliding = False
    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # tokens held per row

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = _room(key_states, SPARE), _room(value_states, SPARE)
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  # arguments for other cache classes
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends ``(rows, kv_heads, n, head_dim)``; returns all keys and values held."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        if self.length > self.keys.shape[2]:
            self.keys, self.values = _room(self.keys, self.length), _room(self.values, self.length)
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def choose(self, rows: torch.Tensor) -> None:
        """Keeps these rows, in this order; a row can be repeated."""
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class InPlaceCache(Cache):  # type: ignore[misc]  # transformers is not followed by mypy
    """A cache with one `InPlaceLayer` per layer of the model."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[InPlaceLayer() for _ in range(layers)])

    def choose(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        for layer in self.layers:
            layer.choose(torch.tensor(rows, device=layer.device))


def _room(held: torch.Tensor, more: int) -> torch.Tensor:
    """A copy of `held` with capacity for `more` further tokens."""
    rows, heads, length, width = held.shape
    grown = held.new_empty(rows, heads, length + more, width)
    grown[:, :, :length] = held
    return grown


class BareTorch(BareRows):
    """transformers' model with a KV cache that appends in place."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._peer = TransformersModel(folder)
        self.clear()

    @property
    def tokens_computed(self) -> int:
        """Number of input ids that the model was called with."""
        return self._peer.tokens_computed

    def forward(self, rows: list[Ids]) -> Float32:
        return self._peer.logprobs_after(self._peer.tensor(rows), self._cache)

    def choose(self, rows: list[int]) -> None:
        self._cache.choose(rows)

    def clear(self) -> None:
        self._cache = InPlaceCache(self._peer.model.config.num_hidden_layers)

    def close(self) -> None:
        self._peer.close()


class OneCache(TransformersModel):
    """One cache, as in most programs: requests run one after the other, each on the common prefix with the last one."""

    name = "transformers, one cache"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._held: list[int] = []  # tokens in the cache
        self._cache: Any = DynamicCache()

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Log-probabilities after each context, computed one after the other."""
        rows = []
        for context in contexts:
            kept = self._crop(context)
            rows.append(self.logprobs_after(self.tensor([context[kept:]]), self._cache)[0])
            self._held = list(context)
        return np.stack(rows)

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """Greedy answers, generated one after the other."""
        answers = []
        for prompt in prompts:
            self._crop(prompt)
            answers.append(self.greedy(prompt, n, self._cache))
            self._held = [*prompt, *answers[-1][:-1]]  # generate does not push its last token
        return answers

    def forget(self) -> None:
        """Replaces the cache by an empty one."""
        self._held, self._cache = [], DynamicCache()

    def _crop(self, ids: Ids) -> int:
        """Crops the cache to its common prefix with `ids` without their last token; returns the tokens left in it."""
        kept = min(common_prefix(self._held, ids), len(ids) - 1)
        if kept < len(self._held):
            self._cache.crop(kept - len(self._held))
        return kept


class OneCacheRecords(OneCache):
    """One cache, with a record of each generated token like Elsewise's."""

    name = "transformers, one cache, records"

    def greedy(self, prompt: Ids, n: int, cache: Any = None) -> list[int]:
        """Generates `n` tokens and makes their records with torch from the logits that `generate` returns."""
        with torch.inference_mode():
            ids = self.tensor([prompt])
            out = self.generated(ids, n, past_key_values=cache, output_logits=True, return_dict_in_generate=True)
            answer = out.sequences[0, len(prompt) :]
            for logits, token in zip(out.logits, answer, strict=True):
                torch_records(logits, token[None])
        return [int(token) for token in answer]


class Stateless(TransformersModel):
    """No cache between requests: one unpadded forward per length of contexts, one `generate` per prompt."""

    name = "transformers, stateless"

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Log-probabilities after each context; contexts of equal length share a forward."""
        by_length: dict[int, list[int]] = {}
        for i, context in enumerate(contexts):
            by_length.setdefault(len(context), []).append(i)
        rows: dict[int, Float32] = {}
        for indices in by_length.values():
            rows |= zip(indices, self.logprobs_after(self.tensor([contexts[i] for i in indices])), strict=True)
        return np.stack([rows[i] for i in range(len(contexts))])

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """Greedy answers, generated one after the other."""
        return [self.greedy(prompt, n) for prompt in prompts]

    def forget(self) -> None:
        """Does nothing: there is no cache."""


class TorchBranches(TransformersModel):
    """Branches and beams by transformers' `generate`, without records."""

    def branches(self, prompt: Ids, n: int, tokens: int) -> Lap:
        """Draws `tokens` tokens in each of `n` continuations of the prompt."""
        ids, watch = self.tensor([prompt]), Stopwatch().start()
        self.generated(ids, tokens, do_sample=True, top_k=0, num_return_sequences=n)
        return watch.lap(n * tokens)

    def beams(self, prompt: Ids, width: int, tokens: int) -> Lap:
        """Beam search with `width` beams of `tokens` tokens."""
        ids, watch = self.tensor([prompt]), Stopwatch().start()
        out = self.generated(ids, tokens, num_beams=width, num_return_sequences=width)
        return watch.lap(width * tokens, out[:, len(prompt) :].tolist())


TOP = 10  # alternatives in a record
ROWS = 64  # rows of logits that are scored at a time: they fit into the CPU's cache


class TorchStreams(TransformersModel):
    """Greedy decoding and scoring by transformers or by bare forwards, on a model as `from_pretrained` gives it."""

    def generate(self, prompt: Ids, n: int, *, records: bool) -> Lap:
        """Decodes with transformers' `generate`; with `records`, makes top-10 records from the logits that it returns.

        The clock starts at the first token, which gets no record.
        """
        ids, mark = self.tensor([prompt]), _FirstToken()
        with torch.inference_mode():
            out = self.generated(ids, n, streamer=mark, output_logits=records, return_dict_in_generate=True)
            answer = out.sequences[0, len(prompt) :]
            if records:
                for logits, token in zip(out.logits[1:], answer[1:], strict=True):  # one batch of all would be slower
                    torch_records(logits, token[None])
        return mark.watch.lap(n - 1, [answer.tolist()])

    def loop(self, prompts: Sequence[Ids], n: int, *, records: bool) -> Lap:
        """Decodes prompts of one length in a bare loop: one forward per step for all rows, and argmax."""
        step = partial(self._push, cache=DynamicCache(), records=records)
        return timed_steps(step, self.tensor(list(prompts)), n)

    def together(self, prompts: Sequence[Ids], n: int, *, bare: bool = False) -> Lap:
        """Decodes `n` tokens after prompts of one length as one batch of `generate`, with a thread per physical core.

        With `bare`, a loop of forwards and argmax replaces `generate`.
        """
        torch.set_num_threads(psutil.cpu_count(logical=False) or 1)
        try:
            watch, ids = Stopwatch().start(), self.tensor(list(prompts))
            with torch.inference_mode():
                if bare:
                    cache, drawn = DynamicCache(), [ids]
                    while len(drawn) <= n:
                        drawn.append(self._push(drawn[-1], cache, records=False))
                    out = torch.cat(drawn, 1)
                else:
                    out = self.generated(ids, n)
            return watch.lap(len(prompts) * n, out[:, ids.shape[1] :].tolist())
        finally:
            torch.set_num_threads(1)

    def records(self, prompt: Ids) -> Callable[[int], Lap]:
        """Returns laps of records alone: a lap of n makes the record of the first token after the prompt n times."""
        with torch.inference_mode():
            logits = self.model(input_ids=self.tensor([prompt]), use_cache=False, logits_to_keep=1).logits[:, -1]
        chosen = logits.argmax(-1)

        def run(n: int) -> Lap:
            with torch.inference_mode():
                return timed(lambda _: torch_records(logits, chosen), n)

        return run

    def _push(self, tokens: Any, cache: Any, *, records: bool) -> Any:
        """Pushes tokens ``(rows, n)``; returns the likeliest token after each row, ``(rows, 1)``."""
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            chosen = logits.argmax(-1, keepdim=True)
            if records:
                torch_records(logits, chosen[:, 0])
            return chosen

    def batch(self, texts: Sequence[Ids], *, scores: bool) -> None:
        """Runs texts of one length as one batch: log-probabilities after each text or, with `scores`, scores of all tokens."""
        with torch.inference_mode():
            tokens = self.tensor(list(texts))
            if not scores:
                self.logprobs_after(tokens)
                return
            for row, logits in zip(tokens, self.model(input_ids=tokens, use_cache=False).logits, strict=True):
                _scored(logits[:-1], row[1:])

    def score(self, ids: Ids) -> Lap:
        """Scores a text by one forward: per position, the log-probability of the next token and the ten largest."""
        watch = Stopwatch().start()
        with torch.inference_mode():
            tokens = self.tensor([ids])
            logits = self.model(input_ids=tokens, use_cache=False).logits[0]
            for start in range(0, len(ids) - 1, ROWS):
                following = tokens[0, start + 1 : start + 1 + ROWS]
                _scored(logits[start : start + len(following)], following)
        return watch.lap(len(ids))


def _scored(logits: Any, following: Any) -> None:
    """Copies to the host, per row, the log-probability of the following token and the ten largest."""
    logprobs = torch.log_softmax(logits.float(), -1)
    values, found = logprobs.topk(TOP)
    for column in (logprobs.gather(1, following[:, None]), values, found):
        column.cpu().numpy()


def torch_records(logits: Any, chosen: Any) -> list[tuple[Any, ...]]:
    """The fields of Elsewise's records as plain Python values per token, from ``(n, vocab)`` logits with torch alone."""
    logprobs = torch.log_softmax(logits.float(), -1)
    own = logprobs.gather(1, chosen[:, None])
    rank = 1 + (logprobs > own).sum(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    values, ids = logprobs.topk(TOP)
    columns = (chosen, own[:, 0], rank, entropy, ids, values, values.exp().sum(-1))
    return list(zip(*(column.tolist() for column in columns), strict=True))


class _FirstToken(BaseStreamer):  # type: ignore[misc]  # transformers is not followed by mypy
    """A streamer that starts the clock at the first token of `generate`."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self._told = 0

    def put(self, value: Any) -> None:  # noqa: ARG002  # only the number of calls counts
        self._told += 1
        if self._told == 2:  # the first call has the prompt
            self.watch.start()

    def end(self) -> None:
        pass
