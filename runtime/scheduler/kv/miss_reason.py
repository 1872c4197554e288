"""Why the cached prefix of a request ended where it did."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.scheduler.jobs import Job
from runtime.trie import Lost, Trie


@dataclass(frozen=True, slots=True)
class LastRequest:
    """What is known when a request is placed; the reason is worked out when somebody asks.

    Args:
        job: Its path.
        wanted: Tokens that could have been taken from the cache: beyond them rows are wanted.
        depth: Tokens that were.
        matched: Tokens whose KV was held, whether or not one could go on after them.
        clock: Of `EvictionLog`, at that time.
        enabled: Whether there is a cache.
    """

    job: Job
    wanted: int
    depth: int
    matched: int
    clock: int
    enabled: bool

    def cause(self, trie: Trie) -> tuple[str, str]:
        """One word for programs (see `CacheReport.last_cause`) and a sentence for people."""
        at, total = self.depth, len(self.job.ids)
        if not self.enabled:
            return "off", "the cache is off (cache=False)"
        if at >= total - 1:
            return "whole", "the whole prompt was held"
        if at >= self.wanted:
            return "scores", f"its KV was held further; the scores after token {at:,} of {total:,} were never computed"
        if self.matched > at:
            return "checkpoint", (
                f"{self.matched:,} of {total:,} tokens are held, but the recurrent state only after token {at:,}: "
                "it is kept at checkpoints"
            )
        lost = trie.eviction_log.why(self.job.spans(self.job.ids[: at + 1]), self.clock)
        if lost is not Lost.NO:
            return _LOST[lost][0], f"token {at + 1:,} of {total:,} {_LOST[lost][1]}"
        if trie.strangers(self.job.spans(self.job.ids), at):
            return "other", (
                f"token {at + 1:,} of {total:,} is held for another model, adapter or salt: KV is never shared between them"
            )
        return "new", f"token {at + 1:,} of {total:,} is new: nothing after token {at:,} was computed before"


_LOST = {
    Lost.EVICTED: ("evicted", "was held and gave way to other text: raise kv_cache_bytes (set_kv_budget) to keep more"),
    Lost.CLEARED: ("cleared", "was held until the cache was cleared"),
    Lost.REFUSED: ("refused", "was computed before, but there was no room to keep it: raise kv_cache_bytes (set_kv_budget)"),
}
