"""A model in the whole app: searched, fetched, opened, used, and not removable while it is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.workbench import AppWorkbench
from runtime import ModelLoadError, ModelShelf
from tests.end_to_end.driving import until
from tests.end_to_end.test_window import OpenApp, new_session
from tests.runtime.hub.local_hub import LocalHub, running
from tests.tiny_models import tiny_folder, tiny_path
from tests.ui.models.test_models_page import pick
from ui import EngineState, MainWindow

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.mark.slow
def test_a_model_is_fetched_opened_and_kept_while_it_is_loaded(open_app: OpenApp, hub: LocalHub) -> None:
    commit = hub.add("org/tiny", {path.name: path.read_bytes() for path in tiny_path("llama").iterdir() if path.is_file()})

    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        await new_session(window)
        await until(lambda: workbench.status.engine is EngineState.READY)
        assert hub.asked == []
        window.acts.setup.trigger()
        QTest.mouseClick(window.popover.model.more_button, LEFT)
        page = window.settings.models
        await until(page.get.field.hasFocus)
        QTest.keyClicks(page.get.field, "org/tiny")
        QTest.keyClick(page.get.field, Qt.Key.Key_Return)
        await until(page.get.card.isVisible)
        assert page.get.card.commit.text() == f"commit {commit[:12]}"
        QTest.mouseClick(page.get.card.download_button, LEFT)
        name = f"org/tiny@{commit[:12]}"
        await until(lambda: name in page.models)
        row = page.models[name]
        before = workbench.services.supervisor.running
        QTest.mouseClick(row.open_button, LEFT)
        await until(row.card.isVisible)
        assert row.card.fit_words.text().startswith("fits with 4,096 tokens")
        row.card.context.setCurrentIndex(row.card.context.findData(1024))
        row.card.context.activated.emit(row.card.context.currentIndex())
        await until(lambda: row.card.fit_words.text().startswith("fits with 1,024 tokens"))
        QTest.mouseClick(row.card.open_button, LEFT)
        await until(lambda: workbench.services.supervisor.running not in (None, before))
        running = workbench.services.supervisor.running
        assert running is not None
        assert running.info.context_length == 1024
        await until(lambda: row.facts.text().endswith("opens with 1,024 tokens"))
        await until(row.in_use.isVisible)
        assert window.parts.top.model.text() == row.model.title
        # it cannot be removed while it is loaded, also by another process
        pick(row, row.remove_action)
        QTest.mouseClick(row.ask.do_button, LEFT)
        await until(lambda: "is in use here" in page.notice.words)
        with pytest.raises(ModelLoadError, match="is loaded"):
            await asyncio.to_thread(ModelShelf().remove, name)
        assert name in page.models
        # and it is undamaged
        pick(row, row.verify_action)
        await until(lambda: row.state.text().startswith("every file is intact"))
        # and a copy of it is quantised for mlx
        pick(row, row.quantise_action)
        QTest.mouseClick(row.quantise.choice.buttons[1], LEFT)
        QTest.mouseClick(row.quantise.do_button, LEFT)
        await until(lambda: row.state.text() == "org/tiny-8bit is installed")
        await until(lambda: "org/tiny-8bit" in page.models)

    open_app(str(tiny_folder("llama").path), "hf", scene)
