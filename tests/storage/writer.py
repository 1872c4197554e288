"""A process that saves chats until it is killed or its disk fails; prints every acknowledged call.

Each line on stdout is one JSON object, written after the store has returned: ["user" | "chunk" | "finish", node, tokens],
["failed", type, message] or ["done"]. Arguments: the sessions file, the number of rounds, a limit for the size of a file
in bytes (0: none; lifted after the first failure); optionally a fault and a file for its log (see `failing_vfs`).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path

from storage import NewNode, SessionStore, StoreError
from tests.storage.failing_vfs import install
from tests.storage.helpers import chunk


def say(*words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


async def save(store: SessionStore, rounds: int) -> None:
    session = await store.create_session("long chat")
    parent = None
    for turn in range(rounds):
        parent = await store.add_node(NewNode(session, parent, "user", f"question {turn}"), chunk(0, 20), current=True)
        say("user", parent, 20)
        parent = await store.add_node(NewNode(session, parent, "assistant", status="open"))
        for part in range(3):
            await store.append_chunk(parent, chunk(part * 40, 40))
            say("chunk", parent, part * 40 + 40)
        await store.finish_node(parent, finish_reason="eos", stats={}, text=f"answer {turn}")
        say("finish", parent, 120)


async def main(path: Path, rounds: int, limit: int) -> None:
    store = SessionStore.open(path)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        await save(store, rounds)
    except StoreError as error:
        say("failed", type(error).__name__, str(error))
        if limit:  # now there is room
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await save(store, 1)
    await store.close()
    say("done")


if __name__ == "__main__":
    injector = install(sys.argv[4], Path(sys.argv[5])) if len(sys.argv) > 4 else None
    try:
        asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    except StoreError as fault:
        say("failed", type(fault).__name__, str(fault))
