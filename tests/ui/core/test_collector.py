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
    """A widget that only a collector can free; it notes in which thread it went."""

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
    """Makes what a collector counts, far more of it than any threshold."""
    held: list[list[int]] = [[] for _ in range(200_000)]
    held.clear()


def test_widgets_go_in_the_windows_thread_however_busy_others_are(collector: Collector, qtbot: QtBot) -> None:
    # given a widget without references
    gone: list[threading.Thread] = []
    Ring(gone)
    # when another thread makes objects
    other = threading.Thread(target=busy)
    other.start()
    other.join()
    assert gone == []
    # then it goes when the window's thread has a look
    kept = [[index] for index in range(1000)]
    qtbot.waitUntil(lambda: bool(gone), timeout=20_000)
    assert gone == [threading.main_thread()]
    assert len(kept) == 1000


def test_a_window_that_is_closed_collects_as_before(app: QApplication) -> None:
    for before in (True, False):
        (gc.enable if before else gc.disable)()
        collector = Collector()
        assert not gc.isenabled()
        collector.stop()
        assert gc.isenabled() is before


@pytest.mark.slow
def test_without_it_a_busy_thread_takes_what_lies_about(app: QApplication) -> None:
    gc.collect()  # else so much may lie about that this thread is due as soon as it may collect

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


def test_young_objects_are_looked_at_before_they_are_so_many_that_it_takes_long(app: QApplication) -> None:
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
