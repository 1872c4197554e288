"""Writes streamed tokens to the disk in the background: at most a second of an answer can be lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from app.workbench.setup.session_adapters import AdaptedModel
from app.workbench.tree.runs import EMPTY
from app.workbench.tree.session import WholeSession
from app.workbench.tree.tree import PathSegment
from runtime import Finish, OnProgress, Origin, Priority, TokenRun
from storage import NewChunk, SessionStore, StoreError

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.4  # well below the promised second, for slow disks


class Recorder:
    """Appends a node's tokens to the store in the background, in order.

    Args:
        store: The store.
        node_id: An open node.
        fingerprint: The model that made the tokens.
    """

    def __init__(self, store: SessionStore, node_id: int, fingerprint: str) -> None:
        self._store = store
        self._node_id = node_id
        self._fingerprint = fingerprint
        self._stored = 0
        self._pending: list[TokenRun] = []
        self._last: TokenRun | None = None  # the last token
        self._lock = asyncio.Lock()
        self._task = asyncio.create_task(self._flush_now_and_then(), name=f"record node {node_id}")

    def add(self, run: TokenRun) -> None:
        if len(run):
            self._pending.append(run)
            self._last = run[-1:]

    async def rescore(self, run: TokenRun, first: int) -> None:
        """Writes the numbers of tokens that were added without them; `first` is their place in the node.

        Raises:
            StoreError: They cannot be written; the tokens stay without numbers.
        """
        await self._flush_whole()
        await self._store.rescore(self._node_id, chunk(run, self._fingerprint, first))

    async def close(self, finish: Finish = Finish.NONE) -> None:
        """Writes the rest; durable on return. Can be retried.

        Args:
            finish: The reason if the model did not end the answer itself; stored with its last token.

        Raises:
            StoreError: The rest cannot be written now; it is kept.
        """
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._flush()
        last = None if self._last is None else ended_by(self._last, finish)
        if last is not None and last is not self._last:  # adds a newer copy of the token: written rows never change
            await self._store.rescore(self._node_id, chunk(last, self._fingerprint, self._stored - 1))
            self._last = last

    async def _flush_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self._flush_whole()
            except StoreError as fault:  # retried with the next tokens; `close` reports a lasting fault
                log.info("node %d cannot be saved yet: %s", self._node_id, fault)

    async def _flush_whole(self) -> None:
        """Writes the pending tokens; a write under way is completed even if this is cancelled."""
        flushing = asyncio.ensure_future(self._flush())
        flushing.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieves it: `close` may not wait
        await asyncio.shield(flushing)

    async def _flush(self) -> None:
        async with self._lock:
            if not self._pending:
                return
            run = TokenRun.concat(self._pending)
            await self._store.append_chunk(self._node_id, chunk(run, self._fingerprint, self._stored))
            self._stored += len(run)
            rest = TokenRun.concat(self._pending)[len(run) :]  # arrived during the write
            self._pending = [rest] if len(rest) else []


def ended_by(run: TokenRun, finish: Finish) -> TokenRun:
    """Sets the finish of the last token, unless it has one or is the template's."""
    if finish is Finish.NONE or not len(run) or run.finish[-1] or run.origin[-1] == Origin.TEMPLATE:
        return run
    ends = run.finish.copy()
    ends[-1] = np.uint8(finish)
    return replace(run, finish=ends)


def chunk(run: TokenRun, fingerprint: str, first: int = 0) -> NewChunk:
    """A run as rows for the store."""
    return NewChunk(fingerprint, first, len(run), run.to_columns(narrow=True))


SCORED = ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass")


def first_unscored(session: WholeSession, segments: Sequence[PathSegment]) -> int | None:
    """The place of the first token without numbers along `segments`, except the very first, which never has any."""
    runs = [session.runs.get(segment.node.id, EMPTY)[: segment.stop] for segment in segments]
    unscored = np.flatnonzero(np.isnan(TokenRun.concat(runs).logprob[1:]))  # by log-probability: some servers give no ranks
    return int(unscored[0]) + 1 if unscored.size else None


async def score_prompt(
    adapted: AdaptedModel,
    store: SessionStore,
    session: WholeSession,
    segments: Sequence[PathSegment],
    prompt: Sequence[int],
    on_progress: OnProgress,
) -> None:
    """Scores `prompt`, the ids along `segments`, from the first token without numbers on, and saves the numbers.

    Raises:
        ContextOverflowError: The prompt does not fit; nothing was computed.
        StoreError: The numbers cannot be saved.
    """
    if not adapted.model.has("scores"):  # a server that does not score prompts
        return
    first = first_unscored(session, segments)
    if first is None:
        return
    scored = await adapted.model.score_run(
        prompt, start=first, adapters=adapted.adapters, priority=Priority.CHAT, on_progress=on_progress
    )
    at = 0
    for segment in segments:
        run = session.runs.get(segment.node.id, EMPTY)[: segment.stop]
        start, at = at, at + len(run)
        if at > first and len(run):  # a turn without tokens is part of the next one's
            begin = max(first - start, 0)
            part = scored[max(start - first, 0) : at - first]
            await _keep(adapted, store, session, segment.node.id, begin, part)


async def _keep(
    adapted: AdaptedModel, store: SessionStore, session: WholeSession, node_id: int, begin: int, part: TokenRun
) -> None:
    run = session.runs[node_id]
    end = begin + len(part)
    fresh = replace(run[begin:end], **{name: getattr(part, name) for name in SCORED})
    session.runs[node_id] = TokenRun.concat([run[:begin], fresh, run[end:]])
    if session.tree.nodes[node_id].status != "open":  # an open node is written by its recorder
        await store.rescore(node_id, chunk(fresh, adapted.fingerprint, begin))
