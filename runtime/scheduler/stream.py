"""One running generation: from a distribution to a record, and when to end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from runtime.records import Finish, Float32, Int32, Origin, Scores, TokenRun
from runtime.scheduler.columns import GrowingScores
from runtime.scheduler.jobs import GenerateJob

DEFAULT_MAX_TOKENS = 512
PACE_SECONDS = 0.016  # tokens that come faster than a screen shows them are told together: each telling wakes a thread


class TextDecoder(Protocol):
    """Incremental UTF-8: bytes in, completed code points out."""

    def feed(self, data: bytes) -> str:
        """The text these bytes complete."""

    def flush(self) -> str:
        """What is left, malformed bytes as U+FFFD."""


class Stream:
    """Collects drawn tokens, holds back what may become a stop string, and knows when to end.

    `take` takes tokens in, `record` their numbers; `deliver` sends those that are ready, as one run.

    Args:
        job: The request.
        token_bytes: Bytes of every id.
        eos: Ids that end the answer.
        context: Tokens the model can hold.
        decoder: Fresh incremental decoder for the answer's text.
    """

    def __init__(
        self, job: GenerateJob, token_bytes: Sequence[bytes], eos: frozenset[int], context: int, decoder: TextDecoder
    ) -> None:
        self.job = job
        self._token_bytes = token_bytes
        self._eos = eos
        self._decoder = decoder
        self._room = context - len(job.ids)
        self._limit = job.options.max_tokens or DEFAULT_MAX_TOKENS
        self._texts: list[str] = []  # of the tokens that were not sent yet
        self._draws: list[float] = []  # of all tokens
        self._sent = 0  # tokens
        self._ready = 0  # tokens, the sent ones included
        self._told = -PACE_SECONDS  # monotonic seconds
        self.new_ids: list[int] = []
        self.scores = GrowingScores(job.options.top_k)
        self.finish = Finish.NONE

    @property
    def position(self) -> int:
        """Where in the path the next token stands."""
        return len(self.job.ids) + len(self.new_ids)

    @property
    def left(self) -> int:
        """Tokens that may come yet."""
        return min(self._limit, self._room + 1) - len(self.new_ids)

    def draw(self, logprobs: Float32) -> tuple[int, float]:
        """The next token and its random number, from ``(vocab,)`` log-probabilities."""
        return self.job.sampler.draw(logprobs, self.position)

    def take(self, token: int, u: float) -> None:
        """Takes a drawn token in; `finish` says whether it was the last."""
        self.new_ids.append(token)
        self._draws.append(u)
        self.finish = self._ending(token)
        text = self._decoder.feed(self._token_bytes[token])
        self._texts.append(text + self._decoder.flush() if self.finish else text)
        stops = self.job.options.stop
        if stops:
            self._cut_at_stop(stops)
        held = self._partial(stops) if stops and not self.finish else 0
        self._ready = self._sent + len(self._texts) - held

    def record(self, scores: Scores, row: int) -> None:
        """The numbers of the token taken last: row `row` of `scores`."""
        self.scores.append(scores, row)

    def _ending(self, token: int) -> Finish:
        if token in self._eos and not self.job.options.ignore_eos:
            return Finish.EOS
        if len(self.new_ids) >= self._room + 1:
            return Finish.CONTEXT
        if len(self.new_ids) >= self._limit:
            return Finish.LENGTH
        return Finish.NONE

    def _cut_at_stop(self, stops: Sequence[str]) -> None:
        text = "".join(self._texts)
        found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
        if not found:
            return
        cut, start = min(found), 0
        for i, piece in enumerate(self._texts):
            end = start + len(piece)
            if cut < end:
                self._texts[i:] = [piece[: cut - start]]
                self.finish = Finish.STOP
                return
            start = end

    def _partial(self, stops: Sequence[str]) -> int:
        """How many of the last held tokens hold text that could be the beginning of a stop string."""
        text = "".join(self._texts)
        longest = 0
        for stop in stops:
            for n in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:n]):
                    longest = max(longest, n)
                    break
        tokens, covered = 0, 0
        while covered < longest:
            tokens += 1
            covered += len(self._texts[-tokens])
        return tokens

    def deliver(self, *, paced: bool = False) -> None:
        """Sends what can no longer become part of a stop string; `paced`: unless something was sent just before."""
        n = self._ready - self._sent
        if n <= 0:
            return
        now = time.monotonic()
        if paced and now - self._told < PACE_SECONDS:
            return
        self._told = now
        part = slice(self._sent, self._ready)
        ids = self.new_ids[part]
        scores = self.scores[part]
        finish = np.zeros(n, np.uint8)
        if n == len(self._texts):
            finish[-1] = int(self.finish)
        run = TokenRun(
            ids=np.array(ids, np.int32),
            token_bytes=tuple(self._token_bytes[token] for token in ids),
            texts=tuple(self._texts[:n]),
            logprob=scores.logprob,
            rank=scores.rank,
            entropy=scores.entropy,
            top_ids=scores.top_ids,
            top_logprobs=scores.top_logprobs,
            covered_mass=scores.covered_mass,
            origin=np.full(n, int(Origin.SAMPLED), np.uint8),
            finish=finish,
            draw=np.array(self._draws[part], np.float32),
        )
        self._sent = self._ready
        del self._texts[:n]
        self.job.on_run(run)

    def flush(self) -> None:
        """Sends what is left, what was held back too: the stream ends."""
        self._ready = self._sent + len(self._texts)
        self.deliver()

    def new_tokens(self, start: int) -> Int32:
        """The generated ids from `start`."""
        return np.array(self.new_ids[start:], np.int32)
