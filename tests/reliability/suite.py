"""The rows of the table, each run in a process of its own.

A row is a function that makes `Order.count` tries, determined by `Order.seed` alone, and returns a `Tally`. Its process
group is ended at the row's limit, so no row can block the others; a row whose process ends in another way has failed.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

REPOSITORY = Path(__file__).parents[2]
SEED = 17
_SHOWN = 5  # failures of a row that are printed in full
_WORDS = 2000  # characters of one failure


@dataclass(frozen=True, slots=True)
class Order:
    """The order for a row.

    Attributes:
        seed: Seed of all random numbers.
        count: Number of tries; for a soak, seconds.
        folder: An empty folder, deleted afterwards.
    """

    seed: int
    count: int
    folder: Path


@dataclass
class Tally:
    """The results of a row.

    Attributes:
        tried: Number of tries.
        failures: A text for each failure.
        seen: Counts of the allowed outcomes.
    """

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def attempt(self, what: str, act: Callable[[], str]) -> None:
        """Counts one try, by the outcome that `act` returns; a failed assertion or any other error of it is a failure."""
        self.tried += 1
        try:
            self.seen[act()] += 1
        except Exception as error:  # noqa: BLE001  # any error counts as a failure of the row
            self.fail(what, error)

    def fail(self, what: str, error: BaseException) -> None:
        """Records a failure, and the line that caused it."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}: {last.line}"
        self.failures.append(f"{what}: {type(error).__name__}: {str(error)[:_WORDS]} ({where})")

    def add(self, other: Tally) -> None:
        """Adds the counts of another tally."""
        self.tried += other.tried
        self.failures += other.failures
        self.seen += other.seen


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: Its name in the table and for `--only`.
        run: "module:function", which takes an `Order` and returns a `Tally`.
        full: Tries of the whole suite; seconds, if `timed`.
        short: Tries of the short form.
        limit: Seconds after which its processes are ended.
    """

    name: str
    run: str
    full: int
    short: int
    limit: float = 600.0
    timed: bool = False


ROWS: Sequence[Row] = (
    Row("app killed at a write", "tests.reliability.crashes:app_at_writes", 120, 8, 1800),
    Row("app killed at a random moment", "tests.reliability.crashes:app_at_moments", 100, 5, 1800),
    Row("window killed at a random moment", "tests.reliability.crashes:windows_at_moments", 100, 3, 3600),
    Row("engine killed at a write", "tests.reliability.crashes:engine_at_writes", 120, 8, 1800),
    Row("engine killed at a random moment", "tests.reliability.crashes:engine_at_moments", 100, 10, 1800),
    Row("sessions on a full disk", "tests.reliability.crashes:sessions_on_a_full_disk", 400, 12, 1800),
    Row("sessions on a failing disk", "tests.reliability.crashes:sessions_on_a_failing_disk", 400, 12, 1800),
    Row("blocks on a full or failing disk", "tests.reliability.crashes:blocks_on_a_bad_disk", 120, 8, 1800),
    Row("bit flips in the sessions file", "tests.reliability.damage:flips_of_sessions", 300, 60),
    Row("truncations of the sessions file", "tests.reliability.damage:truncations_of_sessions", 100, 25),
    Row("bit flips in the block file", "tests.reliability.damage:flips_of_blocks", 300, 60),
    Row("truncations of the block file", "tests.reliability.damage:truncations_of_blocks", 100, 25),
    Row("process exits", "tests.reliability.phases:every_exit", 78, 4, 1800),
    Row("engine killed, stopped, slow", "tests.reliability.phases:every_phase", 60, 6, 1800),
    Row("cancels", "tests.reliability.cancels:cancels", 10_000, 700, 900),
    Row("mutants: GGUF", "tests.reliability.mutants:gguf", 1000, 60, 900),
    Row("mutants: safetensors", "tests.reliability.mutants:safetensors", 1000, 60, 900),
    Row("mutants: config.json on hf", "tests.reliability.mutants:configs_on_hf", 300, 25, 900),
    Row("mutants: config.json on mlx", "tests.reliability.mutants:configs_on_mlx", 300, 25, 900),
    Row("mutants: tokenizer.json", "tests.reliability.mutants:tokenizers", 300, 25, 900),
    Row("mutants: tokenizer_config.json", "tests.reliability.mutants:tokenizer_configs", 300, 15, 900),
    Row("mutants: generation_config.json", "tests.reliability.mutants:generation_configs", 300, 15, 900),
    Row("mutants: adapters", "tests.reliability.mutants:adapters", 500, 25, 900),
    Row("mutants: chat templates", "tests.reliability.mutants:templates", 300, 15, 900),
    Row("mutants: JSON schemas", "tests.reliability.mutants:schemas", 300, 15, 900),
    Row("mutants: regexes", "tests.reliability.mutants:regexes", 300, 15, 900),
    Row("mutants: Lark grammars", "tests.reliability.mutants:lark", 300, 15, 900),
    Row("mutants: sessions files", "tests.reliability.mutants:session_files", 1000, 60, 900),
    Row("mutants: sessions as JSON", "tests.reliability.mutants:session_json", 1000, 60, 900),
    Row("mutants: portable files", "tests.reliability.mutants:portable_files", 1000, 60, 900),
    Row("mutants: batches", "tests.reliability.mutants:batches", 500, 30, 900),
    Row("mutants: pipe frames", "tests.reliability.mutants:frames", 3000, 480, 900),
    Row("soak", "tests.reliability.soak:soak", 600, 40, 900, timed=True),
    Row("journey without a network", "tests.reliability.journey:journey", 3, 1, 1800),
)


class Result(msgspec.Struct):
    """A row's order and tally, as its process reports them."""

    name: str
    seed: int
    tried: int
    failures: list[str]
    seen: dict[str, int]
    seconds: float = 0.0


def carry_out(row: Row, seed: int, count: int) -> Result:
    """Runs a row in this process."""
    module, _, function = row.run.partition(":")
    with tempfile.TemporaryDirectory(prefix="reliability-", ignore_cleanup_errors=True) as folder:
        tally: Tally = getattr(importlib.import_module(module), function)(Order(seed, count, Path(folder)))
    if not tally.tried:
        tally.failures.append("nothing was tried")
    return Result(row.name, seed, tally.tried, tally.failures, dict(tally.seen))


def run_all(rows: Iterable[tuple[Row, int]], seed: int, jobs: int, told: Callable[[Result], None]) -> list[Result]:
    """Runs rows with their counts, `jobs` at a time; `told` is called with each when it is done. In the order given."""

    def one(order: tuple[Row, int]) -> Result:
        result = _in_a_process(*order, seed)
        told(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, rows))


def _in_a_process(row: Row, count: int, seed: int) -> Result:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reliability-") as folder:
        answer, output = Path(folder) / "result", Path(folder) / "output"
        command = [sys.executable, "-m", "tests.reliability", "--row", row.name, str(seed), str(count), str(answer)]
        environment = {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1", "QT_QPA_PLATFORM": "offscreen"}
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdout=stream, stderr=stream, start_new_session=True
            )
            fault = ""
            try:
                process.wait(row.limit)
            except subprocess.TimeoutExpired:
                fault = f"not done after {row.limit:g} s"
            finally:
                _end_group(process)
        if not fault and process.returncode:
            fault = f"its process ended with {process.returncode}"
        if answer.exists() and not fault:
            result = msgspec.json.decode(answer.read_bytes(), type=Result)
        else:
            result = Result(row.name, seed, 0, [f"{fault or 'no result'}; {output.read_text(errors='replace')[-_WORDS:]}"], {})
    result.seconds = time.monotonic() - began
    return result


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the row's process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(results: Sequence[Result]) -> str:
    """A Markdown table; failures in full below it."""
    lines = ["| row | tried | failures | bar | seed | seconds | outcomes |", "|---|---|---|---|---|---|---|"]
    for result in results:
        seen = "; ".join(f"{count:,} {outcome}" for outcome, count in sorted(result.seen.items()))
        cells = (
            result.name,
            f"{result.tried:,}",
            f"{len(result.failures):,}",
            "0",
            str(result.seed),
            f"{result.seconds:.0f}",
            seen,
        )
        lines.append(f"| {' | '.join(cells)} |")
    for result in results:
        lines += [f"\n{result.name}: {failure}" for failure in result.failures[:_SHOWN]]
        if len(result.failures) > _SHOWN:
            lines.append(f"{result.name}: and {len(result.failures) - _SHOWN:,} more")
    return "\n".join(lines)
