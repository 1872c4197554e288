"""One run: the chosen parts on their models, Elsewise and its peers in turns."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.catalogue import On, Part, chosen_parts
from benchmarks.clock import Calibration, calibrate
from benchmarks.findings import EMBEDDED, Case, Findings, Took
from benchmarks.report import BenchReport, wide_console
from benchmarks.sizes import Sizes, sizes_for
from benchmarks.tiny import ARCHITECTURES, make_tiny, shelf_tokenizer
from runtime import BackendUnavailableError, ModelLoadError, UnknownBackendError, available_backends, list_models

BACKENDS = ("hf", "mlx")
TINY = "tiny"
MODELS = (TINY, *ARCHITECTURES, EMBEDDED)
NOWHERE = Case("", "", Path(), 0)


def run_bench(*, quick: bool, model: str, backends: tuple[str, ...], only: tuple[str, ...], json_path: Path | None) -> bool:
    """Measures, prints tables to stdout and optionally writes JSON. Progress goes to stderr, with a line for each part.

    If interrupted (ctrl-C, SIGTERM), it reports the figures measured until then.

    Args:
        quick: Whether to use smaller sizes and fewer rounds.
        model: One of `MODELS`.
        backends: Names of backends; empty for hf and mlx where they can run (for the embedded model, mlx only on a Mac,
            where it has a GPU).
        only: Names of parts; empty for all.
        json_path: The JSON file to write, if any.

    Returns:
        Whether the run was completed.

    Raises:
        UnknownBackendError, BackendUnavailableError: A backend is unknown, or cannot run here.
        ModelLoadError: The embedded model is not on the shelf.
        OSError: The JSON cannot be written.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    usual = BACKENDS if model != EMBEDDED or sys.platform == "darwin" else ("hf",)
    sizes = sizes_for(tiny=model != EMBEDDED, quick=quick)
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as made, _term_as_ctrl_c():
        cases = make_cases(model, chosen_backends(backends, usual), Path(made), shelf_tokenizer())
        report = measure_all(cases, chosen_parts(only), sizes, quick=quick)
    report.print(wide_console())
    if json_path is not None:
        report.save(json_path)
    return report.whole


def make_cases(model: str, backends: tuple[str, ...], room: Path, text: Path | None) -> list[Case]:
    """The cases of a run: each model on each backend. Writes the tiny models.

    Args:
        model: One of `MODELS`.
        backends: Names of backends that can run here.
        room: A folder for the tiny models.
        text: A folder whose tokenizer the tiny models get; None for a token per byte.

    Raises:
        ModelLoadError: The embedded model is not on the shelf.
    """
    if model == EMBEDDED:
        entry = next((e for e in list_models() if e.name == EMBEDDED and e.complete), None)
        if entry is None:
            raise ModelLoadError(f"{EMBEDDED} is not here; `elsewise models get {EMBEDDED}` fetches it")
        config = json.loads((entry.path / "config.json").read_text("utf-8"))
        models = [(EMBEDDED, entry.path, int(config["vocab_size"]))]
    else:
        names = ARCHITECTURES if model == TINY else (model,)
        folders = [(f"tiny-{name}", name, room / f"tiny-{name}") for name in names]
        models = [(title, folder, make_tiny(name, folder, text)) for title, name, folder in folders]
    return [Case(backend, title, folder, vocabulary) for backend in backends for title, folder, vocabulary in models]


def measure_all(cases: list[Case], parts: tuple[Part, ...], sizes: Sizes, *, quick: bool) -> BenchReport:
    """Runs every part on every case that it is meant for.

    Args:
        cases: Models on backends.
        parts: The chosen parts.
        sizes: Sizes of the workloads.
        quick: Whether this is a quick run, which calibrates once and runs some parts on fewer cases.

    Returns:
        The report; if interrupted, with the parts that had ended.
    """
    plan = [(case, [part for part in parts if part.meant_for(case, cases, quick=quick)]) for case in cases]
    plan = [*plan, (NOWHERE, [part for part in parts if part.on is On.ONCE])]
    found = Findings()
    calibrations: list[Calibration] = []
    took: list[Took] = []
    whole = False
    try:
        with _progress() as progress:
            task = progress.add_task("", total=sum(len(meant) for _, meant in plan))
            for case, meant in plan:
                if meant and not (quick and calibrations):
                    progress.update(task, description="calibrating", refresh=True)
                    calibrations.append(calibrate(case.title))
                with closing(case.loaded):
                    for part in meant:

                        def tell(what: str, case: Case = case) -> None:
                            progress.update(task, description=f"{case.title}: {what}", refresh=True)

                        began = time.perf_counter()
                        found += part.run(case, sizes, tell)
                        took.append(Took(part.name, case.backend, case.model, time.perf_counter() - began))
                        progress.console.print(f"{case.title or 'no model'}: {part.name}, {took[-1].seconds:.1f} s")
                        progress.advance(task)
        whole = True
    except KeyboardInterrupt:
        pass  # the report has the parts that ended
    return BenchReport(quick, sizes, tuple(part.name for part in parts), tuple(calibrations), found, tuple(took), whole)


def chosen_backends(names: tuple[str, ...], usual: tuple[str, ...]) -> tuple[str, ...]:
    """The backends to measure: the named ones, or those of the usual ones that can run here.

    Raises:
        UnknownBackendError: A named backend is unknown or has no peers.
        BackendUnavailableError: A named backend cannot run here, or none of the usual ones can.
    """
    there = available_backends()
    if not names:
        chosen = tuple(name for name in usual if there[name] is True)
        if not chosen:
            raise BackendUnavailableError(f"nothing to measure: {'; '.join(f'{name}: {there[name]}' for name in usual)}")
        return chosen
    for name in names:
        if name not in there:
            raise UnknownBackendError(f"unknown backend {name!r}; known: {', '.join(sorted(there))}")
        if there[name] is not True:
            raise BackendUnavailableError(f"backend {name!r} cannot run here: {there[name]}")
        if name not in BACKENDS:
            raise UnknownBackendError(
                f"backend {name!r} has no peers to be measured against; those of {', '.join(BACKENDS)} have"
            )
    return tuple(dict.fromkeys(names))


def _progress() -> Progress:
    """A progress bar on stderr without a refresh thread, whose CPU time would be measured as well."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)


@contextmanager
def _term_as_ctrl_c() -> Iterator[None]:
    """Handles SIGTERM like ctrl-C, so that the figures measured so far are reported."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
