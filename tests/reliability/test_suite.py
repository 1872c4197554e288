"""The table of the suite: every kind of failure is reported, and the page describes the rows."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pages import PAGES
from tests.reliability import __main__, suite
from tests.reliability.soak import DEVIATIONS, RELOAD, WARM, growth, of_a_model
from tests.reliability.suite import ROWS, Order, Result, Row, Tally, run_all, table

PAGE = PAGES["docs/reliability.md"]
HERE = "tests.reliability.test_suite"


def sound(order: Order) -> Tally:
    tally = Tally()
    for _ in range(order.count):
        tally.attempt("nothing", lambda: f"seed {order.seed}")
    return tally


def wrong(order: Order) -> Tally:
    tally = sound(order)

    def fail() -> str:
        raise AssertionError("the text is another one")

    tally.attempt("bit 3 of byte 9", fail)
    return tally


def hung(order: Order) -> Tally:
    time.sleep(600)
    return sound(order)


def dead(order: Order) -> Tally:
    os.kill(os.getpid(), signal.SIGSEGV)
    return sound(order)


def idle(_: Order) -> Tally:
    return Tally()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "says"),
    [
        (sound, None),
        (wrong, r"bit 3 of byte 9: AssertionError: the text is another one \(test_suite.py:\d+: raise AssertionError"),
        (hung, "not done after 10 s"),
        (dead, "its process ended with -11"),
        (idle, "nothing was tried"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_kind_of_failure_fails_its_row(
    row: Callable[[Order], Tally], says: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given a registry of this one row, in the row's process too
    starter = tmp_path / "sitecustomize.py"
    given = f"Row({row.__name__!r}, '{HERE}:{row.__name__}', 3, 2, 10.0)"
    starter.write_text(f"from tests.reliability import suite\nsuite.ROWS = (suite.{given},)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{suite.REPOSITORY}")
    # when
    heard: list[Result] = []
    [result] = run_all([(Row(row.__name__, f"{HERE}:{row.__name__}", 3, 2, 10.0), 3)], 5, 1, heard.append)
    # then
    assert heard == [result]
    if says is None:
        assert (result.tried, result.failures, result.seen) == (3, [], {"seed 5": 3})
    else:
        [failure] = result.failures
        assert re.search(says, failure), failure
        assert failure in table([result])


@pytest.mark.parametrize("failures", [[], ["bad"]])
def test_the_exit_status_is_1_if_any_row_fails(
    failures: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["reliability", "--short", "--only", ROWS[0].name])

    def ran(rows: list[tuple[Row, int]], seed: int, jobs: int, told: Callable[[Result], None]) -> list[Result]:
        return [Result(row.name, seed, count, failures, {}) for row, count in rows]

    monkeypatch.setattr(__main__, "run_all", ran)
    assert __main__.main() == len(failures)
    assert f"| {ROWS[0].name} | {ROWS[0].short} | {len(failures)} | 0 | {suite.SEED} |" in capsys.readouterr().out


def test_the_documentation_page_has_the_rows_of_the_suite() -> None:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()]
    figures = [row for row in cells if len(row) == 7 and row[0] not in ("row", "---")]
    assert [row[0] for row in figures] == [row.name for row in ROWS]
    for _, tried, failures, bar, *_ in figures:
        assert (failures, bar) == ("0", "0")
        assert int(tried.replace(",", "")) > 0


def test_memory_freed_with_a_model_is_not_growth_and_memory_kept_is() -> None:
    draw = random.Random(3)
    takes = [draw.randrange(RELOAD) for _ in range(4 * WARM // RELOAD)]  # the round of each model in which it needs more
    fills = [18 * (at % RELOAD) for at in range(4 * WARM)]
    steps = [fill + 200 * (at % RELOAD > takes[at // RELOAD]) for at, fill in enumerate(fills)]
    for held, which in ((fills, max), (steps, min)):
        assert growth(of_a_model(held, which)) == (0, 0)
        grown, error = growth(of_a_model([amount + at for at, amount in enumerate(held)], which))
        assert grown > 1
        assert grown > DEVIATIONS * error
