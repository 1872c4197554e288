"""The inspector's Cache: the trie, emptied, pinned, checked, with the real mouse and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMenu, QPushButton

from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import EngineState, MainWindow, OwnColours, StatusChanged, StatusView
from ui.inspector.cache import CacheTab
from ui.theme.scheme import current_theme

Play = Callable[[Scene], None]


async def opened(window: MainWindow) -> CacheTab:
    window.parts.show_inspector(True)
    current_theme().show(OwnColours.HALF, developer=True)
    press(window.parts.inspector.tabs[2])
    await until(window.parts.inspector.page(CacheTab).isVisible)
    return window.parts.inspector.page(CacheTab)


def press(button: QPushButton) -> None:
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


@pytest.mark.slow
def test_the_cache_tab_updates_the_trie_only_while_it_is_visible(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        assert bench.asked("cache") == []  # out of sight
        cache = await opened(window)
        assert cache.trie.texts == {
            "edges": "4",
            "tokens": "313",
            "bytes": "14 MB",
            "leases": "2 · 1.4 MB",
            "hits": "7 of 9",
            "pinned paths": "0",
        }
        assert cache.ended.text() == "last look-up: 312 tokens found; the text goes on otherwise here"
        (first, size), (second, under) = cache.edges.texts.items()
        assert (first, size) == ("1  …in April?", "40 · 1.8 MB")
        assert under == "12 · 552 kB · poet × 0.5"
        assert second.endswith("<b>rains</b>ESC[31m")  # text of a model is shown, not interpreted
        # and changes are shown without a request of the user
        assert bench.trie is not None
        bench.trie = replace(bench.trie, edges=5, working_bytes=3_000_000)
        await until(lambda: cache.trie.texts["edges"] == "5")
        assert cache.memory.texts["in work"] == "3 MB"
        # and no request is sent any more when another tab is in front
        press(window.parts.inspector.tabs[0])
        asked = len(bench.asked("cache"))
        await asyncio.sleep(0.05)
        assert not any(timer.isActive() for timer in cache.findChildren(QTimer))  # else it would poll for ever
        assert len(bench.asked("cache")) == asked

    in_window(scene)


@pytest.mark.slow
def test_the_cache_tab_clears_the_cache_and_pins_the_path(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        cache = await opened(window)
        press(cache.keep_button)
        await until(lambda: cache.trie.texts.get("pinned of this path") == "312 tokens")
        assert (bench.asked("keep_path"), cache.keep_button.text()) == ([(TRIP, True)], "Unpin this path")
        # by the keyboard
        cache.keep_button.setFocus()
        QTest.keyClick(cache.keep_button, Qt.Key.Key_Space)
        await until(lambda: cache.keep_button.text() == "Pin this path")
        assert bench.asked("keep_path")[1] == (TRIP, False)
        press(cache.clear_button)
        await until(lambda: cache.trie.texts["tokens"] == "0")
        assert cache.edges.isHidden()
        assert not cache.ended.isVisible()
        await until(lambda: cache.said.text().startswith("cache cleared: 14 MB freed"))
        # a refusal is shown in the tab, and is hidden by the next action
        bench.refusal = "nothing of this path is in memory yet"
        press(cache.keep_button)
        await until(lambda: cache.said.text() == "nothing of this path is in memory yet")
        press(cache.clear_button)
        assert not cache.said.isVisible()

    in_window(scene)


def test_the_path_is_checked_without_the_cache(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.gate = asyncio.Semaphore(0)
        cache = await opened(window)
        press(cache.check_button)
        await until(lambda: bench.asked("check_uncached") == [(TRIP,)])
        assert cache.said.text() == "computing the path without the cache…"
        bench.gate.release()
        said = "after 313 tokens the 49,152 log-probabilities differ by 3.1e-06 nats at most; the same token is first"
        await until(lambda: cache.said.text() == said)
        # the result belongs to that path only
        bench.gate = None
        window.controller.new_session()
        await until(lambda: not cache.said.isVisible())

    in_window(scene)


def test_without_an_engine_the_cache_tab_offers_only_to_choose_a_model(in_window: Play, bench: FakeWorkbench) -> None:
    bench.trie = None
    bench.status = StatusView(EngineState.NONE)

    async def scene(window: MainWindow) -> None:
        bench.emit(StatusChanged(bench.status))
        cache = await opened(window)
        await until(cache.empty.isVisible)
        assert not any(part.isVisible() for part in (cache.keep_button, cache.clear_button, cache.check_button))
        asked = len(bench.asked("models"))
        press(cache.choose_button)
        await until(lambda: len(bench.asked("models")) > asked)

    in_window(scene)


def test_the_menu_clears_the_cache_and_reports_the_result(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        current_theme().show(OwnColours.HALF, developer=True)
        action, notice = window.acts.clear_cache, window.parts.composer.notice
        (menu,) = (each for each in action.associatedObjects() if isinstance(each, QMenu))

        async def choose() -> None:
            menu.popup(window.mapToGlobal(QPoint(40, 40)))
            await until(menu.isVisible)
            QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(action).center())

        await choose()
        await until(lambda: window.parts.toast.words.startswith("cache cleared: 14 MB freed. Texts are kept"))
        assert bench.trie is not None
        assert bench.trie.tokens == 0
        bench.refusal = "the engine is busy with another model"
        await choose()
        await until(lambda: notice.words == "the engine is busy with another model")
        # without a running model the action is disabled
        bench.emit(StatusChanged(StatusView(EngineState.NONE)))
        await until(lambda: not action.isEnabled())

    in_window(scene)
