"""Back to a place that was lost."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from runtime.records import Int32
from runtime.scheduler.decode.rows import Row
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.cache import Cache
from runtime.scheduler.prefill.distributions import non_finite
from runtime.scheduler.prefill.prefill import Prefill


def bring_back(cache: Cache, prefill: Prefill, path: Int32) -> int:
    """Brings what stood at the end of `path` back there: its recurrent state went along with another job.

    Returns:
        Its new slot.

    Raises:
        MemoryBudgetError: There is no room for what must be pushed again. The workspace is as it was.
        NonFiniteLogitsError: What was pushed again is no numbers. The workspace is as it was.
    """
    workspace = prefill.workspace
    slot, at = cache.regain(prefill, path)
    base, missing, parents = workspace.size, cache.tagged(prefill.job, path)[at:].tolist(), []
    try:
        for token in missing:
            parents.append(slot)
            slot = workspace.paths.add(slot, token)
        if missing:
            after = workspace.forward(missing, parents, [len(missing) - 1])
            if not np.isfinite(after).all() and workspace.broken(base):  # under other adapters than before, perhaps
                raise non_finite(len(path) - 1)
    except BaseException:
        workspace.rollback(base)  # what was loaded before stands in the pack as well
        raise
    return slot


def activate(cache: Cache, row: Row) -> int:
    """An answer has said an invocation sequence: from its beginning on, the path is computed under the adapter.

    So the answer goes on as it would as a prompt, cut anywhere and continued. What it was drawn from stays in its records;
    where that is not what the path gives now, it is not kept for others.

    Returns:
        The row's new slot.

    Raises:
        MemoryBudgetError: There is no room for what must be pushed again. The workspace is as it was.
    """
    job, prefill = row.job, row.prefill
    assert job.routing is not None  # else nothing is invoked
    whole: Int32 = np.concatenate([job.ids, row.stream.new_tokens()])
    before = _namespaces(job, whole)
    job.namespace, job.before = job.routing.route(whole)
    first = next(at for at, (old, new) in enumerate(zip(before, _namespaces(job, whole), strict=True)) if old != new)
    row.outdated.append(slice(max(first + 1 - len(job.ids), 0), len(row.stream.new_ids)))
    prefill.job = job  # where it was a fan's until now
    cache.retag(prefill)
    row.invoked = False
    return bring_back(cache, prefill, row.path)


def _namespaces(job: Job, ids: Int32) -> list[Hashable]:
    """Of every token."""
    return [name for name, part in job.spans(ids) for _ in range(len(part))]
