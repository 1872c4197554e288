"""Getting models in the window: plans, downloads, proposals, search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import Scene, frames, until
from tests.ui.fake_state import FIT, PLAN
from tests.ui.fakes import FakeWorkbench
from ui import DownloadState, DownloadView, MainWindow
from ui.models.page import ModelsPage
from ui.settings import MODELS
from ui.widgets.labels import ElidedLabel

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton
BIG = DownloadView(
    "org/big", DownloadState.RUNNING, "model.safetensors", 120_000_000, 4_000_000_000, 1_200_000_000, 8_000_000_000,
    rate=31e6, eta=220.0, step="fetch",
)  # fmt: skip


async def opened(window: MainWindow) -> ModelsPage:
    QTest.keyClick(window, Qt.Key.Key_Comma, Qt.KeyboardModifier.ControlModifier)
    page = window.settings.models
    await until(lambda: window.settings.isVisible() and page.models and page.get.offers.rows)
    return page


@pytest.mark.slow
def test_a_plan_is_shown_before_any_download(in_window: Play, bench: FakeWorkbench) -> None:
    bench.asking = asyncio.Event()
    bench.plan = replace(PLAN, kept=100_000_700)

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        get, card = page.get, page.get.card
        get.field.setFocus()
        QTest.keyClicks(get.field, "org/tiny")
        QTest.keyClick(get.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("plan_model") == [("org/tiny",)])
        assert get.looking.text() == "Looking up org/tiny on Hugging Face…"
        bench.asking.set()  # type: ignore[union-attr]  # set above
        await until(lambda: card.isVisible())
        assert (card.title.text(), card.commit.text()) == ("org/tiny", "commit 453888666038")
        assert card.facts.text() == "351 MB to download · licence apache-2.0 · runs on hf, mlx · 120 GB free on disk"
        assert card.kept.text().startswith("100 MB already downloaded")
        assert card.fit_words.text() == "fits with 8,192 tokens: about 2.2 GB of this machine's 8 GB, 5 GB free now"
        assert card.download_button.text() == "Download 251 MB"
        QTest.keyClick(card.files_button, Qt.Key.Key_Space)
        names = [
            label.text()
            for label in card.findChildren(ElidedLabel)
            if label.isVisible() and label.text()[-4:] in ("json", "sors")
        ]
        assert names == ["config.json", "model.safetensors"]
        # another context: one that does not fit can be chosen nevertheless
        bench.plan = replace(PLAN, fit=replace(FIT, context=32_768))
        place = card.context.findData(40_960)
        assert card.context.itemText(place) == "40,960 tokens: too many"
        card.context.setFocus()
        QTest.keyClick(card.context, Qt.Key.Key_End)
        await until(lambda: bench.asked("fit") == [(40_960,)])
        # only this model is loaded with that context
        await until(lambda: card.context.currentData() == 40_960)
        QTest.mouseClick(card.own_button, LEFT)
        await until(lambda: bench.asked("remember_context") == [(PLAN.name, 40_960)])
        await until(lambda: card.own_button.text() == "this context is used")
        assert bench.asked("change_setting") == []
        # then
        assert bench.asked("download") == []
        QTest.mouseClick(card.download_button, LEFT)
        assert bench.asked("download") == [(PLAN.pinned,)]
        await until(lambda: "org/tiny" in page.downloads)
        assert not card.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_marked_and_can_be_downloaded_anyway(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        card = page.get.card
        look_up(page, replace(PLAN, fit=replace(FIT, weights=32_000_000_000, longest=0)), bench)
        await until(lambda: card.isVisible())
        assert "does not fit with 8,192 tokens: about 33 GB of this machine's 8 GB" in card.fit_words.text()
        assert card.download_button.text() == "Download 351 MB anyway"
        assert card.bar.accessibleName() == "About 33 GB of 8 GB of memory"
        look_up(page, replace(PLAN, fit=None, engines=("mlx",)), bench)
        await until(lambda: card.fit_words.text() == "no engine on this machine can run it; mlx could")
        assert not card.bar.isVisible()
        # a model that is here already is not downloaded
        look_up(page, replace(PLAN, here=True), bench)
        await until(lambda: card.download_button.text() == "Open")
        QTest.mouseClick(card.download_button, LEFT)
        await until(lambda: bench.asked("choose_model") == [(PLAN.name,)])
        assert bench.asked("download") == []

    in_window(scene)


def look_up(page: ModelsPage, plan: object, bench: FakeWorkbench) -> None:
    bench.plan = plan  # type: ignore[assignment]  # a plan
    page.get.field.setText("org/tiny")
    QTest.mouseClick(page.get.look_button, LEFT)


@pytest.mark.slow
def test_a_refused_plan_names_the_cause(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        bench.refusal = "org/cuda@main: its weights are quantised with gptq, which needs CUDA libraries; choose the plain model"
        QTest.keyClicks(page.get.field, "org/cuda")
        QTest.mouseClick(page.get.look_button, LEFT)
        await until(lambda: "needs CUDA libraries" in page.get.looking.text())
        assert (page.get.card.isVisible(), page.get.look_button.isEnabled()) == (False, True)
        # other typed text is a new look-up
        QTest.keyClicks(page.get.field, "x")
        assert not page.get.looking.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_download_shows_progress_and_can_be_paused_resumed_and_cancelled(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page, link = await opened(window), window.parts.status.downloads
        assert not link.isVisible()
        bench.show_download(BIG)
        await until(lambda: "org/big" in page.downloads)
        row = page.downloads["org/big"]
        assert row.numbers.text() == "15 % · 31 MB/s · 3 min 40 s left"
        assert row.detail.text() == "1.2 GB of 8 GB · model.safetensors: 120 MB of 4 GB"
        # the status bar shows it too, also when the page is closed
        window.settings.close()
        assert link.text() == "big 15 % · 31 MB/s"
        QTest.mouseClick(link, LEFT)
        assert window.settings.isVisible()
        assert window.settings.tabs[MODELS].isChecked()
        QTest.mouseClick(row.pause_button, LEFT)
        await until(lambda: row.go_on_button.isVisible() and not row.pause_button.isVisible())
        assert row.detail.text() == "paused; 1.2 GB of 8 GB downloaded and kept"
        assert not link.isVisible()
        QTest.mouseClick(row.go_on_button, LEFT)
        await until(lambda: row.pause_button.isVisible())
        assert bench.asked("download") == [("org/big",)]
        # it fails
        bench.show_download(
            replace(BIG, state=DownloadState.FAILED, note="the hub cannot be reached; check the network", rate=0.0)
        )
        await until(lambda: row.cause.text() == "the hub cannot be reached; check the network")
        assert row.detail.text() == "1.2 GB of 8 GB downloaded and kept"
        assert (row.go_on_button.text(), link.text()) == ("Try again", "big: download failed")
        # cancelled, after a question
        QTest.mouseClick(row.cancel_button, LEFT)
        assert row.ask.words == "cancel and delete the 1.2 GB already downloaded?"
        assert bench.asked("cancel_download") == []
        QTest.mouseClick(row.ask.do_button, LEFT)
        await until(lambda: "org/big" not in page.downloads)
        assert not link.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_completed_download_can_be_opened(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        done = replace(BIG, state=DownloadState.DONE, name="org/big@1", done=BIG.total)
        bench.show_download(done)
        bench.show_download(DownloadView("me/pirate", DownloadState.DONE, name="me/pirate@2", kind="adapter"))
        await until(lambda: "me/pirate" in page.downloads)
        row, adapter = page.downloads["org/big"], page.downloads["me/pirate"]
        assert (row.numbers.text(), window.parts.status.downloads.text()) == ("8 GB, ready", "pirate is ready")
        assert not adapter.open_button.isVisible()
        QTest.mouseClick(row.open_button, LEFT)
        await until(lambda: bench.asked("choose_model") == [("org/big@1",)])
        await until(lambda: "org/big" not in page.downloads)
        QTest.mouseClick(adapter.cancel_button, LEFT)
        await until(lambda: not page.downloads)

    in_window(scene)


@pytest.mark.slow
def test_proposals_are_downloaded_or_looked_up_with_one_button_each(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        small, best, large = page.get.offers.rows
        assert (small.state.text(), best.state.text()) == ("", "suits this machine")
        assert small.facts.text() == "135 M parameters · 269 MB · Apache-2.0 · fits with 8,192 tokens"
        assert (
            "does not fit: needs about 33 GB, this machine has 8 GB · accept its terms on its page first" in large.facts.text()
        )
        assert [each.get_button.property("kind") for each in (small, best, large)] == ["quiet", "quiet", "plain"]
        QTest.mouseClick(best.get_button, LEFT)
        await until(lambda: best.get_button.text() == "fetching")
        assert bench.asked("download") == [("org/qwen3",)]
        assert not best.get_button.isEnabled()
        # a model with obstacles is looked up first
        QTest.mouseClick(large.get_button, LEFT)
        await until(lambda: bench.asked("plan_model") == [("org/llama",)])
        assert len(bench.asked("download")) == 1

    in_window(scene)


@pytest.mark.slow
def test_the_hub_is_searched_only_on_request(in_window: Play, bench: FakeWorkbench) -> None:
    bench.asking = asyncio.Event()

    async def scene(window: MainWindow) -> None:
        get = (await opened(window)).get
        QTest.keyClicks(get.field, "tiny chat")
        await frames()
        assert bench.asked("search_hub") == []
        QTest.mouseClick(get.search_button, LEFT)
        await until(lambda: bench.asked("search_hub") == [("tiny chat",)])
        assert (get.looking.text(), get.search_button.isEnabled()) == ("Searching Hugging Face for tiny chat…", False)
        bench.asking.set()  # type: ignore[union-attr]  # set above
        await until(lambda: len(get.finds.rows) == 2)
        good, bad = get.finds.rows
        assert good.facts.text() == "12 M parameters · 4 bit (mlx) · mit · 1,200 downloads last month"
        assert (good.problem.isVisible(), "needs CUDA" in bad.problem.text()) == (False, True)
        # a result is looked up like any other name
        QTest.mouseClick(good.look_button, LEFT)
        await until(lambda: bench.asked("plan_model") == [("org/tiny",)] and get.card.isVisible())
        # no results, and an unreachable hub
        bench.finds = []
        QTest.mouseClick(get.search_button, LEFT)
        await until(lambda: get.looking.text() == "No results on Hugging Face for org/tiny")
        assert not get.finds.isVisible()
        bench.refusal = "the hub cannot be reached; check the network"
        QTest.mouseClick(get.search_button, LEFT)
        await until(lambda: get.looking.text() == "the hub cannot be reached; check the network")
        assert get.search_button.isEnabled()

    in_window(scene)
