"""What is told of several files at once: bytes, rate and time left."""

from __future__ import annotations

import pytest

from runtime.hub.child_protocol import DownloadProgress, HubFile
from runtime.hub.download_progress import ProgressReporter

A, B = HubFile("a", 1000, "0" * 40, large=False), HubFile("b", 3000, "1" * 40, large=False)


class Told:
    """A `Telling` with a clock of its own, and what it said last."""

    def __init__(self) -> None:
        self.now = 100.0
        self.steps: list[DownloadProgress] = []
        self.telling = ProgressReporter(self.steps.append, lambda: self.now)

    @property
    def last(self) -> DownloadProgress:
        return self.steps[-1]


def test_every_report_counts_all_files() -> None:
    # given two of which a part is here
    told = Told()
    told.telling.begin((A, B), (400, 0))
    # when both go on
    told.now += 1
    told.telling.fetch(A, 600)
    told.telling.fetch(B, 100)
    # then what was here is no speed
    assert (told.last.file, told.last.file_done, told.last.file_total) == ("b", 100, 3000)
    assert (told.last.done, told.last.total) == (700, 4000)
    assert told.last.rate == pytest.approx(300)
    assert told.last.eta == pytest.approx(3300 / 300)
    told.telling.end(A)
    assert (told.last.file, told.last.file_done, told.last.done) == ("a", 1000, 1100)


def test_a_file_that_begins_anew_is_taken_off() -> None:
    told = Told()
    told.telling.begin((A, B), (900, 50))
    told.now += 1
    told.telling.fetch(A, 0)
    assert told.last.done == 50
    told.now += 1
    told.telling.fetch(A, 500)
    assert told.last.done == 550
    assert told.last.rate == pytest.approx(500)


def test_one_file_that_waits_does_not_stop_the_clock_of_another() -> None:
    told = Told()
    told.telling.begin((A, B), (0, 0))
    told.now += 1
    told.telling.fetch(A, 100)
    told.telling.fetch(B, 500)
    told.telling.wait(A, 100, "busy")
    assert (told.last.state, told.last.note) == ("wait", "busy")
    assert told.last.rate == pytest.approx(600)
    assert told.last.eta is not None
    told.telling.wait(B, 500, "busy")
    assert told.last.rate == 0.0
    assert told.last.eta is None


def test_no_file_is_told_of_too_often_nor_kept_silent_by_another() -> None:
    told = Told()
    told.telling.begin((A, B), (0, 0))
    for done in range(100):
        told.now += 0.01
        told.telling.fetch(A, done)
        told.telling.fetch(B, done)
    names = [step.file for step in told.steps]
    assert 9 <= names.count("a") <= 11
    assert 9 <= names.count("b") <= 11


def test_before_the_plan_there_is_no_total() -> None:
    told = Told()
    told.telling.state("look up")
    told.telling.fetch(A, 10)
    assert (told.last.file_done, told.last.done, told.last.total, told.last.eta) == (10, 0, 0, None)
