"""What decoding and scoring cost with transformers itself: its `generate`, and the barest code around its forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

from benchmarks.clock import Lap, Stopwatch
from benchmarks.measure import Ids
from benchmarks.peers.transformers_model import TransformersModel

TOP = 10  # alternatives in a record
ROWS = 64  # of logits that are made into numbers at a time: what fits into a processor's cache


class TorchStreams(TransformersModel):
    """Greedy decoding by other means than ours, on a model as `from_pretrained` gives it."""

    def generate(self, prompt: Ids, n: int, *, records: bool) -> Lap:
        """The library's `generate`; with `records`, top-10 records are made from the logits that it returns.

        Of as many tokens as the clock ran for: not of the first.
        """
        ids, mark = self.tensor([prompt]), _FirstToken()
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=n,
                streamer=mark,
                output_logits=records,
                return_dict_in_generate=True,
            )
            answer = out.sequences[0, len(prompt) :]
            if records:
                for logits, token in zip(out.logits[1:], answer[1:], strict=True):  # all of them at once would be slower
                    torch_records(logits, token[None])
        return mark.watch.lap(n - 1, [answer.tolist()])

    def loop(self, prompts: Sequence[Ids], n: int, *, records: bool) -> Lap:
        """One forward per step for all prompts, which are of one length, and argmax; nothing around it."""
        watch, cache = Stopwatch(), DynamicCache()
        tokens = self._push(self.tensor(list(prompts)), cache, records=records)
        watch.start()
        drawn = self._steps(tokens, cache, n, records=records)
        return watch.lap(len(prompts) * (n - 1), drawn)

    def records(self, prompt: Ids) -> Callable[[int], Lap]:
        """Records alone: each lap makes that of the token behind a prompt, which is pushed once, n times."""
        with torch.inference_mode():
            logits = self.model(input_ids=self.tensor([prompt]), use_cache=False, logits_to_keep=1).logits[:, -1]
        chosen = logits.argmax(-1)

        def run(n: int) -> Lap:
            watch = Stopwatch()
            watch.start()
            with torch.inference_mode():
                for _ in range(n):
                    torch_records(logits, chosen)
            return watch.lap(n)

        return run

    def _steps(self, tokens: Any, cache: Any, n: int, *, records: bool) -> list[tuple[int, ...]]:
        """Every row's `n` tokens, the first of which are given ``(rows, 1)``."""
        drawn = [tokens[:, 0].tolist()]
        for _ in range(n - 1):
            tokens = self._push(tokens, cache, records=records)
            drawn.append(tokens[:, 0].tolist())
        return list(zip(*drawn, strict=True))

    def _push(self, tokens: Any, cache: Any, *, records: bool) -> Any:
        """The likeliest token after each row, ``(rows, 1)``."""
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            chosen = logits.argmax(-1, keepdim=True)
            if records:
                torch_records(logits, chosen[:, 0])
            return chosen

    def score(self, ids: Ids) -> Lap:
        """One forward over a text, and of each position the log-probability that followed and the ten largest."""
        watch = Stopwatch()
        watch.start()
        with torch.inference_mode():
            tokens = self.tensor([ids])
            logits = self.model(input_ids=tokens, use_cache=False).logits[0]
            for start in range(0, len(ids) - 1, ROWS):
                following = tokens[0, start + 1 : start + 1 + ROWS]
                logprobs = torch.log_softmax(logits[start : start + len(following)].float(), -1)
                values, found = logprobs.topk(TOP)
                for column in (logprobs.gather(1, following[:, None]), values, found):
                    column.cpu().numpy()
        return watch.lap(len(ids))


def torch_records(logits: Any, chosen: Any) -> list[tuple[Any, ...]]:
    """What our records hold, made from ``(n, vocab)`` logits with torch alone: plain Python values per token."""
    logprobs = torch.log_softmax(logits.float(), -1)
    own = logprobs.gather(1, chosen[:, None])
    rank = 1 + (logprobs > own).sum(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    values, ids = logprobs.topk(TOP)
    columns = (chosen, own[:, 0], rank, entropy, ids, values, values.exp().sum(-1))
    return list(zip(*(column.tolist() for column in columns), strict=True))


class _FirstToken(BaseStreamer):  # type: ignore[misc]  # transformers is not followed by mypy
    """Starts the clock when `generate` tells of its first token."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self._told = 0

    def put(self, value: Any) -> None:  # noqa: ARG002  # only that something came counts
        self._told += 1
        if self._told == 2:  # the prompt comes first
            self.watch.start()

    def end(self) -> None:
        pass
