"""Beam search over rows of log-probabilities: the choice of tokens at each step, the end, and the answers.

Independent of model and cache. The rules are those of transformers' `_beam_search` (5.x): of the best
``max(2, 1 + eos ids) * width`` continuations, those that end are hypotheses if they are among the first `width`; the best
`width` of the others run on. Under rules (`BeamRules`) only allowed continuations are candidates, as many as are needed for
`width` of them to run on. Sums are float64; among equals the better beam and then the lower id comes first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.beams import BeamOptions, BeamStep, Hypothesis
from runtime.errors import GrammarError
from runtime.grammar.masks import Mask
from runtime.numerics.ranking import Ranked, likeliest
from runtime.numerics.scoring import summarise_ranked
from runtime.numerics.select import masked
from runtime.records import Finish, Float32, Float64, Int32, Origin, Scores, TokenRun
from runtime.scheduler.beam.beam_rules import BeamRules, BeamState, shown
from runtime.text.utf8 import texts_of

_NONE: npt.NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class BeamNode:
    """One token of a beam and its scores; forked beams share the nodes before it."""

    before: BeamNode | None
    length: int  # tokens up to this one
    total: float  # the sum of their log-probabilities
    parent: int  # index of its beam in the step before
    token: int
    logprob: float
    rank: int
    after: Scores  # scores of all beams of the step before; row `parent` is the distribution of this token
    finish: Finish = Finish.NONE
    state: BeamState | None = None  # None without rules
    forced: bool = False  # the only token that the grammar allowed

    def chain(self) -> list[BeamNode]:
        """The beam's nodes from its first token on."""
        nodes: list[BeamNode] = []
        node: BeamNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.before
        return nodes[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Complete:
    """A finished hypothesis."""

    last: BeamNode
    score: float  # log-probability / length ** penalty


class BeamSearch:
    """The beams of one search and the hypotheses it keeps.

    Args:
        options: Checked.
        eos: Ids that end a hypothesis.
        limit: Most tokens of a hypothesis.
        at_limit: The finish of a hypothesis of this length.
        rules: Its grammar and stop strings, if any.

    Attributes:
        known: The number of likeliest tokens per row that a step uses; more under rules.
        running: The beams' last tokens, best first, to be pushed next.
        complete: The best hypotheses, at most `width`, best first.
        fresh: The hypotheses of the last step among them.
        done: Whether the search has ended.
    """

    def __init__(
        self, options: BeamOptions, eos: Set[int], limit: int, at_limit: Finish, rules: BeamRules | None = None
    ) -> None:
        self._options = options
        self._eos = frozenset() if options.ignore_eos else eos
        self._keep = max(2, 1 + len(self._eos)) * options.width  # candidates: `width` are left, whichever end
        self.known = max(self._keep, options.top_k)
        self._early = True if options.width == 1 else options.early_stopping  # one beam is greedy and stops at its first end
        self._limit = limit
        self._at_limit = at_limit
        self.rules = rules
        self.running: list[BeamNode] = []
        self.complete: list[Complete] = []
        self.fresh: list[Complete] = []
        self.done = False
        self.steps = 0

    def ready(self, patience: float) -> bool:
        """Whether all masks for `advance` are there; waits up to `patience` seconds for them."""
        if self.rules is None:
            return True
        deadline = time.monotonic() + patience
        states = [node.state for node in self.running] or [None]
        late = [state for state in states if not self.rules.ready(state, 0.0)]  # all are asked for: slow ones go side by side
        return all(self.rules.ready(state, max(deadline - time.monotonic(), 0.0)) for state in late)

    def advance(self, rows: Sequence[Ranked], entropy: Float64 | None) -> BeamStep:
        """Chooses the next tokens.

        Args:
            rows: Log-probabilities after the last tokens of the running beams; one row for the first step.
            entropy: ``(beams,)`` nats, if known.

        Raises:
            GrammarError: The grammar fails, or it stops all beams before any hypothesis is complete.
        """
        self.steps += 1
        width = self._options.width
        for row in rows:
            row.reach(self.known)
        found = max(len(row.ids) for row in rows)  # fewer than `known` in a small vocabulary
        after = summarise_ranked(rows, None, min(self.known, found), entropy)
        running: list[BeamNode] = []
        ended: list[Complete] = []
        candidates = self._candidates(after) if self.rules is None else self._allowed(self.rules, after, rows)
        for place, node in enumerate(candidates):
            if node.finish is Finish.NONE:
                running.append(node)
            elif place < width:
                ended.append(Complete(node, self._score(node.total, node.length)))
            if len(running) == width or (place + 1 == width and self.steps >= self._limit):
                break  # ends beyond `width` are no hypotheses, and at the limit all candidates end
        self.running = running
        if self.rules is not None:
            self.rules.begin(node.state for node in running)
        kept = sorted([*self.complete, *ended], key=lambda one: -one.score)[:width]  # stable: the earlier one stays
        self.fresh = [one for one in kept if one in ended]
        self.complete = kept
        self.done = self._over()
        if self.done and not kept:
            raise GrammarError(
                f"the grammar failed after {self.steps - 1:,} tokens: it allows nothing here, and no hypothesis is complete"
            )
        return BeamStep(
            self.steps,
            tuple(node.parent for node in self.running),
            tuple(node.token for node in self.running),
            tuple(node.total for node in self.running),
            len(self.complete),
        )

    def _candidates(self, after: Scores) -> Iterator[BeamNode]:
        """The best continuations of all beams, best first."""
        ids, values = after.top_ids[:, : self._keep], after.top_logprobs[:, : self._keep]  # (beams, candidates)
        before: list[BeamNode | None] = list(self.running) or [None]
        sums: Float64 = np.array([0.0 if node is None else node.total for node in before])
        totals = (values + sums[:, None]).ravel()
        beams = np.repeat(np.arange(len(ids)), ids.shape[1])
        order = np.lexsort((ids.ravel(), beams, -totals))[: self._keep]
        for at in order[np.isfinite(totals[order])].tolist():
            beam, column = divmod(at, ids.shape[1])
            token = int(ids[beam, column])
            rank = 1 + int(np.searchsorted(-values[beam], -values[beam, column]))  # entries strictly above
            finish = Finish.EOS if token in self._eos else self._at_limit if self.steps >= self._limit else Finish.NONE
            logprob = float(values[beam, column])
            yield BeamNode(before[beam], self.steps, float(totals[at]), beam, token, logprob, rank, after, finish)

    def _allowed(self, rules: BeamRules, after: Scores, rows: Sequence[Ranked]) -> Iterator[BeamNode]:
        """All continuations that the rules allow, best first."""
        before: list[BeamNode | None] = list(self.running) or [None]
        masks = [rules.allowed(None if node is None else node.state) for node in before]
        counts = [None if mask is None else int(np.count_nonzero(mask)) for mask in masks]
        sums: Float64 = np.array([0.0 if node is None else node.total for node in before])
        at_limit = self._at_limit if self.steps >= self._limit else Finish.NONE
        given, keep = 0, self._keep
        while True:
            best = [_likeliest_allowed(*each, keep) for each in zip(rows, masks, counts, strict=True)]
            beams = np.repeat(np.arange(len(best)), [len(ids) for ids, _ in best])
            tokens, values = (np.concatenate(parts) for parts in zip(*best, strict=True))
            if len(tokens) <= given:
                return
            totals = values + sums[beams]
            for at in np.lexsort((tokens, beams, -totals))[given:keep].tolist():
                beam, token = int(beams[at]), int(tokens[at])
                parent, (own, above) = before[beam], rows[beam].place_of(token)
                state = rules.after(None if parent is None else parent.state, token, at_limit)
                yield BeamNode(
                    parent,
                    self.steps,
                    float(totals[at]),
                    beam,
                    token,
                    float(own),
                    1 + above,
                    after,
                    state.finish,
                    state,
                    counts[beam] == 1,
                )
            given, keep = keep, 4 * keep

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self._options.length_penalty)

    def _over(self) -> bool:
        """Whether no beam runs on, or none can improve the complete hypotheses."""
        if not self.running:
            return True
        if len(self.complete) < self._options.width:
            return False
        if self._early is True:
            return True
        longest = self._early == "never" and self._options.length_penalty > 0.0
        reachable = self._score(self.running[0].total, self._limit if longest else self.steps)
        return reachable <= self.complete[-1].score


def _likeliest_allowed(row: Ranked, mask: Mask | None, count: int | None, keep: int) -> tuple[npt.NDArray[np.int64], Float32]:
    """Up to `keep` ids of a row, likeliest first, ties by id, and their values; only the `count` ids in its mask, if any."""
    if mask is None or count is None:
        row.reach(keep)
        return row.ids[:keep], row.values[:keep]
    ids = likeliest(masked(row.row, mask), min(keep, count)) if count else _NONE
    return ids, row.row[ids]


def ids_of(nodes: Sequence[BeamNode]) -> Int32:
    """The ids of a beam's tokens."""
    return np.array([node.token for node in nodes], np.int32)


def scores_of(nodes: Sequence[BeamNode], k: int) -> Scores:
    """The scores of a beam's tokens, with `k` alternatives each."""

    def gathered(column: str) -> list[Float32]:
        return [getattr(node.after, column)[node.parent] for node in nodes]

    n = len(nodes)
    top_ids = np.array([row[:k] for row in gathered("top_ids")], np.int32).reshape(n, -1)
    top_logprobs = np.array([row[:k] for row in gathered("top_logprobs")], np.float32).reshape(n, -1)
    covered = np.exp(top_logprobs).sum(axis=-1, dtype=np.float64)
    return Scores(
        logprob=np.array([node.logprob for node in nodes], np.float32),
        rank=np.array([node.rank for node in nodes], np.int32),
        entropy=np.array(gathered("entropy"), np.float32),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        covered_mass=np.minimum(covered, 1.0).astype(np.float32),
    )


def hypothesis(one: Complete, k: int, token_bytes: Sequence[bytes]) -> Hypothesis:
    """The answer for a complete beam."""
    nodes = one.last.chain()
    scores, n = scores_of(nodes, k), len(nodes)
    pieces = tuple(token_bytes[node.token] for node in nodes)
    texts = list(texts_of(pieces))
    if one.last.state is not None and one.last.state.cut:  # `cut` refers to the texts of the states
        texts = shown([node.state.text for node in nodes if node.state is not None], one.last.state.cut)
    finish = np.full(n, int(Finish.NONE), np.uint8)
    finish[-1] = int(one.last.finish)
    run = TokenRun(
        ids=ids_of(nodes),
        token_bytes=pieces,
        texts=tuple(texts),
        **scores.columns,
        origin=np.array([Origin.GRAMMAR if node.forced else Origin.SAMPLED for node in nodes], np.uint8),
        finish=finish,
        draw=np.full(n, np.nan, np.float32),
    )
    return Hypothesis(run, one.last.total, one.score)
