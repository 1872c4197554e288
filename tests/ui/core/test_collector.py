from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from ui.core.collector import Collector


class Ring(QWidget):
    """A widget that only the cycle collector can free; records the thread in which it is freed."""

    def __init__(self, gone: list[threading.Thread]) -> None:
        super().__init__()
        self.itself = self
        weakref.finalize(self, lambda: gone.append(threading.current_thread()))


@pytest.fixture
def collector(app: QApplication) -> Iterator[Collector]:
    gc.enable()
    collector = Collector(thresholds=(50, 2, 2))
    yield collector
    collector.stop()
    gc.disable()  # as it is in all tests of the window


def busy() -> None:
    """Allocates far more objects that the collector counts than any threshold."""
    held: list[list[int]] = [[] for _ in range(200_000)]
    held.clear()


def test_widgets_are_collected_in_the_windows_thread_while_another_thread_allocates(collector: Collector, qtbot: QtBot) -> None:
    # given a widget without references
    gone: list[threading.Thread] = []
    Ring(gone)
    # when another thread allocates objects
    other = threading.Thread(target=busy)
    other.start()
    other.join()
    assert gone == []
    # then it is freed when the window's thread collects
    kept = [[index] for index in range(1000)]
    qtbot.waitUntil(lambda: bool(gone), timeout=20_000)
    assert gone == [threading.main_thread()]
    assert len(kept) == 1000


def test_stop_restores_whether_python_collects_by_itself(app: QApplication) -> None:
    for before in (True, False):
        (gc.enable if before else gc.disable)()
        collector = Collector()
        assert not gc.isenabled()
        collector.stop()
        assert gc.isenabled() is before


@pytest.mark.slow
def test_without_the_collector_an_allocating_thread_frees_cycles_of_other_threads(app: QApplication) -> None:
    gc.collect()  # else this thread may have enough garbage to collect as soon as that is enabled

    class Plain:
        pass

    gone: list[threading.Thread] = []
    plain = Plain()
    plain.itself = plain  # type: ignore[attr-defined]  # a ring
    weakref.finalize(plain, lambda: gone.append(threading.current_thread()))
    del plain
    gc.enable()
    try:
        other = threading.Thread(target=busy)
        other.start()
        other.join()
    finally:
        gc.disable()
    assert gone == [other]


def test_young_objects_are_examined_in_small_batches(app: QApplication) -> None:
    # given a window's collector, and a few thousand objects more than when it last looked
    gc.collect()
    collector = Collector()
    kept = [[index] for index in range(5_000)]
    assert gc.get_count()[0] > 4_000
    # when it looks
    collector.look()
    # then these were due, and the next look is at others
    assert gc.get_count()[0] < 1_000
    assert len(kept) == 5_000
    collector.stop()
    gc.disable()
