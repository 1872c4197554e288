"""The app under test in crashes: chats without a window, and prints the acknowledged turns.

Each line on stdout is one JSON object, written after the use case has returned: ["engine", pid], ["asked", text] when the first
token of the answer to it has arrived, ["answered", text, answer], ["done"]. Arguments: the sessions file, the messages to send,
"here" (an engine in this process) or "process"; optionally a fault and a file for its log (see `tests.storage.failing_vfs`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from runtime import GenerationOptions, LanguageModel, SamplingOptions
from storage import SessionStore
from tests.app.workbench.scene import Engine, alternative, own_tokens
from tests.storage.failing_vfs import install
from ui import Event, TokensArrived

OPTIONS = GenerationOptions(max_tokens=24, sampling=SamplingOptions(temperature=0.9), seed=11)


def say(*words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


async def talk(path: Path, messages: int, where: str) -> None:
    store = SessionStore.open(path)
    blocks = {"factory": "storage:open_blocks", "path": str(path.with_suffix(".blocks")), "budget": 1 << 26}
    supervisor = Supervisor("x", start=Engine()) if where == "here" else Supervisor("x", "fake", blocks=blocks)
    workbench = AppWorkbench(Services(store, supervisor, OPTIONS))
    asked: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, TokensArrived) and asked:
            say("asked", asked.pop())

    workbench.subscribe(hear)
    session_id = (await workbench.sessions.new()).session_id
    for number in range(messages):
        text = f"message {number}, which is about this and about that"
        asked.append(text)
        await workbench.answers.send(session_id, text)
        if not number and isinstance(workbench.services.supervisor.running, LanguageModel):
            say("engine", workbench.services.supervisor.running.pid)
        answer = (await workbench.sessions.open(session_id)).turns[-1]
        say("answered", text, next(n.text for n in (await store.load_session(session_id)).nodes if n.id == answer.node_id))
        if len(own_tokens(answer)) > 1:
            at = own_tokens(answer)[1]
            await workbench.answers.branch(session_id, answer.node_id, at, alternative(answer, at))
    await workbench.close()
    say("done")


if __name__ == "__main__":
    injector = install(sys.argv[4], Path(sys.argv[5])) if len(sys.argv) > 4 else None
    asyncio.run(talk(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
