"""What was computed goes into the trie: copies of the working packs' new tails, made where there is room for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from runtime.backends.base import Backend, Payload
from runtime.errors import MemoryBudgetError
from runtime.records import Int32, Scores
from runtime.scheduler.kv.kv_budget import KvBudget
from runtime.scheduler.kv.payloads import SlotRun
from runtime.scheduler.kv.workspace import Workspace
from runtime.scheduler.prefill.prefill import Prefill
from runtime.trie import Lost, Namespace

log = logging.getLogger(__name__)
SHORT_TAIL = 64  # tokens


class Publisher:
    """Copies from workspaces into the trie; owner thread only.

    Args:
        backend: Makes and weighs the copies.
        room: Asked before anything is copied.
        enabled: False keeps nothing.
    """

    def __init__(self, backend: Backend, room: KvBudget, *, enabled: bool) -> None:
        self._backend = backend
        self._room = room
        self._trie = room.trie
        self._enabled = enabled
        self.ahead: dict[tuple[Workspace, int, int], Payload] = {}  # by last slot and number of tokens

    def take_ahead(self, prefills: Sequence[Prefill]) -> None:
        """Copies the short new tails of several jobs of one workspace in one go, for their `publish` to find."""
        if not self._enabled or self._room.in_place:
            return
        self.forget_ahead()
        by_workspace: dict[Workspace, dict[tuple[int, int], None]] = {}
        for prefill in prefills:
            if not prefill.workspace.recurrent and _has_new_tail(prefill):
                by_workspace.setdefault(prefill.workspace, {})[prefill.slot, prefill.at - prefill.lease.length] = None
        for workspace, tails in by_workspace.items():
            if len(tails) > 1:
                self._take_tails(workspace, list(tails))

    def _take_tails(self, workspace: Workspace, tails: Sequence[tuple[int, int]]) -> None:
        chains = [workspace.chain(slot, count) for slot, count in tails]
        needed = self._backend.take_cost(workspace.pack, np.concatenate(chains)).held  # no states: all is by the token
        if not self._room.make(3 * needed):
            return
        try:
            payloads = workspace.take_many(chains)
        except BaseException:  # noqa: BLE001  # one by one, the guilty one alone fails
            return
        self.ahead |= {(workspace, slot, count): payload for (slot, count), payload in zip(tails, payloads, strict=True)}
        self._room.pending += sum(self._backend.payload_bytes(payload) for payload in payloads)

    def forget_ahead(self) -> None:
        """What was copied ahead and not published, for its job has failed, is let go."""
        self.ahead.clear()
        self._room.pending = 0

    def publish(self, prefill: Prefill, tokens: Int32, slot: int, scores: Scores | None) -> None:
        """Copies the tokens from the lease's end to `slot` into the trie; `scores` has one row for each."""
        start, job = prefill.lease.length, prefill.job
        if not job.before:
            self._publish(prefill, job.namespace, tokens, slot, scores)
            return
        for end in [end - start for end, _ in job.before if start < end < start + len(tokens)]:
            at = prefill.lease.length - start
            place = prefill.workspace.paths.above(slot, len(tokens) - end)
            self._publish(
                prefill, job.namespace_at(start + at), tokens[at:end], place, None if scores is None else scores[at:end]
            )
            if prefill.lease.length < start + end:  # no room: what follows cannot hang under it
                return
        at = prefill.lease.length - start
        self._publish(prefill, job.namespace_at(start + at), tokens[at:], slot, None if scores is None else scores[at:])

    def _publish(self, prefill: Prefill, namespace: Namespace, tokens: Int32, slot: int, scores: Scores | None) -> None:
        """`publish` of tokens under one namespace."""
        lease, workspace = prefill.lease, prefill.workspace
        if not self._enabled or not len(tokens) or not lease.node.attached:  # under a cleared path nothing is kept
            return
        if self.ahead and (ahead := self._copied_ahead(workspace, slot, len(tokens))) is not None:
            self._trie.insert(lease, namespace, tokens, ahead, scores)  # what others have hung there since stays
            return
        if self._room.in_place:
            self._trie.insert(lease, namespace, tokens, SlotRun(workspace, slot, len(tokens)), scores)
            return
        found = self._trie.follow(lease, namespace, tokens, scores)
        if found.already == len(tokens):
            self._complete(prefill, slot)
            return
        tokens = tokens[found.already :]
        scores = None if scores is None else scores[found.already :]
        payload = None if found.refused else self._taken(workspace, slot, len(tokens), 0 if scores is None else scores.nbytes)
        if payload is None:
            self._note_refusal(prefill, namespace, tokens)
        else:
            self._trie.insert(lease, namespace, tokens, payload, scores)

    def _complete(self, prefill: Prefill, slot: int) -> None:
        """A path is all there already, but perhaps not the recurrent state to go on from."""
        node, workspace = prefill.lease.node, prefill.workspace
        if not self._backend.payload_resumable(node.payload) and workspace.resumable(slot):
            payload = self._taken(workspace, slot, len(node.tokens), 0)
            if payload is not None:
                self._trie.complete(node, payload)

    def _taken(self, workspace: Workspace, slot: int, count: int, beside: int) -> Payload | None:
        """A copy of the last `count` tokens of a path; None where there is no room for it and `beside` bytes of scores."""
        slots = workspace.chain(slot, count)
        if not self._room.make(self._backend.take_cost(workspace.pack, slots).moment + beside):
            return None
        try:
            return workspace.take(slots)
        except MemoryBudgetError:  # the device itself; a copy for later must not end what runs
            log.exception("computed KV could not be kept")
            return None

    def _copied_ahead(self, workspace: Workspace, slot: int, count: int) -> Payload | None:
        ahead = self.ahead.pop((workspace, slot, count), None)
        if ahead is not None:
            self._room.pending -= self._backend.payload_bytes(ahead)
        return ahead

    def _note_refusal(self, prefill: Prefill, namespace: Namespace, tokens: Int32) -> None:
        """Remembers, once for each token, that there was no room to keep what was computed."""
        prefill.workspace.sole = True
        end = prefill.lease.length + len(tokens)
        if end > prefill.refused:
            prefill.refused = end
            self._trie.eviction_log.note(prefill.lease.node, namespace, tokens, Lost.REFUSED)


def _has_new_tail(prefill: Prefill) -> bool:
    """Whether a few tokens were computed whose first one the trie does not have."""
    lease, job = prefill.lease, prefill.job
    if not lease.node.attached or not 0 < prefill.at - lease.length <= SHORT_TAIL:
        return False
    if any(lease.length < end < prefill.at for end, _ in job.before):  # published in two parts
        return False
    return (job.namespace_at(lease.length), int(job.ids[lease.length])) not in lease.node.children
