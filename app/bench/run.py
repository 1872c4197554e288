"""One run: tiny models, every workload, Elsewise first and its peers after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.bench.calibration import calibrate
from app.bench.measure import Result, Subject, measure
from app.bench.ours import Ours
from app.bench.report import Report, wide_console
from app.bench.sizes import FULL, QUICK, WARM_UP, Sizes
from app.bench.tiny import ARCHITECTURES, make_tiny, shelf_tokenizer
from runtime import BackendUnavailableError, UnknownBackendError, available_backends

BACKENDS = ("hf", "mlx")


def run_bench(*, quick: bool, backends: tuple[str, ...], json_path: Path | None) -> None:
    """Measures, prints tables to stdout and, if asked, writes JSON. Progress goes to stderr.

    Args:
        quick: Smaller sizes.
        backends: Names; empty for those of hf and mlx that run here.
        json_path: Where the JSON goes.

    Raises:
        UnknownBackendError, BackendUnavailableError: A backend that is not known, or cannot run here.
        OSError: The JSON cannot be written.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    report = measure_all(_chosen(backends), quick=quick, sizes=QUICK if quick else FULL, text=shelf_tokenizer())
    report.print(wide_console())
    if json_path is not None:
        report.save(json_path)


def measure_all(backends: tuple[str, ...], *, quick: bool, sizes: Sizes, text: Path | None) -> Report:
    """Every workload on every tiny model, backend by backend.

    Args:
        backends: Names of backends that run here.
        quick: What the report says of the sizes.
        sizes: Of the workloads.
        text: A folder whose tokenizer the tiny models get; None for a token per byte.
    """
    calibration = calibrate()
    results: list[Result] = []
    plan = [
        (architecture, backend, make) for architecture in ARCHITECTURES for backend in backends for make in _makers(backend)
    ]
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as made, _progress() as progress:
        folders = {name: Path(made) / f"tiny-{name}" for name in ARCHITECTURES}
        vocabulary = {name: make_tiny(name, folder, text) for name, folder in folders.items()}
        task = progress.add_task("", total=len(plan) * len(sizes.workloads(1)))
        for architecture, backend, make in plan:
            folder = folders[architecture]
            progress.update(task, description=f"{backend}, {folder.name}: loading", refresh=True)
            with closing(make(folder)) as subject:
                for workload in WARM_UP.workloads(vocabulary[architecture]):  # imports, first allocations
                    workload.play(subject)
                for workload in sizes.workloads(vocabulary[architecture]):
                    doing = f"{backend}, {folder.name}: {workload.name}, {subject.name}"
                    progress.update(task, description=doing, refresh=True)
                    results.append(measure(workload, subject, backend=backend, model=folder.name))
                    progress.advance(task)
    return Report(quick, sizes, calibration, tuple(results))


def _makers(backend: str) -> list[Callable[[Path], Subject]]:
    """Elsewise on a backend, then the peers of that backend; their libraries are imported here."""
    makers: list[Callable[[Path], Subject]] = [partial(Ours, backend=backend)]
    if backend == "hf":
        from app.bench.peers.one_cache import OneCache
        from app.bench.peers.stateless import Stateless

        makers += [Stateless, OneCache]
    elif backend == "mlx":
        from app.bench.peers.mlx_prompt_cache import MlxPromptCache

        makers.append(MlxPromptCache)
    return makers


def _chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    """The backends to measure."""
    there = available_backends()
    if not names:
        chosen = tuple(name for name in BACKENDS if there[name] is True)
        if not chosen:
            raise BackendUnavailableError(f"nothing to measure: {'; '.join(f'{name}: {there[name]}' for name in BACKENDS)}")
        return chosen
    for name in names:
        if name not in there:
            raise UnknownBackendError(f"unknown backend {name!r}; known: {', '.join(sorted(there))}")
        if there[name] is not True:
            raise BackendUnavailableError(f"backend {name!r} cannot run here: {there[name]}")
    return tuple(dict.fromkeys(names))


def _progress() -> Progress:
    """On stderr, drawn only between two measurements: a drawing thread would be counted."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
