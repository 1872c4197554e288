"""Back to a place that was lost."""

from __future__ import annotations

from runtime.records import Int32
from runtime.scheduler.cache import Cache
from runtime.scheduler.counters import Counters
from runtime.scheduler.prefill import Prefill


def bring_back(cache: Cache, counters: Counters, prefill: Prefill, path: Int32) -> int:
    """Brings what stood at the end of `path` back there: its recurrent state went along with another job.

    Returns:
        Its new slot.

    Raises:
        MemoryBudgetError: There is no room for what must be pushed again. The workspace is as it was.
    """
    workspace = prefill.workspace
    slot, at = cache.regain(prefill, path)
    base, missing, parents = workspace.size, cache.tagged(prefill.job, path)[at:].tolist(), []
    try:
        for token in missing:
            parents.append(slot)
            slot = workspace.append(slot, token)
        if missing:
            workspace.forward(missing, parents, [])
    except BaseException:
        workspace.rollback(base)  # what was loaded before stands in the pack as well
        raise
    counters.tokens_computed += len(missing)
    return slot
