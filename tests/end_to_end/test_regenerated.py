"""An answer regenerated exactly: in the window, by a real engine process, before and after a restart."""

from __future__ import annotations

import secrets

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.workbench import AppWorkbench
from tests.end_to_end.driving import generated, last, say, until
from tests.end_to_end.test_window import OpenApp, answered, endless_session
from tests.tiny_models import tiny_folder
from ui import MainWindow, TurnStatus, TurnView

SAME = "the same, token for token"


def done(window: MainWindow) -> bool:
    turns = window.controller.shown.view.turns if window.controller.shown else ()
    return bool(turns) and turns[-1].role == "assistant" and not window.controller.running and bool(generated(turns[-1]))


async def once_more(window: MainWindow, old: TurnView) -> TurnView:
    QTest.keyClick(window, Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    await until(lambda: last(window).node_id != old.node_id and done(window))
    new = last(window)
    assert new.run.ids.tolist() == old.run.ids.tolist()
    assert SAME in new.note
    assert old.node_id in new.variants
    return new


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_regenerate_exactly_before_and_after_a_restart(
    open_app: OpenApp, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[TurnView] = []
    # of a few hundred seeds, one falls within the rounding of the border between two tokens (docs/sampling-and-seeds.md)
    monkeypatch.setattr(secrets, "randbits", lambda _bits: 20)

    async def first(window: MainWindow, workbench: AppWorkbench) -> None:
        await endless_session(window, workbench)
        say(window, "What is blue?")
        await answered(window, 8)
        window.controller.answers.stop()  # the tiny model would generate up to its limit
        await until(lambda: done(window))
        old = last(window)
        assert old.status in (TurnStatus.PARTIAL, TurnStatus.COMPLETE)
        answers.append(await once_more(window, old))
        # the inspector's path tab shows its provenance
        window.parts.show_inspector(True)
        window.parts.inspector.tabs[1].click()
        facts = window.parts.inspector.path.provenance.facts.texts
        assert facts["engine"].startswith(backend)
        assert facts["repeats"] == SAME
        assert facts["seed"] == "20 (drawn)"
        assert workbench.answers.how_made(window.controller.shown.session_id, old.node_id) is not None  # type: ignore[union-attr]  # shown

    async def second(window: MainWindow, _workbench: AppWorkbench) -> None:
        await until(lambda: window.controller.shown is not None and window.controller.shown.view.turns)
        listed = window.parts.sidebar.sessions
        assert listed is not None
        if window.controller.shown is not None and window.controller.shown.view.is_sample:
            window.controller.open(next(s for s, row in window.controller.sessions.rows.items() if not row.is_sample))
            await until(lambda: not window.controller.shown.view.is_sample)  # type: ignore[union-attr]  # shown
        old = last(window)
        assert SAME in old.note
        run = old.run
        assert run.stages is not None
        assert [run.stages.as_drawn(i) for i in generated(old)] == run.ids[generated(old)].tolist()
        await once_more(window, old)

    folder = str(tiny_folder("llama").path)
    open_app(folder, backend, first)
    open_app(folder, backend, second)
