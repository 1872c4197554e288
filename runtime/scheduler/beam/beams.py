"""Running beam searches: each step is one forward for all beams of a search.

A beam is a slot in the workspace. Forking costs nothing, since slots share their parents; the slots of a pruned beam are
unused. Beams of one search share its prompt; hypotheses are published to the trie as they are completed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from runtime.numerics.ranking import RankRequest
from runtime.numerics.scoring import empty_scores
from runtime.options.generation import DEFAULT_MAX_TOKENS
from runtime.records import Finish, Int32, Scores
from runtime.scheduler.beam.beam_rules import BeamRules
from runtime.scheduler.beam.beam_search import BeamNode, BeamSearch, hypothesis, ids_of, scores_of
from runtime.scheduler.decode.decoding import DRAW_HEAD
from runtime.scheduler.decode.resume import bring_back
from runtime.scheduler.decode.rows import PATIENCE_SECONDS, DecodeVocabulary
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import BeamJob, settle
from runtime.scheduler.kv.workspace import NoRoomError, PartialForward, forward
from runtime.scheduler.prefill.distributions import Distribution, Distributions, non_finite, normalise
from runtime.scheduler.prefill.prefill import Prefill
from runtime.scheduler.workers import SchedulerContext

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Running:
    """One search: `places[i]` is the place of its i-th running beam, before that beam's last token."""

    job: BeamJob
    search: BeamSearch
    places: list[Prefill]
    reused: int
    computed: int  # prompt tokens
    started: float  # monotonic seconds
    undecided: Distributions | None = None  # after the last tokens, while the masks are missing

    def path(self, node: BeamNode | None) -> Int32:
        """The prompt and the beam's tokens up to a node."""
        joined: Int32 = np.concatenate([self.job.ids, ids_of(node.chain() if node else [])])
        return joined


class Beams:
    """All running searches. Owner thread only.

    Args:
        context: What the scheduler's parts share.
        vocabulary: The model's vocabulary.
        preempt: Preempts a background job or a prompt; False if there is none.
    """

    def __init__(self, context: SchedulerContext, vocabulary: DecodeVocabulary, preempt: Callable[[], bool]) -> None:
        self._cache, self._counters, self._request_metrics = context.cache, context.counters, context.request_metrics
        self._vocabulary, self._preempt = vocabulary, preempt
        self.running: list[Running] = []

    def start(self, prefill: Prefill, last: Distribution) -> None:
        """Starts the search of a complete prompt with the distribution after it."""
        job = prefill.job
        assert isinstance(job, BeamJob)
        room, asked = self._vocabulary.context - len(job.ids) + 1, job.options.max_tokens or DEFAULT_MAX_TOKENS
        at_limit = Finish.CONTEXT if room <= asked else Finish.LENGTH
        own = job.options.eos_token_ids
        eos = self._vocabulary.eos if own is None else frozenset(own)
        rules: BeamRules | None = None
        if job.options.stop or job.constraint is not None:
            ends = frozenset[int]() if job.options.ignore_eos else eos
            rules = BeamRules(job.options.stop, job.constraint, eos=ends, token_bytes=self._vocabulary.token_bytes)
        search = BeamSearch(job.options, eos, min(room, asked), at_limit, rules)
        one = Running(job, search, [prefill], prefill.reused, prefill.computed, time.monotonic())
        job.prompted = time.monotonic()
        self.running.append(one)
        self._counters.last_reused, self._counters.last_computed = prefill.reused, prefill.computed
        self._counters.first_token_seconds = time.monotonic() - job.submitted
        self._counters.publish(self._cache)  # before the first step, so that its reader sees the prompt's costs
        self._guard(one, lambda: self._choose(one, Distributions.known(last)))

    def step(self) -> None:
        """One more token for the beams of every search."""
        started = time.monotonic()
        for one in list(self.running):
            self._guard(one, partial(self._push, one))
        self._counters.decode_seconds += time.monotonic() - started

    def drop_cancelled(self) -> None:
        """Ends cancelled searches; their KV is published."""
        for one in [one for one in self.running if one.job.cancelled]:
            if one.search.running:  # else it waits for its first mask
                for place, node in zip(one.places, one.search.running, strict=True):
                    self._publish(one, place, node.before if one.undecided is None else node)
            self._leave(one, "cancelled")

    @property
    def stalled(self) -> bool:
        """Whether all searches wait for grammar masks."""
        return all(one.undecided is not None for one in self.running)

    def wait(self, seconds: float) -> None:
        """Waits up to `seconds` for the masks of the first search; called when all are `stalled`."""
        self.running[0].search.ready(seconds)

    def fail_all(self, error: BaseException) -> None:
        for one in list(self.running):
            self._fail(one, error)

    # ---- one search -------------------------------------------------------------------------------------------------

    def _guard(self, one: Running, act: Callable[[], None]) -> None:
        """Runs `act`; an error ends this search only."""
        try:
            act()
        except BaseException as error:  # noqa: BLE001  # the border: the caller gets it (a native panic is no Exception)
            if isinstance(error, NoRoomError) and self._preempt():
                return  # tried again at the next step
            self._fail(one, typed(error))

    def _fail(self, one: Running, error: BaseException) -> None:
        self._leave(one, "error")
        one.job.end(error)

    def _leave(self, one: Running, finish: str) -> None:
        self.running.remove(one)
        tokens = one.search.complete[0].last.length if one.search.complete else one.search.steps
        self._request_metrics.leave(
            one.job, finish, generated=tokens, reused=one.reused, computed=one.computed, first=one.started
        )
        if one.job.constraint is not None and one.search.rules is not None:
            self._counters.count_grammar(tokens, one.search.rules)
        self._counters.tokens_reused += one.reused
        for place in one.places:
            self._cache.leave(place)
        self._counters.publish(self._cache)  # before the answer, so that its reader sees the numbers

    def _push(self, one: Running) -> None:
        """Pushes the beams' last tokens and chooses the next ones, or waits with the choice for missing masks."""
        if one.undecided is not None:
            if one.search.ready(0.0):
                after, one.undecided = one.undecided, None
                self._choose(one, after)
            return
        nodes, workspace = one.search.running, one.places[0].workspace
        for place, node in zip(one.places, nodes, strict=True):
            if not place.workspace.resumable(place.slot):  # its recurrent state moved on with another job
                place.slot = bring_back(self._cache, place, one.path(node.before))
        base, slots = workspace.size, [place.slot for place in one.places]
        tokens = [node.token + one.places[0].tag for node in nodes]  # tagged
        try:
            for slot, token in zip(slots, tokens, strict=True):
                workspace.paths.add(slot, token)
            compute = partial(self._cache.backend.compute, request=self._request(one))
            after = normalise(forward([PartialForward(workspace, tokens, slots, range(len(tokens)))], compute), entropy=True)
            if not after.finite.all() and workspace.broken(base):
                raise non_finite(len(one.job.ids) + one.search.steps - 1)
        except BaseException:
            workspace.rollback(base)
            raise
        for i, place in enumerate(one.places):
            place.slot = base + i
        if not after.finite.all():
            raise non_finite(len(one.job.ids) + one.search.steps - 1)
        self._choose(one, after)

    def _request(self, one: Running) -> RankRequest | None:
        """The parts of rows on the device to copy to the host; None: whole rows for a grammar, or rows on the host."""
        if not self._cache.backend.on_device or one.job.constraint is not None:
            return None
        return RankRequest(max(DRAW_HEAD, one.search.known), ())

    def _choose(self, one: Running, after: Distributions) -> None:
        """Forks and prunes; at the end, answers. `after` has a row per place.

        If a mask is missing, a later step does it.
        """
        if not one.search.ready(PATIENCE_SECONDS):
            one.undecided = after.alone(range(len(after.ranked)))
            return
        step = one.search.advance(after.ranked, after.entropy)
        for complete in one.search.fresh:
            self._publish(one, one.places[complete.last.parent], complete.last.before)
        self._counters.tokens_generated += len(one.search.fresh) + (0 if one.search.done else len(one.search.running))
        if one.search.done:
            best = one.search.complete[: one.job.options.num_return]
            k = one.job.options.top_k
            answer = [hypothesis(each, k, self._vocabulary.token_bytes) for each in best]
            self._leave(one, best[0].last.finish.label or "done")
            one.job.on_step(step)
            settle(one.job.future, answer)
            return
        slots = [one.places[node.parent].slot for node in one.search.running]
        while len(one.places) < len(slots):
            one.places.append(self._cache.join(one.places[0], one.job))
        while len(one.places) > len(slots):
            self._cache.leave(one.places.pop())
        for place, slot in zip(one.places, slots, strict=True):
            place.slot = slot
        one.job.on_step(step)

    def _publish(self, one: Running, place: Prefill, last: BeamNode | None) -> None:
        """Publishes the KV and the scores of a beam up to the node of `place`; a failure does not end the search."""
        if last is None or not self._cache.enabled:
            return
        own: Prefill | None = None
        try:
            own = self._cache.join(place, one.job)
            nodes = last.chain()
            tokens = one.path(last)[own.lease.length :]
            unscored = len(tokens) - len(nodes)
            scores = scores_of(nodes[max(-unscored, 0) :], one.job.options.top_k)
            if unscored > 0:
                scores = Scores.concat([empty_scores(unscored, scores.top_ids.shape[1]), scores])
            self._cache.publish(own, tokens, own.slot, scores)
        except BaseException:  # a failed copy (no memory, a native panic) must not end the search
            log.exception("the KV of a beam could not be kept")
        finally:
            if own is not None:
                self._cache.leave(own)
