"""One running generation: from a distribution to a record, and when to end."""

from __future__ import annotations

import codecs
import math
import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from runtime.errors import GrammarError
from runtime.grammar.constraint import Constraint
from runtime.numerics.ranking import Ranked
from runtime.numerics.scoring import empty_scores
from runtime.records import Finish, Float32, Int32, Origin, Scores, TokenRun
from runtime.sampling.chain import Traced
from runtime.sampling.history import History
from runtime.sampling.report import Told, tabulated, told_of
from runtime.scheduler.decode.stops import StopFinder, own_end
from runtime.scheduler.jobs import GenerateJob

FIRST_CAPACITY = 16  # rows


DEFAULT_MAX_TOKENS = 512
PACE_SECONDS = 0.016  # tokens that come faster than a screen shows them are told together: each telling wakes a thread


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What ids stand for.

    Attributes:
        token_bytes: Bytes of every id.
        eos: Ids that end an answer; a server may tell of more while it answers.
        context: Tokens that the model can hold.
    """

    token_bytes: Sequence[bytes]
    eos: Set[int]
    context: int


class Stream:
    """Collects drawn tokens, holds back what may become a stop string, and knows when to end.

    `take` takes tokens in, `record` their numbers; `deliver` sends those that are ready, as one run.

    Args:
        job: The request.
        vocabulary: What ids stand for.
    """

    def __init__(self, job: GenerateJob, vocabulary: Vocabulary) -> None:
        self.job = job
        self._token_bytes = vocabulary.token_bytes
        self._eos = vocabulary.eos if job.eos is None else job.eos
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._room = vocabulary.context - len(job.ids)
        self._limit = job.options.max_tokens or DEFAULT_MAX_TOKENS
        self._stops = StopFinder(job.options.stop) if job.options.stop else None
        self._forced: set[int] = set()  # places of tokens beside which the grammar allowed no other
        self._texts: list[str] = []  # of the tokens that were not sent yet
        self._draws: list[float] = []  # of all tokens
        self._sent = 0  # tokens
        self._ready = 0  # tokens, the sent ones included
        self._told = -PACE_SECONDS  # monotonic seconds
        self.new_ids: list[int] = []
        self.position = len(job.ids)  # where in the path the next token stands
        self.scores = empty_scores(FIRST_CAPACITY, job.options.top_k)  # of all tokens that were recorded; and room for more
        self._recorded = 0  # tokens
        self._history = History(job.ids, job.sampler.window) if job.sampler.remembers else None
        self._stages: list[Told] = []  # of the tokens that were not sent yet, where they are asked for
        self._traced: deque[Traced] = deque()  # draws that are not recorded yet
        self.finish = Finish.NONE
        masked, traced, sampler = job.constraint is not None, job.options.stages, job.sampler
        self.heats = 1.0 if masked else sampler.heats[traced]  # see `Sampler.heats`; a grammar leaves no raw row whole
        self.reads_rows = masked or traced or sampler.edits  # whether each draw, or the report of it, reads the whole row

    @property
    def left(self) -> int:
        """Tokens that may come yet."""
        return min(self._limit, self._room + 1) - len(self.new_ids)

    def ready(self, patience: float) -> bool:
        """Whether `draw` would not wait for a mask, after so many seconds at most."""
        return self.job.constraint is None or self.job.constraint.ready(patience)

    def draw(self, logprobs: Float32 | Ranked, shift: float = 0.0) -> tuple[int, float]:
        """The next token and its random number, from ``(vocab,)`` log-probabilities; `shift` makes raw logits of them.

        Raises:
            GrammarError: The grammar fails here, or everything it allows is banned.
        """
        job, sampler = self.job, self.job.sampler
        allowed = None if job.constraint is None else job.constraint.allowed()  # (vocab,)
        choices = None if allowed is None else int(np.count_nonzero(allowed))
        try:
            if job.options.stages:
                traced = sampler.trace(logprobs, self.position, history=self._history, allowed=allowed, shift=shift)
                self._traced.append(traced)
                token, u = traced.token, traced.u
            else:
                if sampler.greedy and isinstance(logprobs, Ranked):
                    logprobs.reach(job.options.top_k)  # one search for the draw and the record
                token, u = sampler.draw(logprobs, self.position, history=self._history, allowed=allowed, shift=shift)
        except GrammarError as fault:
            raise GrammarError(
                f"all {choices:,} tokens that the grammar allows as token {len(self.new_ids) + 1:,} of the answer are banned; "
                "ban fewer, or allow more in the grammar"
            ) from fault
        if choices == 1:
            self._forced.add(len(self.new_ids))
            u = math.nan
        if job.constraint is not None:
            job.constraint.accept(token)
        return token, u

    def take(self, token: int, u: float) -> None:
        """Takes a drawn token in; `finish` says whether it was the last."""
        self.new_ids.append(token)
        self.position += 1
        if self._history is not None:
            self._history.append(token)
        self._draws.append(u)
        eos = token in self._eos and not self.job.options.ignore_eos
        if (eos or self.job.constraint is not None) and (end := own_end(self.job.constraint, eos=eos)):
            self.finish = end
        elif len(self.new_ids) >= self._room + 1:
            self.finish = Finish.CONTEXT
        elif len(self.new_ids) >= self._limit:
            self.finish = Finish.LENGTH
        self._texts.append(self._decode(self._token_bytes[token], final=bool(self.finish)))
        held = 0
        if self._stops is not None and not self.finish.by_eos:  # whose name is no text of the answer
            begins = self._stops.feed(self._texts[-1])
            if begins is not None:
                self._cut(self._tokens_of(len(self._texts[-1]) - begins))
            elif not self.finish:
                held = self._tokens_of(self._stops.pending)[0]
        self._ready = self._sent + len(self._texts) - held
        if self.job.constraint is not None and not self.finish:
            self.job.constraint.begin()  # while the forward runs

    def record(self, scores: Scores, row: int) -> None:
        """The numbers of the token taken last: row `row` of `scores`, which has as many alternatives at least as are kept."""
        n, into = self._recorded, self.scores
        k = into.top_ids.shape[1]
        if n == len(into.rank):
            into = self.scores = Scores.concat([into, empty_scores(n, k)])
        into.logprob[n] = scores.logprob[row]
        into.rank[n] = scores.rank[row]
        into.entropy[n] = scores.entropy[row]
        into.top_ids[n] = scores.top_ids[row, :k]
        into.top_logprobs[n] = scores.top_logprobs[row, :k]
        if scores.top_ids.shape[1] == k:
            into.covered_mass[n] = scores.covered_mass[row]
        else:
            into.covered_mass[n] = min(float(np.exp(scores.top_logprobs[row, :k]).sum(dtype=np.float64)), 1.0)
        self._recorded = n + 1
        if self._traced:
            self._stages.append(told_of(self._traced.popleft()))

    def _tokens_of(self, characters: int) -> tuple[int, int]:
        """How many of the last tokens hold the last `characters`, and how many they hold before these."""
        tokens = covered = 0
        while covered < characters:
            tokens += 1
            covered += len(self._texts[-tokens])
        return tokens, covered - characters

    def _cut(self, place: tuple[int, int]) -> None:
        """A stop string begins in one of the last tokens, after some characters: from there on nothing is shown."""
        tokens, kept = place
        text = self._texts[-tokens][:kept]
        self._texts[-tokens:] = [text]
        self.finish = Finish.STOP
        if self.job.constraint is not None and not self._whole_before(self.job.constraint, tokens, text.encode()):
            self.finish = Finish.STOP_INSIDE

    def _whole_before(self, constraint: Constraint, tokens: int, shown: bytes) -> bool:
        """Whether the answer without its last tokens, but for what is shown of the first of them, is a whole one."""
        begun = self._token_bytes[self.new_ids[-tokens]].startswith(shown)  # not so inside a character of several tokens
        return begun and constraint.could_end(tokens, shown)

    def deliver(self, *, paced: bool = False, ended: bool = False) -> None:
        """Sends what can no longer become part of a stop string.

        Args:
            paced: Unless something was sent just before.
            ended: And what was held back: nothing follows.
        """
        if ended:
            self._ready = self._sent + len(self._texts)
        n = self._ready - self._sent
        if n <= 0:
            return
        now = time.monotonic()
        if paced and now - self._told < PACE_SECONDS:
            return
        self._told = now
        part = slice(self._sent, self._ready)
        ids, scores = self.new_ids[part], self.scores
        finish = np.zeros(n, np.uint8)
        if n == len(self._texts):
            finish[-1] = int(self.finish)
        origin = np.full(n, int(Origin.SAMPLED), np.uint8)
        if self._forced:
            origin[[place in self._forced for place in range(self._sent, self._ready)]] = int(Origin.GRAMMAR)
        run = TokenRun(
            ids=np.array(ids, np.int32),
            token_bytes=tuple(map(self._token_bytes.__getitem__, ids)),
            texts=tuple(self._texts[:n]),
            logprob=scores.logprob[part].copy(),
            rank=scores.rank[part].copy(),
            entropy=scores.entropy[part].copy(),
            top_ids=scores.top_ids[part].copy(),
            top_logprobs=scores.top_logprobs[part].copy(),
            covered_mass=scores.covered_mass[part].copy(),
            origin=origin,
            finish=finish,
            draw=np.array(self._draws[part], np.float32),
            stages=tabulated(self._stages[:n]) if self._stages else None,
            vocabulary=self._token_bytes,
        )
        self._sent = self._ready
        del self._texts[:n], self._stages[:n]
        self.job.on_run(run)

    def new_tokens(self, start: int) -> Int32:
        """The generated ids from `start`."""
        return np.array(self.new_ids[start:], np.int32)
