"""Fixtures and limits of all tests."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # fixed, so that no load measures threads

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that: tests interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No time limit for an example: how long one takes says how busy the machine is. Where CI is set, hypothesis itself takes
# the same examples every time; elsewhere each run looks at new ones.
settings.register_profile("house", parent=settings(), deadline=None)
settings.load_profile("house")

# The user's keychain is never read: a test that needs a keychain brings its own.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"

HERE = Path.cwd()
BUILT = (".", "build", "dist", "elsewise.egg-info", "__pycache__")  # how the names begin that tools make there
FILES = pytest.StashKey[set[str]]()
GRACE = 30  # seconds from a test's own limit to the end of its process, as between the two limits in pyproject.toml
TOLD = "told"  # the property of a report that holds what its test says
LOOK_AFTER = (20_000, 20, 50)  # as of `gc.set_threshold`, counted at the end of a test
SLOWEST = (  # of what is run in many ways: for each there is one among the fast tests that takes the same paths
    "falcon_h1",  # attention and state spaces in each layer
    *("-qwen2", "-phi3", "hf-gemma2"),  # as llama with biases, as mistral, and as gemma3 but for caps that transformers applies
    *(f"{backend}-{name}" for backend in ("hf", "mlx") for name in ("llama_wide", "qwen3", "gemma3_80")),  # as llama and gemma3
    "hf-mistral",  # as mlx-mistral
    *("llama-float16", "llama-bfloat16", "llama-int4", "lfm2-int8"),  # weights in few bits; int8 is among the fast ones
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the slowest of the parametrised architectures as slow, and of a `sampled` test all cases but so many."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if any(name in item.name for name in SLOWEST):
            item.add_marker(pytest.mark.slow)
        elif (sampled := item.get_closest_marker("sampled")) and not item.get_closest_marker("slow"):
            cases.setdefault((item.nodeid.partition("[")[0], *sampled.args), []).append(item)
    for (name, count), found in cases.items():
        first = crc32(name.encode())  # another one for each test, so that both libraries and all architectures have their turn
        kept = {(first + at * len(found) // count) % len(found) for at in range(count)}
        for at, item in enumerate(found):
            if at not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Extends the process limit for a test with a longer limit of its own."""
    item.stash[FILES] = _files()
    limit = item.get_closest_marker("timeout")
    if limit is not None:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit.args[0] + GRACE, file=stderr, exit=True)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fails a test that leaves a file in the current folder. Beside other workers, another test may have written it."""
    before = item.stash[FILES]
    if left := _files() - before:
        pytest.fail(f"left in {HERE} while this test ran: {', '.join(sorted(left))}", pytrace=False)


def _files() -> set[str]:
    return {name for name in os.listdir(HERE) if not name.startswith(BUILT)}  # noqa: PTH208  # names alone, 10 us


def pytest_configure() -> None:
    """Disables Python's automatic cycle collection (see `pytest_runtest_protocol`)."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keeps modules and tests, which stay to the end, out of every later collection: a full one took most of a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Collects reference cycles between two tests, in the main thread, as `ui.core.collector` does between two events.

    Left to itself Python collects in whatever thread is running. One test's window is then destroyed by the engine's thread of
    the next test, and Qt ends the process.
    """
    try:
        return (yield)
    finally:
        due = [generation for generation, count in enumerate(gc.get_count()) if count > LOOK_AFTER[generation]]
        if due:
            gc.collect(due[-1])


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Adds the printed figures of tests (sweep sizes, differences of numbers) to the summary of the run."""
    return partial(record_property, TOLD)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the figures of the tests after their failures."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    told = sorted(str(value) for report in reports for name, value in report.user_properties if name == TOLD)
    if told:
        terminalreporter.section("measured")
        for line in told:
            terminalreporter.write_line(line)
