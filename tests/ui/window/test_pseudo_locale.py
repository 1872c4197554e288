"""The window in a longer language, in either direction of reading: no text is cut off."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QApplication, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import FakeWorkbench
from tests.ui.pseudo import Pseudo, clipped, pseudo
from tests.ui.visits import prepare, visit
from tests.ui.window.test_conversation import finish
from ui import MainWindow
from ui.inspector.alternatives import AlternativeButton
from ui.transcript import Mode
from ui.widgets.labels import Caption, ElidedLabel, Label

Play = Callable[[Scene], None]


@pytest.fixture(params=[Qt.LayoutDirection.LeftToRight, Qt.LayoutDirection.RightToLeft], ids=["ltr", "rtl"])
def foreign(app: QApplication, request: pytest.FixtureRequest) -> Iterator[Qt.LayoutDirection]:
    translator = Pseudo()
    app.installTranslator(translator)
    app.setLayoutDirection(request.param)
    yield request.param
    app.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
    app.removeTranslator(translator)


def test_pseudo_translations_keep_placeholders_and_markup() -> None:
    assert pseudo("&Open {0:,} of <b>{1}</b>").startswith("&Öpëñ {0:,} öf <b>{1}</b>")
    assert pseudo("{0} · {1}") == "{0} · {1}"


@pytest.mark.slow
def test_no_text_is_cut_off(
    foreign: Qt.LayoutDirection, in_window: Play, bench: FakeWorkbench, request: pytest.FixtureRequest
) -> None:
    prepare(bench)
    found: dict[str, str] = {}
    folder = os.environ.get("ELSEWISE_PICTURES", "")  # a folder for the pictures of the visited parts

    async def look(part: QWidget, name: str) -> None:
        for _attempt in range(100):  # a layout may take some turns of the loop
            cut = list(clipped(part))
            if not cut:
                break
            await frames()
        for one in cut:
            found.setdefault(one, name)
        if folder:
            part.grab().save(str(Path(folder) / f"{request.node.callspec.id}-{name}.png"))

    async def scene(window: MainWindow) -> None:
        window.resize(1360, 860)
        await frames()
        sidebar, transcript = window.parts.sidebar, window.parts.transcript
        assert sidebar.isVisible()
        places = [QRect(part.mapTo(window, QPoint(0, 0)), part.size()).center().x() for part in (sidebar, transcript)]
        assert (places[0] < places[1]) == (foreign is Qt.LayoutDirection.LeftToRight)
        await visit(window, bench, look)

    in_window(scene)
    assert found == {}


@pytest.mark.slow
def test_numbers_and_tokens_are_drawn_alike_in_both_reading_directions(
    app: QApplication, in_window: Play, bench: FakeWorkbench
) -> None:
    finish(bench)

    async def compare(shown: Sequence[QWidget]) -> None:
        before, sizes = [part.grab().toImage() for part in shown], [part.size() for part in shown]
        try:
            app.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
            await frames()
            assert [part.size() for part in shown] == sizes
            assert [part.grab().toImage() for part in shown] == before
        finally:
            app.setLayoutDirection(Qt.LayoutDirection.LeftToRight)

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(Mode.TOKENS)
        assert window.controller.shown is not None
        window.presenter.pin(window.controller.shown.view.turns[-1].node_id, 2)
        await frames()
        parts = [*window.parts.inspector.findChildren(AlternativeButton), window.parts.status.legend]
        shown = [part for part in parts if part.isVisible()]
        assert len(shown) > 5
        await compare(shown)
        window.acts.tree.trigger()
        await until(window.parts.tree.view.isVisible)
        await frames()
        await compare([window.parts.tree.view.viewport()])

    in_window(scene)


@pytest.mark.parametrize("text", ["−0.693 nats", ".500", "␣city", "A (Lisbon)?"])
def test_the_text_of_a_label_determines_its_direction(app: QApplication, text: str) -> None:
    images = []
    for direction in (Qt.LayoutDirection.LeftToRight, Qt.LayoutDirection.RightToLeft):
        label = ElidedLabel(text)
        label.setLayoutDirection(direction)
        label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        label.resize(label.sizeHint())
        app.setLayoutDirection(direction)
        try:
            images.append(label.grab().toImage())
        finally:
            app.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
    assert images[0] == images[1]


@pytest.mark.parametrize("kind", [Label, Caption, ElidedLabel])
def test_text_is_aligned_to_the_side_at_which_the_window_is_read_first(app: QApplication, kind: type[Label]) -> None:
    """Latin text too: in a right-to-left window a heading is at the right."""

    def inked(label: Label) -> int:
        image = label.grab().toImage()
        base = image.pixelColor(image.width() // 2, 0)
        columns = [x for x in range(image.width()) if any(image.pixelColor(x, y) != base for y in range(image.height()))]
        assert columns
        return (columns[0] + columns[-1]) // 2

    top = QWidget()
    label = kind("SmolLM2 · 8,192")
    label.setParent(top)
    label.resize(400, 24)
    assert inked(label) < 200
    top.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    assert inked(label) > 200
    label.setAlignment(Qt.AlignmentFlag.AlignRight)
    assert inked(label) < 200
    top.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
    assert inked(label) > 200
    app.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    try:
        alone = kind("SmolLM2 · 8,192")
        alone.resize(400, 24)
        assert inked(alone) > 200
    finally:
        app.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
