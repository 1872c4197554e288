"""Faults of the engine process: killed while idle, frozen during a request, replaced while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil
import pytest

from app.workbench import AppWorkbench
from runtime import LanguageModel
from tests.end_to_end.driving import generated, last, say, until
from tests.end_to_end.test_window import OpenApp, answered, endless_session, engine_pid, new_session
from tests.exits import running
from tests.tiny_models import tiny_folder
from ui import EngineState, MainWindow, TurnStatus

WATCHDOG_SECONDS = 30.0  # after which a hung engine is killed


LOADING = "engine stopped while loading (signal 9, SIGKILL); your text is kept. Send again to restart it"


def model() -> str:
    return str(tiny_folder("llama").path)


@pytest.mark.slow
def test_an_engine_killed_while_idle_is_restarted_by_the_next_message(open_app: OpenApp, paced: str) -> None:
    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        await new_session(window)
        await until(lambda: workbench.status.engine is EngineState.READY)
        first = engine_pid(workbench)
        model = workbench.services.supervisor.running
        # given: it is killed while idle
        os.kill(first, signal.SIGKILL)
        await until(lambda: isinstance(model, LanguageModel) and model.ended is not None)
        # when a message is sent, then it is answered: no turn is lost
        say(window, "Are you there?")
        await answered(window, 3)
        assert engine_pid(workbench) != first
        assert last(window).status is TurnStatus.STREAMING
        window.controller.answers.stop()
        await until(lambda: last(window).status is TurnStatus.PARTIAL)
        assert last(window).note == "stopped"

    open_app(model(), paced, scene)


def loading_engine() -> psutil.Process | None:
    """The engine process, before it has reported to any client."""
    return next(iter(running("runtime.transport")), None)


@pytest.mark.slow
def test_an_engine_killed_while_it_loads_is_started_by_the_next_message(open_app: OpenApp, paced: str) -> None:
    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        # given: a message waits for the engine
        await new_session(window)
        say(window, "Are you there?")
        await until(
            lambda: loading_engine() is not None and bool(window.controller.shown and window.controller.shown.view.turns)
        )
        assert workbench.services.supervisor.running is None
        process = loading_engine()
        assert process is not None
        # when it is killed
        process.kill()
        # then the turn and the status bar report it in one line, and the message is kept
        await until(lambda: last(window).status is TurnStatus.PARTIAL)
        assert last(window).note == LOADING
        assert workbench.status.engine is EngineState.DIED
        assert workbench.status.reason == LOADING
        assert window.controller.shown is not None
        assert window.controller.shown.view.turns[-2].run.text == "Are you there?"
        # and the next one is answered
        await until(lambda: not window.controller.running)
        say(window, "And now?")
        await answered(window, 3)
        window.controller.answers.stop()
        await until(lambda: last(window).status is TurnStatus.PARTIAL)
        assert [turn.role for turn in window.controller.shown.view.turns if turn.role == "user"] == ["user", "user"]

    open_app(model(), paced, scene)


@pytest.mark.slow
def test_quitting_does_not_wait_for_a_frozen_engine(open_app: OpenApp, paced: str) -> None:
    began: list[float] = []

    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        await new_session(window)
        say(window, "Where should we go?")
        turn = await answered(window, 3)
        # given: the engine freezes in the middle of the answer
        os.kill(engine_pid(workbench), signal.SIGSTOP)
        await asyncio.sleep(0.2)
        assert generated(turn)
        began.append(time.monotonic())

    # when the window is closed
    open_app(model(), paced, scene)
    # then the app ends long before the watchdog would have killed the engine
    assert time.monotonic() - began[0] < WATCHDOG_SECONDS / 3


@pytest.mark.slow
def test_another_engine_answers_the_next_message(open_app: OpenApp, paced: str) -> None:
    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        await endless_session(window, workbench)
        await until(lambda: workbench.status.engine is EngineState.READY)
        first = engine_pid(workbench)
        # when another engine is chosen and a message follows at once
        changing = asyncio.create_task(workbench.models.choose_backend("hf"))
        say(window, "Hello")
        await changing
        await answered(window, 3)
        # then it is answered by the new one
        running = workbench.services.supervisor.running
        assert running is not None
        assert running.info.backend == "hf"
        assert engine_pid(workbench) != first
        assert [choice.name for choice in workbench.models.backends() if choice.chosen] == ["hf"]

    open_app(model(), paced, scene)
