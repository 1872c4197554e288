"""Recomputation of a lost place: recurrent state that moved on, or a path under newly activated adapters."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from runtime.records import Int32
from runtime.scheduler.decode.rows import DecodeRow
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.prefix_cache import PrefixCache
from runtime.scheduler.kv.workspace import PartialForward, forward
from runtime.scheduler.prefill.distributions import non_finite
from runtime.scheduler.prefill.prefill import Prefill


def bring_back(cache: PrefixCache, prefill: Prefill, path: Int32) -> int:
    """Returns to the end of `path`, whose recurrent state moved on with another job: loads or pushes it again.

    Returns:
        The new slot.

    Raises:
        MemoryBudgetError: No room for the tokens to push again. The workspace is unchanged.
        NonFiniteLogitsError: The tokens pushed again give NaN or infinity. The workspace is unchanged.
    """
    workspace = prefill.workspace
    slot, at = cache.regain(prefill, path)
    base, missing, parents = workspace.size, cache.tagged(prefill.job, path)[at:].tolist(), []
    try:
        for token in missing:
            parents.append(slot)
            slot = workspace.paths.add(slot, token)
        if missing:
            after = forward([PartialForward(workspace, missing, parents, [len(missing) - 1])], cache.backend.compute)
            if not np.isfinite(after).all() and workspace.broken(base):  # possible under other adapters than before
                raise non_finite(len(path) - 1)
    except BaseException:
        workspace.rollback(base)  # loaded slots stay in the pack
        raise
    return slot


def activate(cache: PrefixCache, row: DecodeRow) -> int:
    """Activates an adapter after its invocation sequence: computes the path from the sequence on under the adapter.

    So the answer continues as if its text were a prompt. Its records keep the scores of the earlier route; these are not
    published for the new path.

    Returns:
        The row's new slot.

    Raises:
        MemoryBudgetError: No room for the tokens to push again. The workspace is unchanged.
    """
    job, prefill = row.job, row.prefill
    assert job.routing is not None  # else nothing is invoked
    whole: Int32 = np.concatenate([job.ids, row.stream.new_tokens()])
    before = _namespaces(job, whole)
    job.namespace, job.before = job.routing.route(whole)
    first = next(at for at, (old, new) in enumerate(zip(before, _namespaces(job, whole), strict=True)) if old != new)
    row.outdated.append(slice(max(first + 1 - len(job.ids), 0), len(row.stream.new_ids)))
    prefill.job = job  # instead of its `BranchesJob`, if it has one
    cache.retag(prefill)
    row.invoked = False
    return bring_back(cache, prefill, row.path)


def _namespaces(job: Job, ids: Int32) -> list[Hashable]:
    """The namespace of every token."""
    return [name for name, part in job.spans(ids) for _ in range(len(part))]
