"""Progress of several files at once: bytes, rate and time left."""

from __future__ import annotations

import pytest

from runtime.hub.child_protocol import DownloadProgress, HubFile
from runtime.hub.download_progress import ProgressReporter, TransferRate

A, B = HubFile("a", 1000, "0" * 40, large=False), HubFile("b", 3000, "1" * 40, large=False)


class Reports:
    """A `ProgressReporter` with its own clock, and its last report."""

    def __init__(self) -> None:
        self.now = 100.0
        self.steps: list[DownloadProgress] = []
        self.reporter = ProgressReporter(self.steps.append, lambda: self.now)

    @property
    def last(self) -> DownloadProgress:
        return self.steps[-1]


def test_every_report_counts_all_files() -> None:
    # given two files, one of them partly downloaded
    reports = Reports()
    reports.reporter.begin((A, B), (400, 0))
    # when both continue
    reports.now += 1
    reports.reporter.fetch(A, 600)
    reports.reporter.fetch(B, 100)
    # then the bytes of earlier downloads do not count for the rate
    assert (reports.last.file, reports.last.file_done, reports.last.file_total) == ("b", 100, 3000)
    assert (reports.last.done, reports.last.total) == (700, 4000)
    assert reports.last.rate == pytest.approx(300)
    assert reports.last.eta == pytest.approx(3300 / 300)
    reports.reporter.end(A)
    assert (reports.last.file, reports.last.file_done, reports.last.done) == ("a", 1000, 1100)


def test_the_bytes_of_a_restarted_file_are_subtracted() -> None:
    reports = Reports()
    reports.reporter.begin((A, B), (900, 50))
    reports.now += 1
    reports.reporter.fetch(A, 0)
    assert reports.last.done == 50
    reports.now += 1
    reports.reporter.fetch(A, 500)
    assert reports.last.done == 550
    assert reports.last.rate == pytest.approx(500)


def test_one_waiting_file_does_not_stop_the_rate_of_another() -> None:
    reports = Reports()
    reports.reporter.begin((A, B), (0, 0))
    reports.now += 1
    reports.reporter.fetch(A, 100)
    reports.reporter.fetch(B, 500)
    reports.reporter.wait(A, 100, "busy")
    assert (reports.last.state, reports.last.note) == ("wait", "busy")
    assert reports.last.rate == pytest.approx(600)
    assert reports.last.eta is not None
    reports.reporter.wait(B, 500, "busy")
    assert reports.last.rate == 0.0
    assert reports.last.eta is None


def test_reports_are_rate_limited_per_file() -> None:
    reports = Reports()
    reports.reporter.begin((A, B), (0, 0))
    for done in range(100):
        reports.now += 0.01
        reports.reporter.fetch(A, done)
        reports.reporter.fetch(B, done)
    names = [step.file for step in reports.steps]
    assert 9 <= names.count("a") <= 11
    assert 9 <= names.count("b") <= 11


def test_the_total_is_unknown_before_the_plan() -> None:
    reports = Reports()
    reports.reporter.state("look up")
    reports.reporter.fetch(A, 10)
    assert (reports.last.file_done, reports.last.done, reports.last.total, reports.last.eta) == (10, 0, 0, None)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_measured_over_the_last_seconds() -> None:
    clock = Clock()
    rate = TransferRate(clock)
    assert (rate.per_second, rate.left(10)) == (0.0, None)
    done = 0
    for speed in (1000, 50):  # bytes a second, ten seconds each
        for _ in range(100):
            rate.note(done)
            clock.now += 0.1
            done += speed // 10
    rate.note(done)
    assert rate.per_second == pytest.approx(50, rel=0.02)
    assert rate.left(500) == pytest.approx(10, rel=0.02)


def test_the_rate_falls_while_no_bytes_arrive() -> None:
    clock = Clock()
    rate = TransferRate(clock)
    rate.note(0)
    clock.now += 1
    rate.note(100)
    clock.now += 9
    assert rate.per_second == pytest.approx(10)


def test_the_rate_starts_over_when_the_count_returns_to_zero() -> None:
    clock = Clock()
    rate = TransferRate(clock)
    rate.note(1000)
    clock.now += 1
    rate.note(0)
    clock.now += 1
    rate.note(30)
    assert rate.per_second == pytest.approx(30)
