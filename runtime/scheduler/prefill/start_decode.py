"""A prompt is in place: what goes on from it begins."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.scheduler.beam.beams import Beams
from runtime.scheduler.decode.decoding import Decoding
from runtime.scheduler.decode.rows import Guesses
from runtime.scheduler.decode.stream import Stream, Vocabulary
from runtime.scheduler.jobs import BeamJob, FanJob, GenerateJob, Job
from runtime.scheduler.kv.cache import Cache
from runtime.scheduler.metrics import RequestMetrics
from runtime.scheduler.prefill.distributions import Distribution
from runtime.scheduler.prefill.prefill import Prefill
from runtime.speculation.draft import Drafter
from runtime.speculation.lookup import PromptLookup


class DecodeStarter:
    """Makes streams, branches and searches of prompts. Owner thread only.

    Args:
        cache: Where the prompts stand.
        ledger: Told of branches that are dropped before they begin.
        decoding: Runs the streams.
        beams: Runs the searches.
        drafter: Guesses ahead, where there is a draft model.
        vocabulary: What ids stand for.
    """

    def __init__(
        self,
        cache: Cache,
        ledger: RequestMetrics,
        decoding: Decoding,
        beams: Beams,
        drafter: Drafter | None,
        vocabulary: Vocabulary,
    ) -> None:
        self._cache = cache
        self._ledger = ledger
        self._decoding = decoding
        self._beams = beams
        self._drafter = drafter
        self._vocabulary = vocabulary

    def start(self, prefill: Prefill, last: Distribution) -> None:
        """What goes on from a prompt begins, with what follows it.

        Raises:
            BaseException: It could not be; nothing of it stays.
        """
        if isinstance(prefill.job, BeamJob):
            self._beams.start(prefill, last.logprobs())
            return
        places = [prefill]
        try:
            jobs = self._continuations(prefill.job)
            streams = [self._stream(job) for job in jobs]
            for job in jobs[1:]:
                places.append(self._cache.join(prefill, job))  # noqa: PERF401  # one that fails must find those before it
            guesses = self._guesses(jobs[0]) if len(jobs) == 1 else None  # branches share their forwards instead
        except BaseException:  # the jobs are told by the caller
            for place in places:
                self._cache.leave(place)
            raise
        if streams:
            self._decoding.start(list(zip(streams, places, strict=True)), last, guesses)
        else:
            self._cache.leave(prefill)

    def _continuations(self, job: Job) -> Sequence[GenerateJob]:
        """What begins where the job's path ends; what of it was dropped meanwhile ends here."""
        if isinstance(job, GenerateJob):
            return [job]
        assert isinstance(job, FanJob)
        for dropped in (one for one in job.jobs if one.cancelled):
            self._ledger.leave(dropped, "cancelled")
            dropped.leave()
        return [one for one in job.jobs if not one.cancelled]

    def _stream(self, job: GenerateJob) -> Stream:
        words = self._vocabulary
        eos = words.eos if job.eos is None else job.eos
        return Stream(job, words.token_bytes, eos, words.context, words.new_decoder())

    def _guesses(self, job: GenerateJob) -> Guesses | None:
        speculative = job.options.speculative
        if speculative is None:
            return None
        guesses: Guesses
        if self._drafter is not None and speculative.method != "prompt_lookup":
            guesses = self._drafter.open()
        else:
            guesses = PromptLookup(speculative.prompt_lookup_max, speculative.prompt_lookup_min)
        guesses.extend(job.ids.tolist())
        return guesses
