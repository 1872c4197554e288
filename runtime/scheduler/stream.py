"""One running generation: from a distribution to a record, and when to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from runtime.records import Finish, Float32, Int32, Origin, Scores, TokenRun
from runtime.scheduler.jobs import GenerateJob

DEFAULT_MAX_TOKENS = 512


class TextDecoder(Protocol):
    """Incremental UTF-8: bytes in, completed code points out."""

    def feed(self, data: bytes) -> str:
        """The text these bytes complete."""

    def flush(self) -> str:
        """What is left, malformed bytes as U+FFFD."""


class Stream:
    """Turns drawn tokens into runs, holds back what may become a stop string, and knows when to end.

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
        self._held: list[TokenRun] = []
        self.new_ids: list[int] = []
        self.scores: list[Scores] = []
        self.finish = Finish.NONE

    @property
    def position(self) -> int:
        """Where in the path the next token stands."""
        return len(self.job.ids) + len(self.new_ids)

    def draw(self, logprobs: Float32) -> tuple[int, float]:
        """The next token and its random number, from ``(vocab,)`` log-probabilities."""
        return self.job.sampler.draw(logprobs, self.position)

    def accept(self, token: int, u: float, scores: Scores) -> None:
        """Records a drawn token; `finish` says whether it was the last. `scores` has one row."""
        self.new_ids.append(token)
        self.scores.append(scores)
        data = self._token_bytes[token]
        text = self._decoder.feed(data)
        finish = self._ending(token)
        if finish:
            text += self._decoder.flush()
        run = TokenRun(
            ids=np.array([token], np.int32),
            token_bytes=(data,),
            texts=(text,),
            logprob=scores.logprob,
            rank=scores.rank,
            entropy=scores.entropy,
            top_ids=scores.top_ids,
            top_logprobs=scores.top_logprobs,
            covered_mass=scores.covered_mass,
            origin=np.array([int(Origin.SAMPLED)], np.uint8),
            finish=np.array([int(finish)], np.uint8),
            draw=np.array([u], np.float32),
        )
        self.finish = finish
        self._held.append(run)
        self._release()

    def _ending(self, token: int) -> Finish:
        if token in self._eos and not self.job.options.ignore_eos:
            return Finish.EOS
        if len(self.new_ids) >= self._room + 1:
            return Finish.CONTEXT
        if len(self.new_ids) >= self._limit:
            return Finish.LENGTH
        return Finish.NONE

    def _release(self) -> None:
        """Sends what can no longer become part of a stop string."""
        stops = self.job.options.stop
        if stops:
            self._cut_at_stop(stops)
            keep = 0 if self.finish else self._partial(stops)
        else:
            keep = 0
        ready = len(self._held) - keep
        if ready > 0:
            self.job.on_run(TokenRun.concat(self._held[:ready]))
            del self._held[:ready]

    def _cut_at_stop(self, stops: Sequence[str]) -> None:
        text = "".join(run.text for run in self._held)
        found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
        if not found:
            return
        cut, start = min(found), 0
        for i, run in enumerate(self._held):
            end = start + len(run.text)
            if cut < end:
                finish = np.array([int(Finish.STOP)], np.uint8)
                self._held[i] = replace(run, texts=(run.text[: cut - start],), finish=finish)
                del self._held[i + 1 :]
                self.finish = Finish.STOP
                return
            start = end

    def _partial(self, stops: Sequence[str]) -> int:
        """How many of the last held tokens hold text that could be the beginning of a stop string."""
        text = "".join(run.text for run in self._held)
        longest = 0
        for stop in stops:
            for n in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:n]):
                    longest = max(longest, n)
                    break
        tokens, covered = 0, 0
        while covered < longest:
            tokens += 1
            covered += len(self._held[-tokens].text)
        return tokens

    def flush(self) -> None:
        """Sends what is held back when the stream ends for another reason."""
        if self._held:
            self.job.on_run(TokenRun.concat(self._held))
            self._held.clear()

    def new_tokens(self, start: int) -> Int32:
        """The generated ids from `start`."""
        return np.array(self.new_ids[start:], np.int32)
