"""An engine that is killed, or whose disk fails, while it saves KV: the next one reads no wrong KV."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from runtime import BlocksSaved, GenerationOptions, LanguageModel, SamplingOptions
from storage import BlockFile, SessionStore
from tests.reliability.crashes import check_saved
from tests.storage.blocks.helpers import BUDGET
from tests.storage.faults import fired, run, under
from ui import Refusal


def sweep(
    tmp_path: Path, fault: str, places: Sequence[int], caplog: pytest.LogCaptureFixture, tell: Callable[[str], None]
) -> tuple[int, int]:
    """Injects faults at many writes; returns how many fired, and in how many runs the engine noticed one."""
    caplog.set_level(logging.WARNING)
    faults = heard = 0
    for k in places:
        file, log = tmp_path / f"{k}.db", tmp_path / f"{k}.log"
        said = run(under("vfs", [sys.executable, "-m", "tests.app.saving_engine", str(file)], file, fault.format(k=k), log))
        faults += fired(log)
        heard += any(words[0] == "warned" for words in said)
        check_saved(file, said)
        assert not caplog.records
    tell(f"engine saving, {fault}: {faults} faults fired in {len(places)} runs, {heard} were told")
    return faults, heard


@pytest.mark.slow
def test_an_engine_killed_while_it_saves_leaves_no_wrong_kv(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tell: Callable[[str], None]
) -> None:
    assert sweep(tmp_path, "pwrite64:signal=SIGKILL:when={k}", [11, 45], caplog, tell) == (
        2,
        0,
    )  # 11: while the file is created


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_during_a_background_save_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tell: Callable[[str], None], error: str
) -> None:
    places = range(30, 120, 30)
    faults, heard = sweep(tmp_path, f"pwrite64:error={error}:when={{k}}+", places, caplog, tell)
    assert faults >= len(places)
    assert heard == len(places)  # the model continues, and warns once


@pytest.mark.slow
def test_the_text_is_complete_if_the_engine_dies_while_it_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real engine process, killed inside `save_blocks` after an answer: the next message starts another."""
    file, texts = tmp_path / "blocks.db", [f"{word}, a message that is long enough to be kept " * 6 for word in ("one", "two")]
    blocks = {"factory": "storage:open_blocks", "path": str(file), "budget": BUDGET}
    real, killed = LanguageModel.save_blocks_async, list[int]()

    async def save(client: LanguageModel, *arguments: Any, **options: Any) -> BlocksSaved:
        if killed:
            return await real(client, *arguments, **options)
        work = asyncio.ensure_future(real(client, *arguments, **options))
        await asyncio.sleep(0)  # the save is running
        killed.append(client.pid)
        os.kill(client.pid, signal.SIGKILL)
        return await work

    monkeypatch.setattr(LanguageModel, "save_blocks_async", save)

    async def play() -> None:
        store = SessionStore.open(tmp_path / "s.db")
        options = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), seed=5)
        workbench = AppWorkbench(Services(store, Supervisor("x", "fake", blocks=blocks), options))
        session_id = (await workbench.sessions.new()).session_id
        for text in texts:
            try:
                await workbench.answers.send(session_id, text)
            except Refusal as refusal:
                pytest.fail(str(refusal))
        assert len(killed) == 1
        tree = await store.load_session(session_id)
        assert [node.text for node in tree.nodes if node.role == "user"] == texts
        assert all(node.text and not node.damaged for node in tree.nodes if node.role == "assistant")
        assert await store.verify() == []
        assert [turn.run.text for turn in (await workbench.sessions.open(session_id)).turns][-1]
        await workbench.close()

    asyncio.run(play())
    with BlockFile(file, BUDGET) as held:
        assert held.stats().damaged == 0
        assert held.stats().blocks >= 4  # the second answer was kept
