"""The settings of a session in the whole app: an adapter, a form, a system prompt and a seed; restored when it is reopened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.workbench import AppWorkbench
from app.workbench.tree.runs import content_of
from tests.end_to_end.driving import last, say, until
from tests.end_to_end.test_window import OpenApp, new_session
from tests.runtime.adapters.makers import save_adapter
from tests.tiny_models import tiny_folder
from ui import EngineState, MainWindow
from ui.controller.setup import FORM, SAMPLING, SYSTEM

LEFT = Qt.MouseButton.LeftButton


@pytest.mark.slow
def test_a_session_keeps_its_adapter_form_prompt_and_seed(open_app: OpenApp, tmp_path: Path) -> None:
    model, adapter = str(tiny_folder("llama").path), save_adapter(tmp_path / "pirate", "llama", seed=3)
    said: list[str] = []

    async def first(window: MainWindow, workbench: AppWorkbench) -> None:
        await new_session(window)
        await until(lambda: workbench.status.engine is EngineState.READY)
        window.acts.setup.trigger()
        popover = window.popover
        await until(lambda: "architecture" in popover.model.facts)
        popover.model.adapter_wanted.emit(str(adapter))  # the text of the dialog
        await until(lambda: bool(popover.model.adapters.rows))
        await until(lambda: "rank" in popover.model.adapters.rows[0].detail.text())
        QTest.mouseClick(popover.tabs[SAMPLING], LEFT)
        for name, value in (("seed", "7"), ("max_tokens", "200")):
            field = popover.sampling.options.fields[name]
            QTest.keyClicks(field, value)
            QTest.keyClick(field, Qt.Key.Key_Return)
            await until(lambda name=name: popover.sampling.options.sources[name].text() == "session")  # type: ignore[misc]  # bound now
        QTest.mouseClick(popover.tabs[SYSTEM], LEFT)
        QTest.keyClicks(popover.system.system, "Be brief.")
        QTest.mouseClick(popover.system.system_button, LEFT)
        await until(lambda: window.controller.shown is not None and len(window.controller.shown.view.turns) == 1)
        QTest.mouseClick(popover.tabs[FORM], LEFT)
        QTest.mouseClick(popover.form.kinds.buttons[1], LEFT)
        QTest.keyClicks(popover.form.source, '{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}')
        await until(popover.form.use_button.isEnabled)
        QTest.mouseClick(popover.form.use_button, LEFT)
        await until(lambda: not popover.form.use_button.isEnabled())
        say(window, "Well?")
        await until(lambda: not window.controller.running and last(window).role == "assistant")
        turn = last(window)
        said.append(content_of(turn.run))
        assert 2 <= len(json.loads(said[0])) <= 3
        assert (turn.note, turn.tier) == ("", "warm")

    async def second(window: MainWindow, workbench: AppWorkbench) -> None:
        await until(lambda: window.controller.shown is not None and not window.controller.shown.view.is_sample)
        await until(lambda: workbench.status.engine is EngineState.READY)
        window.acts.setup.trigger()
        popover = window.popover
        await until(lambda: bool(popover.model.adapters.rows))
        assert popover.sampling.options.fields["seed"].text() == "7"
        assert popover.system.system.toPlainText() == "Be brief."
        assert popover.form.kinds.buttons[1].isChecked()
        # a regenerated answer has a seed of its own, and the form
        window.acts.regenerate.trigger()
        await until(lambda: window.controller.running)
        await until(lambda: not window.controller.running)
        turn = last(window)
        assert len(turn.variants) == 2
        assert 2 <= len(json.loads(content_of(turn.run))) <= 3
        # the same seed, form and adapter give the same answer
        first_answer = turn.variants[0]
        window.controller.tree.select(first_answer)
        await until(lambda: last(window).node_id == first_answer)
        window.acts.regenerate_exactly.trigger()
        await until(lambda: window.controller.running)
        await until(lambda: not window.controller.running)
        turn = last(window)
        assert len(turn.variants) == 3
        assert content_of(turn.run) == said[0]
        assert workbench.services.supervisor.running is not None
        assert [adapter.loaded for adapter in workbench.services.supervisor.running.info.adapters] == [True]

    open_app(model, "hf", first)
    open_app(model, "hf", second)
