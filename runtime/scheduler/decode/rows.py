"""Running generations: from a distribution to a record, and when each ends; one token for each per step.

Their tails are published to the trie in runs.
"""

from __future__ import annotations

import codecs
import math
import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from runtime.errors import GrammarError
from runtime.grammar.constraint import Constraint
from runtime.numerics.ranking import Ranked
from runtime.numerics.scoring import empty_scores, summarise_ranked
from runtime.options.generation import DEFAULT_MAX_TOKENS
from runtime.records import Finish, Float32, Int32, Origin, Scores, TokenRun
from runtime.sampling.chain import Traced
from runtime.sampling.history import History
from runtime.sampling.report import DrawReport, draw_report, report_table
from runtime.scheduler.decode.stops import StopFinder, own_end
from runtime.scheduler.jobs import GenerateJob
from runtime.scheduler.kv.workspace import PartialForward, Workspace
from runtime.scheduler.prefill.distributions import Distributions, non_finite
from runtime.scheduler.prefill.prefill import Prefill, by_workspace

FIRST_CAPACITY = 16  # rows
PACE_SECONDS = 0.016  # tokens that come faster than a screen shows them are told together: each telling wakes a thread
PUBLISH_TOKENS = 64  # a tail goes to the trie in runs of this many
COPY_OUT_TOKENS = 8  # generated tokens after which copying what stands beside the path costs less than to go on reading it
PATIENCE_SECONDS = 0.005  # that a step waits for masks, all together; rows whose mask comes later sit it out


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
        self._stages: list[DrawReport] = []  # of the tokens that were not sent yet, where they are asked for
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
            job.constraint.advance([token])
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
            self._stages.append(draw_report(self._traced.popleft()))

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
            stages=report_table(self._stages[:n]) if self._stages else None,
            vocabulary=self._token_bytes,
        )
        self._sent = self._ready
        del self._texts[:n], self._stages[:n]
        self.job.on_run(run)

    def new_tokens(self, start: int) -> Int32:
        """The generated ids from `start`."""
        return np.array(self.new_ids[start:], np.int32)


class Guesses(Protocol):
    """Guesses what a text goes on with; see `runtime.speculation`."""

    def extend(self, tokens: Sequence[int]) -> None:
        """The text has grown."""

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may come next."""

    def close(self) -> None:
        """The text is complete."""


@dataclass(slots=True, eq=False)
class Row:
    """A generation that decodes: its last slot, and the token that is to be pushed next, or what that is drawn from."""

    job: GenerateJob
    stream: Stream
    prefill: Prefill
    workspace: Workspace  # where it decodes
    pending: int = -1  # drawn, not yet pushed
    undrawn: Distributions | None = None  # one: what follows the last slot, until the grammar's mask is there
    pushed: int = 0  # generated tokens whose KV stands in the workspace
    tried: int = 0  # of them, when they were last offered to the trie
    next_copy_out: int = COPY_OUT_TOKENS  # at so many of them what stands beside the path is copied out next
    started: float = 0.0  # monotonic seconds of the first token
    guesses: Guesses | None = None  # of what comes next
    told: int = 0  # generated tokens that they know of
    invoked: bool = False  # its last token activates an adapter: the path is to be computed under another route
    outdated: list[slice] = field(default_factory=list)  # generated tokens whose numbers are not those of the route
    reach: int = 0  # guesses that are asked for next; 0: as many as may be
    drafted: int = 0  # guesses pushed so far
    accepted: int = 0  # of them, those that were right

    @property
    def slot(self) -> int:
        """The last slot in place; kept with the prefill, where the cache sees which rows stand where."""
        return self.prefill.slot

    @slot.setter
    def slot(self, slot: int) -> None:
        self.prefill.slot = slot

    @property
    def due_next(self) -> tuple[int, int]:
        """Where the next token hangs, and the token as workspaces know it: with the number of its adapters."""
        return self.prefill.slot, self.pending + self.prefill.tag

    @property
    def path(self) -> Int32:
        """The tokens that stand in the workspace."""
        joined: Int32 = np.concatenate([self.job.ids, self.stream.new_tokens(0)[: self.pushed]])
        return joined

    @property
    def due(self) -> bool:
        """Whether the tail is long enough to be published, and was not just refused."""
        return min(self.unpublished, self.pushed - self.tried) >= PUBLISH_TOKENS

    @property
    def unpublished(self) -> int:
        """Tokens in the workspace that the trie does not have yet."""
        return len(self.job.ids) + self.pushed - self.prefill.lease.length

    def take_scores(self, count: int) -> Scores:
        """The scores of the last `count` pushed tokens."""
        start = self.pushed - count
        scores = self.stream.scores[start : self.pushed]
        if not self.outdated:
            return scores
        rank = scores.rank.copy()
        for part in self.outdated:
            rank[max(part.start - start, 0) : max(part.stop - start, 0)] = 0  # not known
        return replace(scores, rank=rank)


@dataclass(slots=True, eq=False)
class Drawn:
    """Tokens that are drawn, and the distributions they come from: their records are still to be made."""

    after: Distributions
    rows: list[Row] = field(default_factory=list)  # a row that speculated may be there several times
    at: list[int] = field(default_factory=list)  # each row's place in `after`
    tokens: list[int] = field(default_factory=list)
    failures: dict[int, BaseException] = field(default_factory=dict)  # by a row's identity: it is to end with this
    recorded: bool = False
    begun: float = field(default_factory=time.monotonic)  # monotonic seconds

    def draw(self, row: Row, i: int) -> bool:
        """Draws a row's next token from `after`, in which it is row `i`; its stream says then whether it was the last.

        Returns:
            Whether it was drawn. Else the row waits for its grammar's mask, or `failures` has its error: of logits that are
            not finite `NonFiniteLogitsError`, of a grammar that fails `GrammarError` or what its library raised.
        """
        if not self.after.finite[i]:
            self.failures[id(row)] = non_finite(row.stream.position)
            return False
        if row.job.constraint is not None and not row.stream.ready(max(self.begun + PATIENCE_SECONDS - time.monotonic(), 0.0)):
            row.undrawn = self.after.alone([i])
            return False
        try:
            token, u = row.stream.draw(self.after.ranked[i], float(self.after.shift[i]))
        except BaseException as fault:  # noqa: BLE001  # nothing is left to draw from, or its grammar's library failed: it ends
            self.failures[id(row)] = fault
            return False
        row.started = row.started or time.monotonic()
        row.pending = token
        row.stream.take(token, u)
        row.invoked = row.job.routing is not None and row.job.invoked(row.job.routing, row.stream.new_ids)
        self.rows.append(row)
        self.at.append(i)
        self.tokens.append(token)
        return True

    def record(self) -> None:
        """Top-k, rank and entropy of every token, in one pass; a second call does nothing."""
        if self.recorded or not self.rows:
            return
        self.recorded = True
        entropy = self.after.entropy
        widest, ranked = 0, []
        for row, i in zip(self.rows, self.at, strict=True):
            widest = max(widest, row.job.options.top_k)
            ranked.append(self.after.ranked[i])
        known = None if entropy is None else entropy[np.array(self.at)]
        scores = summarise_ranked(ranked, np.array(self.tokens, np.int32), widest, known)
        for i, row in enumerate(self.rows):
            row.stream.record(scores, i)


def draw_late(row: Row) -> Drawn | None:
    """Draws the token whose mask was not there before; None while it is not."""
    after = row.undrawn
    if after is None or not row.stream.ready(0.0):
        return None
    row.undrawn = None
    drawn = Drawn(after)
    drawn.draw(row, 0)
    return drawn


def draw_along(row: Row, guesses: Sequence[int], after: Distributions) -> Drawn:
    """Draws as many tokens of a row as its guesses were right, and the one after them.

    Args:
        row: The generation, which has pushed its pending token and then the guesses.
        guesses: What was pushed after the pending token.
        after: Of each token pushed.
    """
    drawn = Drawn(after)
    for i, guess in enumerate([*guesses, None]):
        if not drawn.draw(row, i) or row.stream.finish or row.invoked or row.pending != guess:
            break
    return drawn


def narrow(scores: Scores, k: int) -> Scores:
    """The same with `k` alternatives."""
    if scores.top_ids.shape[1] == k:
        return scores
    covered = np.exp(scores.top_logprobs[:, :k]).sum(axis=-1, dtype=np.float64)
    covered[scores.rank == 0] = np.nan
    return Scores(
        scores.logprob,
        scores.rank,
        scores.entropy,
        scores.top_ids[:, :k].copy(),
        scores.top_logprobs[:, :k].copy(),
        np.minimum(covered, 1.0).astype(np.float32),
    )


class DecodeBatch:
    """The pending tokens of some rows, pushed in one forward: rows that say the same at the same place share a slot.

    Attributes:
        rows: Those of one workspace side by side.
        parts: The reserved slots, by workspace.
        bases: The number of the first slot in each workspace.
        at: Each row's place among the tokens of all parts.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        """Reserves the slots."""
        groups = by_workspace(rows)
        self.rows: list[Row] = []
        self.parts: list[PartialForward] = []
        self.bases: list[int] = [group[0].workspace.size for group in groups]
        self.at: list[int] = []
        self._slots: list[int] = []  # of each row
        start = 0
        for base, group in zip(self.bases, groups, strict=True):
            workspace = group[0].workspace
            fresh: dict[tuple[int, int], int] = {}
            places = [fresh.setdefault(row.due_next, len(fresh)) for row in group]
            for slot, token in fresh:
                workspace.paths.add(slot, token)
            self.parts.append(
                PartialForward(workspace, [token for _, token in fresh], [slot for slot, _ in fresh], range(len(fresh)))
            )
            self.rows += group
            self.at += [start + i for i in places]
            self._slots += [base + i for i in places]
            start += len(fresh)
        self.size = start  # tokens

    @property
    def temperatures(self) -> list[float]:
        """As `normalise` takes them."""
        return temperatures(self.rows, self.at, self.size)

    def rollback(self) -> None:
        """Forgets the slots."""
        for part, base in zip(self.parts, self.bases, strict=True):
            part.workspace.rollback(base)

    def broken(self) -> bool:
        """Whether any of them holds no numbers."""
        return any(part.workspace.broken(base) for part, base in zip(self.parts, self.bases, strict=True))

    def draw(self, after: Distributions, running: Sequence[Row]) -> Drawn:
        """Each row that still runs stands on its new slot, and draws what follows."""
        drawn = Drawn(after)
        for row, i, slot in zip(self.rows, self.at, self._slots, strict=True):
            if row in running:
                row.slot = slot
                row.pushed += 1
                drawn.draw(row, i)
        return drawn


def temperatures(rows: Sequence[Row], at: Sequence[int], n: int) -> list[float]:
    """At which temperature the draws will ask for the weight of each of `n` distributions; 1 where they will not.

    Args:
        rows: The generations.
        at: Each one's place among the distributions.
        n: How many these are.
    """
    asked = [1.0] * n
    for row, i in zip(rows, at, strict=True):
        if (temperature := row.stream.heats) != 1.0:
            asked[i] = temperature
    return asked
