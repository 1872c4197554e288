"""The first start: one hint about tokens, and models that fit after the sample session."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow
from ui.theme.text_size import resize_text
from ui.transcript import Mode

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton


@pytest.mark.slow
def test_the_hint_about_tokens_is_shown_once(in_window: Play, bench: FakeWorkbench) -> None:
    bench.left_hints = frozenset({"tokens"})

    async def scene(window: MainWindow) -> None:
        coach = window.parts.coach
        await until(coach.isVisible)
        assert bench.asked("dismiss_hint") == [("tokens",)]  # neither other windows nor the next start show it
        assert window.parts.composer.field.hasFocus()  # it does not take the keyboard focus
        for width in (1400, 900, 560):
            window.resize(width, 640)
            await frames()
            text, mark = window.parts.transcript.geometry(), coach.geometry()  # of the same parent
            assert window.parts.column.rect().contains(mark)
            assert not text.intersects(mark)
            assert text.height() > mark.height()
        # in Read mode there are no colours to explain
        window.presenter.set_mode(Mode.READ)
        assert not coach.isVisible()
        window.presenter.set_mode(Mode.TOKENS)
        assert coach.isVisible()
        QTest.mouseClick(coach.done_button, LEFT)
        assert not coach.isVisible()
        window.presenter.set_mode(Mode.READ)
        window.presenter.set_mode(Mode.TOKENS)
        assert not coach.isVisible()

    in_window(scene)


def test_clicking_a_token_hides_the_hint_about_tokens(in_window: Play, bench: FakeWorkbench) -> None:
    bench.left_hints = frozenset({"tokens"})

    async def scene(window: MainWindow) -> None:
        await until(window.parts.coach.isVisible)
        tokens = window.parts.transcript.tokens
        turn = bench.views[TRIP].turns[1]
        await until(lambda: tokens.token_box(turn.node_id, 0) is not None)
        box = tokens.token_box(turn.node_id, 0)
        assert box is not None
        QTest.mouseClick(tokens.viewport(), LEFT, pos=box.center())
        assert not window.parts.coach.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_only_one_of_two_windows_that_open_at_once_shows_the_hint(
    in_window: Play, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.left_hints = frozenset({"tokens"})

    async def hints() -> frozenset[str]:
        return frozenset({"tokens"})  # both asked before either showed it

    monkeypatch.setattr(bench.settings, "hints", hints)

    async def scene(window: MainWindow) -> None:
        other = MainWindow(bench, beside=window)
        other.show()
        other.start()
        await until(lambda: other.controller.shown is not None and len(bench.asked("dismiss_hint")) == 2)
        await frames()
        assert window.parts.coach.isVisible() != other.parts.coach.isVisible()
        other.close()
        await until(lambda: not other.isVisible())
        bench.closed = False  # the workbench is shared: the scene closes the first window itself
        other.deleteLater()

    in_window(scene)


def test_models_that_fit_are_offered_after_the_sample(in_window: Play, bench: FakeWorkbench) -> None:
    bench.left_hints = frozenset({"models"})
    bench.views[TRIP] = replace(bench.views[TRIP], is_sample=True)

    async def scene(window: MainWindow) -> None:
        first = window.parts.first
        await until(first.isVisible)
        (row,) = first.offers.rows  # models that suit this machine
        assert (row.name.text(), row.facts.text()[:23]) == ("Qwen3 0.6B", "596 M parameters · 1.2 ")
        assert first.place.text() == "Your sessions are kept on this machine, in /data/elsewise"
        assert bench.asked("download") == bench.asked("plan_model") == []
        QTest.mouseClick(row.get_button, LEFT)
        assert bench.asked("download") == [("org/qwen3",)]
        await until(lambda: row.get_button.text() == "fetching")
        # it is shown only in the sample
        window.controller.new_session()
        await until(lambda: not first.isVisible())
        window.controller.open(TRIP)
        await until(first.isVisible)
        QTest.mouseClick(first.dismiss_button, LEFT)
        assert not first.isVisible()
        await until(lambda: bench.asked("dismiss_hint") == [("models",)])

    in_window(scene)


@pytest.mark.parametrize(("width", "height", "scale"), [(560, 420, 1.0), (900, 640, 2.0)])
def test_a_hint_without_room_is_hidden_until_there_is_room_and_is_not_cut(
    in_window: Play, bench: FakeWorkbench, app: QApplication, width: int, height: int, scale: float
) -> None:
    bench.left_hints = frozenset({"tokens", "models"})
    bench.views[TRIP] = replace(bench.views[TRIP], is_sample=True)

    def whole(card: QWidget) -> bool:
        return card.isVisible() and card.height() >= card.heightForWidth(card.width())

    async def scene(window: MainWindow) -> None:
        coach, first = window.parts.coach, window.parts.first
        await until(lambda: coach.isVisible() and first.isVisible())
        resize_text(app, scale)
        window.resize(width, height)
        await until(lambda: not first.isVisible())
        await frames()
        assert whole(coach)
        assert window.parts.composer.height() >= window.parts.composer.sizeHint().height()
        QTest.mouseClick(coach.done_button, LEFT)
        window.resize(width, height + 80)
        await until(lambda: whole(first))

    in_window(scene)


@pytest.mark.slow
def test_a_model_is_imported_from_a_file_at_the_first_start(in_window: Play, bench: FakeWorkbench) -> None:
    bench.left_hints = frozenset({"models"})
    bench.views[TRIP] = replace(bench.views[TRIP], is_sample=True)

    async def scene(window: MainWindow) -> None:
        await until(window.parts.first.isVisible)
        QTest.mouseClick(window.parts.first.import_button, LEFT)
        (dialog,) = [each for each in window.settings.findChildren(QFileDialog) if each.isVisible()]
        dialog.fileSelected.emit("/files/some.gguf")
        dialog.close()
        page = window.settings.models
        await until(lambda: page.notice.words == "some is installed")

    in_window(scene)


def test_dismissed_hints_are_not_shown_again(in_window: Play, bench: FakeWorkbench) -> None:
    bench.views[TRIP] = replace(bench.views[TRIP], is_sample=True)

    async def scene(window: MainWindow) -> None:
        await frames()
        assert not window.parts.coach.isVisible()
        assert not window.parts.first.isVisible()
        assert bench.asked("model_shelf") == []

    in_window(scene)
