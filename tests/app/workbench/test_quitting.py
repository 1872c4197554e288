"""Quitting or a crash during an answer: the text is kept, and no wait exceeds its limit."""

from __future__ import annotations

import asyncio

import pytest

from app import supervisor
from app.workbench import AppWorkbench, Services, workbench
from runtime import EngineLimits
from runtime.transport.link import grace_within
from storage import SessionStore
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, PATIENCE_SECONDS, Engine, Scene, own_tokens, rows, until
from ui import TurnStatus

QUIT_SECONDS = 2.0  # the documented limit


@pytest.mark.parametrize("when", ["saving", "loading", "streaming"])
def test_quitting_during_an_answer_ends_before_any_limit_and_keeps_the_text(
    play: Play, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # given limits too long to wait for
    for limit in ("PATIENCE_SECONDS", "KEEP_SECONDS"):
        monkeypatch.setattr(f"app.workbench.workbench.{limit}", 1000.0)
    monkeypatch.setattr("app.supervisor.CANCEL_SECONDS", 1000.0)
    kept: list[int] = []

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        if when == "loading":
            s.engine.loading = asyncio.Event()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        if when == "saving":
            await asyncio.sleep(0)
        elif when == "loading":
            await until(lambda: s.engine.starts)
        else:
            await until(lambda: s.arrived(session_id) == 7)
        await asyncio.wait_for(s.workbench.close(), PATIENCE_SECONDS)
        await sending  # it has ended, without a warning
        kept.append(7 if when == "streaming" else 0)

    async def later(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        view = await s.view(session_id)
        assert view.turns[1].run.text.count("hello") == 1
        answer = view.turns[-1]
        assert (answer.status, answer.note) == (TurnStatus.PARTIAL, "stopped")
        assert len(own_tokens(answer)) == kept[0]

    play(scene, engine=Engine(holds_after=7))
    play(later)


def test_the_limits_of_the_steps_of_quitting_add_up_to_less_than_the_promise() -> None:
    answers, kv, engine = workbench.PATIENCE_SECONDS, workbench.KEEP_SECONDS, EngineLimits().close_seconds
    # answers of a working engine end when they are stopped: then KV is written, and the engine ends by itself
    assert kv + engine < QUIT_SECONDS
    # when a start is cancelled no KV is written
    assert answers + supervisor.CANCEL_SECONDS < QUIT_SECONDS
    # one that hangs uses each limit up, and is ended within the rest
    assert answers + kv < grace_within(workbench.ENGINE_SECONDS)
    assert workbench.ENGINE_SECONDS < QUIT_SECONDS


@pytest.mark.slow
def test_the_limit_for_closing_an_engine_is_reduced_by_earlier_waits(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    # given an engine that ignores the stop of its answer
    told: list[float | None] = []
    asking: list[asyncio.Task[None]] = []
    hangs = asyncio.Event()

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        asking.append(asyncio.create_task(s.workbench.answers.send(session_id, "hello")))
        await until(lambda: s.arrived(session_id) == 3)
        ended, close = s.workbench.services.running.ended, s.workbench.services.supervisor.close

        async def never() -> None:
            await hangs.wait()
            await ended()

        async def noted(within: float | None = None) -> None:
            told.append(within)
            hangs.set()
            await close(within)

        monkeypatch.setattr(s.workbench.services.running, "ended", never)
        monkeypatch.setattr(s.workbench.services.supervisor, "close", noted)

    # when the window ends
    play(scene, engine=Engine(holds_after=3))
    # then the time of that wait was subtracted
    (within,) = told
    assert within is not None
    assert within <= workbench.ENGINE_SECONDS - workbench.PATIENCE_SECONDS


@pytest.mark.slow
def test_a_crash_of_the_app_leaves_a_partial_answer(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 6)
        whole = len(
            s.workbench.services.sessions.opened(session_id).last_turn().run
        )  # header and six tokens, in one write or two
        await until(lambda: rows(s.path, "SELECT sum(count) FROM token_chunks WHERE node_id = 3") == [(whole,)])
        copy = s.path.parent / "crashed.db"
        for suffix in ("", "-wal"):
            (copy.parent / f"crashed.db{suffix}").write_bytes((s.path.parent / f"{s.path.name}{suffix}").read_bytes())
        s.workbench.answers.stop(session_id)
        await sending

        store = SessionStore.open(copy)
        crashed = Scene(copy, s.engine, store, AppWorkbench(Services(store, s.workbench.services.supervisor, OPTIONS)), [], {})
        answer = await crashed.last(session_id)
        assert answer.status is TurnStatus.PARTIAL
        assert answer.note == "cut off when Elsewise ended"
        assert answer.run.token_bytes == (await s.last(session_id)).run.token_bytes
        await store.close()

    play(scene, engine=Engine(holds_after=6))
