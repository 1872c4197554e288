"""The state of running generations: draws, their records, stop conditions, and batches of rows for one forward."""

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
PACE_SECONDS = 0.016  # tokens that arrive faster than a screen shows them are sent together: each send wakes a thread
PUBLISH_TOKENS = 64  # generated tokens are published to the trie in runs of this length
COPY_OUT_TOKENS = 8  # generated tokens after which copying unused slots out of the pack is cheaper than attending to them
PATIENCE_SECONDS = 0.005  # total wait of a step for grammar masks; rows with a later mask skip the step


@dataclass(frozen=True, slots=True)
class DecodeVocabulary:
    """The vocabulary and the limits of the model.

    Attributes:
        token_bytes: The bytes of every id.
        eos: Ids that end an answer; a server may add some during an answer.
        context: Context length in tokens.
    """

    token_bytes: Sequence[bytes]
    eos: Set[int]
    context: int


class Stream:
    """Draws and collects tokens, holds back a possible beginning of a stop string, and decides when to end.

    `take` adds a token, `record` its scores; `deliver` sends the ready tokens as one run.

    Args:
        job: The request.
        vocabulary: The model's vocabulary.
    """

    def __init__(self, job: GenerateJob, vocabulary: DecodeVocabulary) -> None:
        self.job = job
        self._token_bytes = vocabulary.token_bytes
        self._eos = vocabulary.eos if job.eos is None else job.eos
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._room = vocabulary.context - len(job.ids)
        self._limit = job.options.max_tokens or DEFAULT_MAX_TOKENS
        self._stops = StopFinder(job.options.stop) if job.options.stop else None
        self._forced: set[int] = set()  # indices of tokens that were the only one the grammar allowed
        self._texts: list[str] = []  # texts of the tokens not sent yet
        self._draws: list[float] = []  # random numbers of all tokens
        self._sent = 0  # tokens
        self._ready = 0  # tokens, including the sent ones
        self._sent_at = -PACE_SECONDS  # monotonic seconds
        self.new_ids: list[int] = []
        self.position = len(job.ids)  # position of the next token in the path
        self.scores = empty_scores(FIRST_CAPACITY, job.options.top_k)  # scores of the recorded tokens, with spare rows
        self._recorded = 0  # tokens
        self._history = History(job.ids, job.sampler.window) if job.sampler.remembers else None
        self._stages: list[DrawReport] = []  # reports of the tokens not sent yet, if the request asks for them
        self._traced: deque[Traced] = deque()  # draws not recorded yet
        self.finish = Finish.NONE
        masked, traced, sampler = job.constraint is not None, job.options.stages, job.sampler
        self.heats = 1.0 if masked else sampler.heats[traced]  # see `Sampler.heats`; a grammar always masks the row
        self.reads_rows = masked or traced or sampler.edits  # whether each draw, or its report, reads the whole row

    @property
    def left(self) -> int:
        """The most tokens that may still come."""
        return min(self._limit, self._room + 1) - len(self.new_ids)

    def ready(self, patience: float) -> bool:
        """Whether the grammar mask for `draw` is there; waits up to `patience` seconds for it."""
        return self.job.constraint is None or self.job.constraint.ready(patience)

    def draw(self, logprobs: Float32 | Ranked, shift: float = 0.0) -> tuple[int, float]:
        """The next token and its random number, from ``(vocab,)`` log-probabilities; adding `shift` gives raw logits.

        Raises:
            GrammarError: The grammar fails, or all tokens that it allows are banned.
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
        """Adds a drawn token; sets `finish` if it is the last."""
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
        if self._stops is not None and not self.finish.by_eos:  # the name of an eos token is no text of the answer
            begins = self._stops.feed(self._texts[-1])
            if begins is not None:
                self._cut(self._tokens_of(len(self._texts[-1]) - begins))
            elif not self.finish:
                held = self._tokens_of(self._stops.pending)[0]
        self._ready = self._sent + len(self._texts) - held

    def record(self, scores: Scores, row: int) -> None:
        """Stores row `row` of `scores` for the next token to record; `scores` has at least as many alternatives as are kept."""
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
        """The number of final tokens that contain the last `characters`, and of their characters before these."""
        tokens = covered = 0
        while covered < characters:
            tokens += 1
            covered += len(self._texts[-tokens])
        return tokens, covered - characters

    def _cut(self, place: tuple[int, int]) -> None:
        """Cuts the text at a stop string, given where it begins: a token counted from the end, and its characters to keep."""
        tokens, kept = place
        text = self._texts[-tokens][:kept]
        self._texts[-tokens:] = [text]
        self.finish = Finish.STOP
        if self.job.constraint is not None and not self._whole_before(self.job.constraint, tokens, text.encode()):
            self.finish = Finish.STOP_INSIDE

    def _whole_before(self, constraint: Constraint, tokens: int, shown: bytes) -> bool:
        """Whether the answer up to its last `tokens`, plus the bytes `shown` of the first of them, satisfies the grammar."""
        begun = self._token_bytes[self.new_ids[-tokens]].startswith(shown)  # false inside a character of several tokens
        return begun and constraint.could_end(tokens, shown)

    def deliver(self, *, paced: bool = False, ended: bool = False) -> None:
        """Sends the tokens that cannot belong to a stop string any more.

        Args:
            paced: Sends nothing if less than `PACE_SECONDS` have passed since the last run.
            ended: Sends the held back tokens too.
        """
        if ended:
            self._ready = self._sent + len(self._texts)
        n = self._ready - self._sent
        if n <= 0:
            return
        now = time.monotonic()
        if paced and now - self._sent_at < PACE_SECONDS:
            return
        self._sent_at = now
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

    def new_tokens(self) -> Int32:
        return np.array(self.new_ids, np.int32)


class Proposer(Protocol):
    """Drafts the continuation of a text; see `SpeculativeOptions`."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the text."""

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may come next."""

    def close(self) -> None:
        """Frees its memory: the text is complete."""


@dataclass(slots=True, eq=False)
class DecodeRow:
    """A decoding generation: its last slot, and its next token or, while it waits for a mask, its next distribution."""

    job: GenerateJob
    stream: Stream
    prefill: Prefill  # its `slot` is the last slot: the cache reads it there
    workspace: Workspace
    pending: int = -1  # token drawn, not yet pushed
    undrawn: Distributions | None = None  # one row: the distribution after the last slot, while it waits for a grammar mask
    pushed: int = 0  # generated tokens with KV in the workspace
    tried: int = 0  # `pushed` at the last attempt to publish
    next_copy_out: int = COPY_OUT_TOKENS  # `pushed` at which unused slots are copied out of the pack next
    started: float = 0.0  # monotonic seconds of the first token
    proposer: Proposer | None = None  # None without speculation
    proposer_tokens: int = 0  # generated tokens passed to `proposer`
    invoked: bool = False  # its last token activates an adapter: the path must be computed under another route
    outdated: list[slice] = field(default_factory=list)  # generated tokens with scores of an earlier route
    reach: int = 0  # tokens to draft next; 0: as many as allowed
    drafted: int = 0  # drafted tokens so far
    accepted: int = 0  # accepted ones so far

    @property
    def path(self) -> Int32:
        """The tokens with KV in the workspace."""
        joined: Int32 = np.concatenate([self.job.ids, self.stream.new_tokens()[: self.pushed]])
        return joined

    @property
    def due(self) -> bool:
        """Whether `PUBLISH_TOKENS` are unpublished, and as many are new since the last attempt."""
        return min(self.unpublished, self.pushed - self.tried) >= PUBLISH_TOKENS

    @property
    def unpublished(self) -> int:
        """Tokens in the workspace that are not in the trie yet."""
        return len(self.job.ids) + self.pushed - self.prefill.lease.length

    def take_scores(self, count: int) -> Scores:
        """The scores of the last `count` pushed tokens."""
        start = self.pushed - count
        scores = self.stream.scores[start : self.pushed]
        if not self.outdated:
            return scores
        rank = scores.rank.copy()
        for part in self.outdated:
            rank[max(part.start - start, 0) : max(part.stop - start, 0)] = 0  # unknown
        return replace(scores, rank=rank)


@dataclass(slots=True, eq=False)
class Drawn:
    """The tokens drawn after one forward, with their distributions, until they are recorded."""

    after: Distributions
    rows: list[DecodeRow] = field(default_factory=list)  # a row may occur several times, after speculation
    at: list[int] = field(default_factory=list)  # index in `after` for each of `rows`
    tokens: list[int] = field(default_factory=list)  # for each of `rows`
    failures: dict[int, BaseException] = field(default_factory=dict)  # by id() of a row: the error that ends it
    recorded: bool = False
    begun: float = field(default_factory=time.monotonic)  # monotonic seconds

    def draw(self, row: DecodeRow, i: int) -> bool:
        """Draws a row's next token from row `i` of `after`.

        Returns:
            Whether a token was drawn. Else the row waits for its grammar mask, or `failures` has its error:
            `NonFiniteLogitsError` for logits that are not finite, `GrammarError` or an error of its library for a grammar.
        """
        if not self.after.finite[i]:
            self.failures[id(row)] = non_finite(row.stream.position)
            return False
        if row.job.constraint is not None and not row.stream.ready(max(self.begun + PATIENCE_SECONDS - time.monotonic(), 0.0)):
            row.undrawn = self.after.alone([i])
            return False
        try:
            token, u = row.stream.draw(self.after.ranked[i], float(self.after.shift[i]))
        except BaseException as fault:  # noqa: BLE001  # no token is left, or the grammar library failed: it ends
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
        """Records top-k, rank and entropy of all tokens in one pass; a second call does nothing."""
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


def draw_deferred(row: DecodeRow) -> Drawn | None:
    """Draws the token of a row that waited for its mask; None if it does not wait, or still does."""
    after = row.undrawn
    if after is None or not row.stream.ready(0.0):
        return None
    row.undrawn = None
    drawn = Drawn(after)
    drawn.draw(row, 0)
    return drawn


def verify_draft(row: DecodeRow, draft: Sequence[int], after: Distributions) -> Drawn:
    """Draws a row's tokens as long as they match the drafted ones, and one more.

    Args:
        row: The generation, which has pushed its pending token and then the drafted ones.
        draft: The drafted tokens.
        after: The distributions after the pushed tokens.
    """
    drawn = Drawn(after)
    for i, token in enumerate([*draft, None]):
        if not drawn.draw(row, i) or row.stream.finish or row.invoked or row.pending != token:
            break
    return drawn


def narrow(scores: Scores, k: int) -> Scores:
    """The scores with the first `k` alternatives only."""
    if scores.top_ids.shape[1] == k:
        return scores
    covered = np.exp(scores.top_logprobs[:, :k]).sum(axis=-1, dtype=np.float64)
    covered[scores.rank == 0] = np.nan
    return replace(
        scores,
        top_ids=scores.top_ids[:, :k].copy(),
        top_logprobs=scores.top_logprobs[:, :k].copy(),
        covered_mass=np.minimum(covered, 1.0).astype(np.float32),
    )


class DecodeBatch:
    """The pending tokens of some rows for one forward; rows with the same parent slot and token share a slot.

    Attributes:
        rows: Grouped by workspace.
        parts: The reserved slots, by workspace.
        bases: The number of the first new slot in each workspace.
        at: Index of each row's token among the tokens of all parts.
    """

    def __init__(self, rows: Sequence[DecodeRow]) -> None:
        """Reserves the slots."""
        groups = by_workspace(rows)
        self.rows: list[DecodeRow] = []
        self.parts: list[PartialForward] = []
        self.bases: list[int] = [group[0].workspace.size for group in groups]
        self.at: list[int] = []
        self._slots: list[int] = []  # slot of each row
        start = 0
        for base, group in zip(self.bases, groups, strict=True):
            workspace = group[0].workspace
            fresh: dict[tuple[int, int], int] = {}  # (parent slot, tagged token) -> index
            places = [fresh.setdefault((row.prefill.slot, row.pending + row.prefill.tag), len(fresh)) for row in group]
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
        """The temperatures for `normalise`, one for each token."""
        return temperatures(self.rows, self.at, self.size)

    def rollback(self) -> None:
        for part, base in zip(self.parts, self.bases, strict=True):
            part.workspace.rollback(base)

    def broken(self) -> bool:
        """Whether any slot holds NaN or infinity."""
        return any(part.workspace.broken(base) for part, base in zip(self.parts, self.bases, strict=True))

    def draw(self, after: Distributions, running: Sequence[DecodeRow]) -> Drawn:
        """Moves each running row to its new slot and draws its next token."""
        drawn = Drawn(after)
        for row, i, slot in zip(self.rows, self.at, self._slots, strict=True):
            if row in running:
                row.prefill.slot = slot
                row.pushed += 1
                drawn.draw(row, i)
        return drawn


def temperatures(rows: Sequence[DecodeRow], at: Sequence[int], n: int) -> list[float]:
    """The temperatures at which draws need the total mass of `n` distributions; 1 where they do not.

    Args:
        rows: The generations.
        at: Index of each row's distribution.
        n: Distributions.
    """
    asked = [1.0] * n
    for row, i in zip(rows, at, strict=True):
        if (temperature := row.stream.heats) != 1.0:
            asked[i] = temperature
    return asked
