"""Numbers for the prompt: every token that has none yet gets them, on the screen and on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.workbench.growing import EMPTY
from app.workbench.recorder import chunk
from app.workbench.session import OpenSession
from app.workbench.speaker import Speaker
from app.workbench.tree import Segment
from runtime import OnProgress, Priority, TokenRun
from storage import SessionStore

SCORED = ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass")


async def score_prompt(
    speaker: Speaker,
    store: SessionStore,
    session: OpenSession,
    segments: Sequence[Segment],
    prompt: Sequence[int],
    on_progress: OnProgress,
) -> None:
    """Scores `prompt`, the ids along `segments`, from its first token without numbers on.

    Raises:
        ContextOverflowError: The prompt does not fit; nothing was computed.
        StoreError: The numbers cannot be saved.
    """
    runs = [session.runs.get(segment.node.id, EMPTY)[: segment.stop] for segment in segments]
    unscored = np.flatnonzero(TokenRun.concat(runs).rank[1:] == 0) + 1  # nothing precedes the first token
    if not unscored.size:
        return
    first = int(unscored[0])
    scored = await speaker.model.score_run(
        prompt, start=first, adapters=speaker.adapters, priority=Priority.CHAT, on_progress=on_progress
    )
    at = 0
    for segment, run in zip(segments, runs, strict=True):
        start, at = at, at + len(run)
        if at > first and len(run):  # a turn that is text so far has none: its words are among the next one's tokens
            begin = max(first - start, 0)
            part = scored[max(start - first, 0) : at - first]
            await _keep(speaker, store, session, segment.node.id, begin, part)


async def _keep(speaker: Speaker, store: SessionStore, session: OpenSession, node_id: int, begin: int, part: TokenRun) -> None:
    run = session.runs[node_id]
    end = begin + len(part)
    fresh = replace(run[begin:end], **{name: getattr(part, name) for name in SCORED})
    session.runs[node_id] = TokenRun.concat([run[:begin], fresh, run[end:]])
    if session.tree.nodes[node_id].status != "open":  # an open node is written by its recorder
        await store.rescore(node_id, chunk(fresh, speaker.numbers, begin))
