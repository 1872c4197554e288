"""The shown path of a session as a `runtime.Snapshot`, with which another program resumes a portable file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from app.workbench.answers.provenance import MADE, beams_of, options_of
from app.workbench.refusals import intact
from app.workbench.tree.reading import load_whole
from app.workbench.tree.session import WholeSession
from runtime import Finish, Generation, InvalidRequestError, Manifest, Mark, Snapshot
from storage import NodeRow, SessionStore
from ui import Refusal


async def snapshot_of(store: SessionStore, session_id: int) -> dict[str, Any] | None:
    """`Snapshot.to_mapping` of the path shown, without a model.

    None if no model could continue its exact tokens: a turn has no tokens, some are damaged, or they were made by several
    models or an unknown one.
    """
    session = await load_whole(store, session_id)
    path = session.tree.path(session.tip)
    said = [segment.node for segment in path if segment.node.token_count or segment.node.text]
    fingerprints = {node.kv_fingerprint if node.token_count else None for node in said}
    fingerprint = fingerprints.pop() if len(fingerprints) == 1 else None
    known = None if fingerprint is None else await intact(store.model(fingerprint))
    if fingerprint is None or known is None:
        return None
    return await asyncio.to_thread(_snapshot, session, known)  # a long path takes long


def _snapshot(session: WholeSession, known: Mapping[str, Any]) -> dict[str, Any] | None:
    path = session.tree.path(session.tip)
    try:
        manifest, ids = Manifest.from_mapping(known["manifest"]), session.path_ids(path)
    except (KeyError, TypeError, InvalidRequestError, Refusal):
        return None
    turns = session.tree.turns(session.tip)
    generation = _generation(path[-1].node, len(ids))
    start = len(ids) if generation is None else generation.start
    lengths = [session.turn_length(turn) for turn in turns]
    return Snapshot(
        ids=tuple(ids),
        text=b"".join(piece for turn in turns for piece in session.turn_run(turn).token_bytes),
        marks=tuple(
            Mark("generated" if turn.role == "assistant" else "prefix", turn.role, end - n)
            for turn, n, end in zip(turns, lengths, accumulate(lengths), strict=True)
            if n
        ),
        prefix=start,
        messages=tuple((m["role"], m["content"]) for m in session.messages(turns[:-1] if generation is not None else turns)),
        manifest=manifest,
        generation=generation,
        blocks=tuple(key.hex() for key in manifest.block_keys(ids)),
    ).to_mapping()


def _generation(node: NodeRow, resident: int) -> Generation | None:
    """The provenance of the last answer; None if it was not stored, or nothing was drawn."""
    made, count = node.stats.get(MADE), node.stats.get("generated")
    if not isinstance(made, Mapping) or not isinstance(count, int) or not 0 < count <= resident or beams_of(node):
        return None
    try:
        options = options_of(made)
    except (KeyError, TypeError, ValueError):  # InvalidRequestError is one
        return None
    ends = (Finish.EOS.label, Finish.STOP.label, Finish.LENGTH.label, Finish.CONTEXT.label)
    return Generation(resident - count, options, node.finish_reason if node.finish_reason in ends else None)
