"""Exports and imports of the KV blocks of sessions in portable session files.

The block file has one user at a time: the engine if one runs, else a process started for the copy. A command that holds the
folder's lock opens it itself (`app.block_files`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from app.block_files import apart
from app.supervisor import Supervisor
from app.workbench.models.settings import BUDGET
from app.workbench.refusals import intact
from app.workbench.transfer.exports import FORMATS, write_export
from app.workbench.tree.reading import load_whole
from runtime import EngineDiedError, InvalidRequestError, LanguageModel, Manifest, block_keys
from storage import SessionStore
from ui import EngineState, OnTransfer

AT_ONCE: Final = 128  # keys per request to the engine, between which the import reports and can be cancelled
APART: Final = 4_096  # keys per process
STEPS: Final = 1 << 20  # the most steps of SQLite's virtual machine for a query; our files need a few hundred


async def keys_of(store: SessionStore, session_id: int) -> list[bytes]:
    """The keys of the blocks of every path of a session, parents before children."""
    session = await load_whole(store, session_id, branches=True)
    nodes = session.tree.nodes
    inner = {child.parent_id for child in nodes.values() if session.tree.leaves_at_end(child)}
    keys: dict[bytes, None] = {}
    for tip in (node for node in nodes.values() if node.id not in inner):
        path = session.tree.path(tip.id)
        if any(segment.node.damaged or segment.node.id in session.lost for segment in path):
            continue  # no model can continue it
        ids, ends = session.path_ids(path), itertools.accumulate(len(session.segment_run(segment)) for segment in path)
        saved: dict[str, list[int]] = {}  # ends of saves, by fingerprint
        for segment, end in zip(path, ends, strict=True):
            if segment.node.token_count and segment.node.kv_fingerprint is not None:
                # a path is saved after an answer, up to its end or, if nothing followed yet, up to the token before
                saved.setdefault(segment.node.kv_fingerprint, []).extend((end - 1, end))
        for fingerprint, own in saved.items():
            keys |= dict.fromkeys(await _named(store, fingerprint, ids[: own[-1]], own))
    return list(keys)


async def _named(store: SessionStore, fingerprint: str, ids: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    known = await intact(store.model(fingerprint))
    try:
        manifest = Manifest.from_mapping((known or {})["manifest"])
    except (KeyError, TypeError, InvalidRequestError):  # of an earlier version or another program
        return block_keys(fingerprint, ids, ends)
    return manifest.block_keys(ids, ends)


@contextmanager
def kv_draft(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, to be renamed when the file is whole; removed at the end."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.kv")
    try:
        yield draft
    finally:
        for leftover in (draft, draft.with_name(f"{draft.name}-journal")):
            leftover.unlink(missing_ok=True)


async def export_with_kv(store: SessionStore, supervisor: Supervisor, session_id: int, path: Path, progress: OnTransfer) -> int:
    """Writes a portable file with the session's blocks, whole or not at all; returns their number.

    Raises:
        StoreError: The session cannot be read, or the file cannot be written.
        EngineDiedError: The engine died; the next message restarts it.
        OSError: The block file cannot be read, or the file cannot be written.
    """
    with kv_draft(path) as draft:
        await write_export(store, session_id, FORMATS["portable-kv"], draft, progress)
        keys, blocks = await keys_of(store, session_id), supervisor.options.get("blocks")
        starting = supervisor.state is EngineState.STARTING  # it holds the block file already
        model = await supervisor.model() if starting else supervisor.running
        if model is not None and model.info.options.get("blocks"):
            copied = await _asked(supervisor, model, model.copy_blocks_async(keys, draft))
        elif model is None and blocks is not None:
            copied = await asyncio.to_thread(apart, draft, Path(blocks["path"]), keys)
        else:
            copied = 0
        await asyncio.to_thread(draft.replace, path)
        return copied


async def _asked(supervisor: Supervisor, model: LanguageModel, work: Coroutine[Any, Any, int]) -> int:
    try:
        return await work
    except EngineDiedError:
        await supervisor.died(model)
        raise


async def take_kv(
    store: SessionStore, supervisor: Supervisor, session_ids: Sequence[int], path: Path, progress: OnTransfer
) -> int:
    """Copies the blocks of imported sessions from their portable file; returns how many the block file has then.

    Copies a few at a time; if cancelled, the blocks copied so far stay.

    Raises:
        EngineDiedError: The engine died; the next message restarts it.
        OSError: The block file cannot be written, or the portable file cannot be read.
    """
    keys = list(dict.fromkeys([key for session_id in session_ids for key in await keys_of(store, session_id)]))
    taken = at = 0
    while at < len(keys):
        starting = supervisor.state is EngineState.STARTING  # it holds the block file already
        model, blocks = await supervisor.model() if starting else supervisor.running, supervisor.options.get("blocks")
        part = keys[at : at + (AT_ONCE if model is not None else APART)]
        if model is not None and model.info.options.get("blocks"):
            taken += await _asked(supervisor, model, model.take_blocks_async(part, path))
        elif model is None and blocks is not None:
            budget = blocks.get("budget", BUDGET)
            taken += await asyncio.to_thread(partial(apart, path, Path(blocks["path"]), part, budget=budget))
        at += len(part)
        progress(at, len(keys))
    return taken


def carries_blocks(file: Path) -> bool:
    """Whether a portable file has blocks."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as conn:
            conn.execute("PRAGMA trusted_schema = OFF")
            conn.set_progress_handler(lambda: 1, STEPS)
            sql = "SELECT EXISTS (SELECT 1 FROM kv_blocks) FROM sqlite_schema WHERE name = 'kv_blocks' AND type = 'table'"
            found = conn.execute(sql).fetchone()
            return bool(found and found[0])
    except sqlite3.Error:
        return False
