"""Send, stream, click a token, branch, stop, kill the engine, quit, reopen: with mouse and keys, on real weights."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable

import psutil
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.paths import DataFolder
from app.workbench import AppWorkbench
from app.workbench.answers.reopening import DONE
from app.workbench.transfer.exports import FORMATS
from runtime import LanguageModel, TokenRun
from tests.end_to_end.conftest import Scene
from tests.end_to_end.driving import PATIENCE_SECONDS, at_rest, click, generated, last, say, until, whole
from tests.end_to_end.paced import SPECIALS
from tests.tiny_models import tiny_folder
from ui import EngineState, MainWindow, SessionView, Tier, TurnStatus, TurnView

OpenApp = Callable[[str, str, Scene], None]


def scored(window: MainWindow) -> bool:
    """Whether every token of the path but the first has its numbers."""
    assert window.controller.shown is not None
    path = TokenRun.concat([turn.run for turn in window.controller.shown.view.turns])
    return len(path) > 1 and bool((path.rank[1:] > 0).all())


async def new_session(window: MainWindow) -> None:
    await until(lambda: window.controller.shown is not None)
    window.acts.new_session.trigger()
    await until(lambda: window.controller.shown is not None and not window.controller.shown.view.is_sample)


async def seeded_session(window: MainWindow, workbench: AppWorkbench) -> None:
    """A new session with a seed, so that its answers are the same in every run."""
    await new_session(window)
    assert window.controller.shown is not None
    await workbench.setup.set_option(window.controller.shown.session_id, "seed", 7)


async def endless_session(window: MainWindow, workbench: AppWorkbench) -> None:
    """A new session without eos, which random weights would draw now and then."""
    await new_session(window)
    assert window.controller.shown is not None
    await workbench.setup.set_option(window.controller.shown.session_id, "banned_tokens", list(range(SPECIALS)))


async def answered(window: MainWindow, tokens: int) -> TurnView:
    """Waits until so many tokens have arrived; returns the last turn."""

    def arrived() -> bool:
        shown = window.controller.shown
        return shown is not None and bool(shown.view.turns) and len(generated(shown.view.turns[-1])) >= tokens

    await until(arrived)
    return last(window)


def engine_pid(workbench: AppWorkbench) -> int:
    model = workbench.services.supervisor.running
    assert isinstance(model, LanguageModel)
    return model.pid


def test_the_open_sample_is_reopened_although_there_are_other_sessions(open_app: OpenApp, paced: str) -> None:
    model = str(tiny_folder("llama").path)

    async def first(window: MainWindow, workbench: AppWorkbench) -> None:
        await until(lambda: window.controller.shown is not None)
        sample = window.controller.shown.session_id  # type: ignore[union-attr]  # shown
        await seeded_session(window, workbench)
        say(window, "Well?")
        await answered(window, 1)
        window.controller.open(sample)
        await until(lambda: window.controller.shown is not None and window.controller.shown.view.is_sample)

    async def second(window: MainWindow, _: AppWorkbench) -> None:
        await until(lambda: window.controller.shown is not None)
        assert window.controller.shown is not None
        assert window.controller.shown.view.is_sample
        await until(lambda: len(window.controller.sessions.rows) == 2)

    for scene in (first, second):
        open_app(model, paced, scene)


def test_a_chat_from_first_word_to_reopening(open_app: OpenApp, paced: str, data: DataFolder) -> None:
    model = str(tiny_folder("llama").path)
    kept: dict[str, object] = {}

    async def first_evening(window: MainWindow, workbench: AppWorkbench) -> None:
        # given: the window shows the sample before any engine runs
        await until(lambda: window.controller.shown is not None)
        assert window.controller.shown is not None
        assert window.controller.shown.view.is_sample
        # with the hints of a first run
        await until(window.parts.first.isVisible)
        # and it offers the registered backend
        assert [choice.name for choice in workbench.models.backends() if choice.chosen] == [paced]
        await seeded_session(window, workbench)
        # when a message is sent
        say(window, "Where should we go?")
        turn = await answered(window, 24)
        # then it is saved, and the stream continues
        with sqlite3.connect(f"file:{data.sessions}?mode=ro", uri=True) as db:
            assert db.execute("select count(*) from nodes where text = 'Where should we go?'").fetchone() == (1,)
        assert turn.status is TurnStatus.STREAMING
        # and every token of the prompt has its numbers
        assert scored(window)

        # when the answer is stopped
        QTest.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: last(window).status is TurnStatus.PARTIAL)
        stopped = last(window)
        assert stopped.note == "stopped"
        assert len(generated(stopped)) >= 24

        # when an alternative of an inner token is chosen with its number
        index = whole(stopped, generated(stopped)[2])
        tokens = window.parts.transcript.tokens
        await click(window, stopped.node_id, index)
        record = stopped.run.record(index)
        place = next(k for k, token in enumerate(record.top_ids) if token != record.token_id)
        await until(
            lambda: len(window.parts.inspector.token.alternatives.buttons) >= 10
        )  # plus the chosen one, if it is further down
        QTest.keyClick(tokens, Qt.Key(Qt.Key.Key_1 + place))
        await until(lambda: last(window).node_id != stopped.node_id and len(generated(last(window))) >= 8)
        # then the branch is a sibling with the same prefix, and the old answer the other one of two
        branch = last(window)
        assert branch.run.ids[:index].tolist() == stopped.run.ids[:index].tolist()
        assert branch.run.ids[index] == record.top_ids[place]
        assert branch.run.logprob[index] == pytest.approx(record.top_logprobs[place])
        assert branch.variants == (stopped.node_id, branch.node_id)
        QTest.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: last(window).status is TurnStatus.PARTIAL)
        stats = last(window).stats
        assert stats is not None
        assert stats.computed == 1
        assert stats.reused == sum(len(t.run) for t in window.controller.shown.view.turns[:-1]) + index
        assert len(window.controller.shown.view.branches) >= 3
        assert last(window).tier is Tier.WARM

        # when the two branches are compared, they are shown side by side until Esc
        await at_rest(window)
        QTest.keyClick(window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
        await until(window.parts.compare.isVisible)
        assert branch.run.texts[index].strip() in window.parts.compare.text.toPlainText()
        QTest.keyClick(window.parts.compare.text, Qt.Key.Key_Escape)
        await until(lambda: not window.parts.compare.isVisible())
        # and when the session is exported, the file holds both
        window.transfers.export(window.controller.shown.session_id, FORMATS["json"].format, data.root / "saved.json")
        await until((data.root / "saved.json").exists)
        assert len(json.loads((data.root / "saved.json").read_text("utf-8"))["nodes"]) >= 4

        # when the engine is killed in the middle of the next answer
        say(window, "Why?")
        await until(lambda: last(window).node_id != branch.node_id)
        await answered(window, 4)
        os.kill(engine_pid(workbench), signal.SIGKILL)
        await until(lambda: last(window).status is TurnStatus.PARTIAL)
        # then the text is kept, with a note
        assert len(generated(last(window))) >= 4
        assert "your text is kept" in last(window).note
        # and it starts another one automatically, and reads the session again
        await until(lambda: last(window).note == DONE)
        assert workbench.status.engine is EngineState.READY
        assert last(window).tier is Tier.WARM
        # and the next message works
        died = last(window).node_id
        say(window, "Once more?")
        await until(lambda: last(window).node_id != died)
        await answered(window, 4)
        kept["view"] = window.controller.shown.view
        kept["engine"] = psutil.Process(engine_pid(workbench))
        kept["quit"] = time.monotonic()

    open_app(model, paced, first_evening)
    # then the app has ended in the middle of the stream, with its engine, within the sum of its limits
    assert time.monotonic() - float(str(kept["quit"])) < PATIENCE_SECONDS
    engine = kept["engine"]
    assert isinstance(engine, psutil.Process)
    asyncio.run(until(lambda: not engine.is_running()))  # not even a zombie

    async def next_morning(window: MainWindow, workbench: AppWorkbench) -> None:
        # when the app is reopened, everything is restored
        await until(lambda: window.controller.shown is not None)
        assert window.controller.shown is not None
        view, before = window.controller.shown.view, kept["view"]
        assert isinstance(before, SessionView)
        ids = [turn.run.ids.tolist() for turn in view.turns]
        *whole, streamed = [turn.run.ids.tolist() for turn in before.turns]
        assert ids[:-1] == whole
        assert ids[-1][: len(streamed)] == streamed  # and the tokens up to the stop
        assert last(window).status is TurnStatus.PARTIAL
        assert len(view.branches) == len(before.branches)
        assert scored(window)

    open_app(model, paced, next_morning)


@pytest.mark.slow
def test_smollm2_answers_in_the_window(open_app: OpenApp) -> None:
    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        await until(lambda: window.controller.shown is not None)
        await new_session(window)
        say(window, "Name three colours. 说中文 🎨")
        turn = await answered(window, 6)
        assert (turn.run.rank[1:] > 0).all()
        QTest.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: last(window).status is not TurnStatus.STREAMING)
        assert window.controller.shown is not None
        assert scored(window)
        user = window.controller.shown.view.turns[-2]
        assert "说中文 🎨" in user.run.text

    open_app("smollm2", "hf", scene)
