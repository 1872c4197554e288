"""KV blocks that travel with a portable session file: from the block file of a data folder into it, and back.

The block file has one user at a time: the engine where one runs, which is asked; else whoever holds the folder's lock.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from app.kept import BUDGET
from app.supervisor import Supervisor
from app.workbench.session import OpenSession
from app.workbench.transfers import export
from runtime import EngineDiedError, LanguageModel, block_keys
from storage import SessionStore, open_blocks
from ui import EngineState, ExportKind, OnTransfer


async def keys_of(store: SessionStore, session_id: int) -> list[bytes]:
    """The names of the blocks of every path of a session, parents before children."""
    session = OpenSession(await store.load_session(session_id))
    nodes = session.tree.nodes
    inner = {child.parent_id for child in nodes.values() if session.tree.leaves_at_end(child)}
    keys: dict[bytes, None] = {}
    for tip in (node for node in nodes.values() if node.id not in inner):
        path = session.tree.path(tip.id)
        missing = [segment.node.id for segment in path if segment.node.id not in session.runs]
        session.add_tokens(await store.load_tokens(missing))
        models = {segment.node.kv_fingerprint for segment in path if segment.node.token_count}
        if len(models) == 1 and (fingerprint := models.pop()) is not None:
            keys |= dict.fromkeys(block_keys(fingerprint, session.path_ids(path)))
    return list(keys)


async def export_with_kv(store: SessionStore, supervisor: Supervisor, session_id: int, path: Path, progress: OnTransfer) -> int:
    """Writes a portable file with the blocks that are held of the session; how many. All of it is there then, or nothing.

    Raises:
        StoreError: The session cannot be read, or the file not be written.
        EngineDiedError: The engine died; it is started anew with the next message.
        OSError: The block file cannot be read, or the file not be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.kv")
    try:
        await export(store.path, session_id, ExportKind.WITH_KV, draft, progress)
        keys, blocks = await keys_of(store, session_id), supervisor.options.get("blocks")
        starting = supervisor.state is EngineState.STARTING  # it holds the block file already
        model = await supervisor.model() if starting else supervisor.running
        if model is not None and model.info.options.get("blocks"):
            copied = await _by_engine(supervisor, model, keys, draft)
        elif model is None and blocks is not None:
            copied = await asyncio.to_thread(put_into, draft, Path(blocks["path"]), keys)
        else:
            copied = 0
        await asyncio.to_thread(draft.replace, path)
        return copied
    finally:
        for leftover in (draft, draft.with_name(f"{draft.name}-journal")):
            leftover.unlink(missing_ok=True)


async def _by_engine(supervisor: Supervisor, model: LanguageModel, keys: list[bytes], draft: Path) -> int:
    try:
        return await model.copy_blocks_async(keys, draft)
    except EngineDiedError:
        await supervisor.died(model)
        raise


def put_into(file: Path, blocks: Path, keys: list[bytes]) -> int:
    """Copies what is held of these blocks into a portable file; how many. Blocking.

    Raises:
        OSError: The block file is in use, or the other cannot be written; that is then as it was.
    """
    if not blocks.exists():
        return 0
    with closing(open_blocks(blocks, BUDGET)) as held:
        return held.copy_to(file, keys)


def take_from(file: Path, blocks: Path, keys: list[bytes]) -> int:
    """Copies what a portable file has of these blocks into the block file; how many. Each is verified. Blocking.

    Raises:
        OSError: It has no blocks, or the block file cannot be written; that is then as it was.
    """
    open_blocks(blocks, BUDGET).close()  # makes it where it is missing
    with closing(open_blocks(file, BUDGET, read_only=True)) as found:
        return found.copy_to(blocks, keys)


def carries_blocks(file: Path) -> bool:
    """Whether a portable file has blocks."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as conn:
            conn.execute("PRAGMA trusted_schema = OFF")
            found = conn.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'kv_blocks' AND type = 'table'").fetchone()
            return bool(found[0])
    except sqlite3.Error:
        return False
