"""One engine, started on demand and restarted after it died."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.supervisor import Supervisor
from runtime import LanguageModel, LoadProgress, ModelLoadError
from tests.app.workbench.scene import Engine, until
from ui import EngineState


def test_concurrent_requests_start_one_engine_and_each_change_is_reported() -> None:
    engine = Engine()
    told: list[tuple[EngineState, str]] = []

    async def scene() -> None:
        supervisor = Supervisor("shelf/x", start=engine)
        supervisor.subscribe(lambda: told.append((supervisor.state, supervisor.reason)))
        models = await asyncio.gather(*(supervisor.model() for _ in range(3)))
        assert engine.starts == 1
        assert models[0] is models[1] is models[2] is supervisor.running
        supervisor.busy(True)
        supervisor.busy(False)
        await supervisor.close()
        assert supervisor.running is None

    asyncio.run(scene())
    assert told == [
        (EngineState.STARTING, "loading x"),
        (EngineState.READY, ""),
        (EngineState.BUSY, ""),
        (EngineState.READY, ""),
    ]


def test_a_cancelled_request_does_not_stop_the_start_for_others() -> None:
    async def scene() -> None:
        engine = Engine(loading=asyncio.Event())
        supervisor = Supervisor("x", start=engine)
        first, second = asyncio.create_task(supervisor.model()), asyncio.create_task(supervisor.model())
        await until(lambda: engine.starts)
        first.cancel()
        assert engine.loading is not None
        engine.loading.set()
        assert await second is supervisor.running
        await supervisor.close()

    asyncio.run(scene())


def test_a_start_that_failed_is_tried_again() -> None:
    async def scene() -> None:
        engine = Engine(refuses=[ModelLoadError("not here")])
        supervisor = Supervisor("x", start=engine)
        with pytest.raises(ModelLoadError):
            await supervisor.model()
        assert (supervisor.state, supervisor.reason) == (EngineState.NONE, "not here")
        assert await supervisor.model() is supervisor.running
        await supervisor.close()

    asyncio.run(scene())


def test_closing_during_a_start_ends_it() -> None:
    async def scene() -> None:
        engine = Engine(loading=asyncio.Event())
        supervisor = Supervisor("x", start=engine)
        waiting = asyncio.create_task(supervisor.model())
        await until(lambda: engine.starts)
        await supervisor.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert supervisor.running is None

    asyncio.run(scene())


def test_loading_is_stopped_and_the_next_request_loads_again() -> None:
    async def scene() -> None:
        engine = Engine(loading=asyncio.Event())
        supervisor = Supervisor("shelf/x", start=engine)
        await supervisor.stop_loading()  # nothing is loaded
        waiting = asyncio.create_task(supervisor.model())
        await until(lambda: engine.tell is not None)
        assert engine.tell is not None
        engine.tell(LoadProgress(30, 120))
        assert (supervisor.load_share, supervisor.reason) == (0.25, "loading x: reading weights, 30 of 120")
        await supervisor.stop_loading()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (supervisor.state, supervisor.reason) == (EngineState.NONE, "")
        assert engine.loading is not None
        engine.loading.set()
        assert await supervisor.model() is supervisor.running
        assert supervisor.load_share == 0
        await supervisor.stop_loading()  # it is loaded
        assert supervisor.state is EngineState.READY
        await supervisor.close()

    asyncio.run(scene())


def test_a_request_while_the_old_model_ends_keeps_its_reported_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        engine, over = Engine(), asyncio.Event()
        supervisor = Supervisor("x", start=engine)
        old = await supervisor.model()
        end = old.close_async

        async def slowly(**named: Any) -> None:
            await over.wait()
            await end(**named)

        monkeypatch.setattr(old, "close_async", slowly)
        changing = asyncio.create_task(supervisor.change(source="y"))
        await until(lambda: supervisor.running is None)
        engine.loading = asyncio.Event()
        waiting = asyncio.create_task(supervisor.model())
        await until(lambda: supervisor.state is EngineState.STARTING)
        over.set()
        await changing
        assert (supervisor.state, supervisor.reason) == (EngineState.STARTING, "loading y")
        engine.loading.set()
        await waiting
        await supervisor.close()

    asyncio.run(scene())


def test_another_model_is_loaded_by_the_next_request() -> None:
    asked: list[tuple[str, str]] = []
    engine = Engine()

    async def start(source: str, backend: str, **options: Any) -> LanguageModel:
        asked.append((source, backend))
        return await engine(source, backend, **options)

    async def scene() -> None:
        supervisor = Supervisor("one", "mock", start=start)
        old = await supervisor.model()
        await supervisor.change(source="two", backend="hf")
        assert supervisor.running is None
        assert supervisor.state is EngineState.NONE
        assert await supervisor.model() is not old
        await supervisor.close()

    asyncio.run(scene())
    assert asked == [("one", "mock"), ("two", "hf")]
