"""KV blocks that travel with a portable session file: from the block file of a data folder into it, and back.

The block file has one user at a time: the engine where one runs, which is asked; else, for the window, a process that does
nothing else. A command that holds the folder's lock opens it itself (`app.block_files`).
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

AT_ONCE: Final = 128  # names of blocks that are looked for between two reports, and two looks at whether to stop
APART: Final = 4_096  # likewise, where a process has to be started for them
STEPS: Final = 1 << 20  # of SQLite's machine that looking for a block may take; in a file of ours it takes some hundred


async def keys_of(store: SessionStore, session_id: int) -> list[bytes]:
    """The names of the blocks of every path of a session, parents before children."""
    session = await load_whole(store, session_id, branches=True)
    nodes = session.tree.nodes
    inner = {child.parent_id for child in nodes.values() if session.tree.leaves_at_end(child)}
    keys: dict[bytes, None] = {}
    for tip in (node for node in nodes.values() if node.id not in inner):
        path = session.tree.path(tip.id)
        if any(segment.node.damaged or segment.node.id in session.lost for segment in path):
            continue  # no model goes on from there
        ids, ends = session.path_ids(path), itertools.accumulate(len(session.segment_run(segment)) for segment in path)
        saved: dict[str, list[int]] = {}  # by the model, under its adapters, that came last over the tokens before
        for segment, end in zip(path, ends, strict=True):
            if segment.node.token_count and segment.node.kv_fingerprint is not None:
                # a path is saved when an answer ends, to its end or, where nothing came after it yet, to the token before
                saved.setdefault(segment.node.kv_fingerprint, []).extend((end - 1, end))
        for fingerprint, own in saved.items():
            keys |= dict.fromkeys(await _named(store, fingerprint, ids[: own[-1]], own))
    return list(keys)


async def _named(store: SessionStore, fingerprint: str, ids: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    known = await intact(store.model(fingerprint))
    try:
        manifest = Manifest.from_mapping((known or {})["manifest"])
    except (KeyError, TypeError, InvalidRequestError):  # stored by an earlier version, or elsewhere
        return block_keys(fingerprint, ids, ends)
    return manifest.block_keys(ids, ends)


@contextmanager
def kv_draft(path: Path) -> Iterator[Path]:
    """A name beside `path` for a file that gets its blocks, to be given that name when it is whole; removed at the end."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.kv")
    try:
        yield draft
    finally:
        for leftover in (draft, draft.with_name(f"{draft.name}-journal")):
            leftover.unlink(missing_ok=True)


async def export_with_kv(store: SessionStore, supervisor: Supervisor, session_id: int, path: Path, progress: OnTransfer) -> int:
    """Writes a portable file with the blocks that are held of the session; how many. All of it is there then, or nothing.

    Raises:
        StoreError: The session cannot be read, or the file not be written.
        EngineDiedError: The engine died; it is started anew with the next message.
        OSError: The block file cannot be read, or the file not be written.
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
    """Takes what a portable file has of the blocks of sessions that were imported from it; how many are held then.

    A few at a time, by the engine where one runs; cancelled, what was taken stays: it is a cache.

    Raises:
        EngineDiedError: The engine died; it is started anew with the next message.
        OSError: The block file cannot be written, or the other not be read.
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
