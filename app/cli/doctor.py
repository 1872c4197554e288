"""`elsewise doctor`: what is installed, what can run, where the data is."""

from __future__ import annotations

import importlib.metadata
import platform

import click
import psutil
from rich.table import Table
from rich.text import Text

from app.cli.common import print_table
from app.cli.settings import Settings
from runtime import __version__, available_backends, default_backend, list_models, models_dir

LIBRARIES = ("PySide6-Essentials", "qasync", "numpy", "torch", "transformers", "mlx", "mlx-lm", "tokenizers", "sqlite-utils")
FLOORS = {"transformers": (5, 3), "torch": (2, 10), "mlx-lm": (0, 32)}  # below these: known holes or wrong numbers
NEVER = {"PySide6-Essentials": (6, 12)}  # aborts on Python 3.11


@click.command()
@click.pass_obj
def doctor(settings: Settings) -> None:
    """Says whether everything is in place; exit code 1 when something is not."""
    problems: list[str] = []
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("elsewise", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    memory = psutil.virtual_memory()
    table.add_row("memory", f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free")
    for library in LIBRARIES:
        table.add_row(library, _version(library, problems))
    for name, state in available_backends().items():
        mark = " (auto)" if name == default_backend() else ""
        table.add_row(f"backend {name}{mark}", Text("available" if state is True else str(state)))
    entries = list_models()
    ready = [entry.name for entry in entries if entry.complete]
    table.add_row("models", Text(f"{models_dir()}: {', '.join(ready) or 'none'}"))
    problems += [f"model {entry.name}: {entry.problem}" for entry in entries if not entry.complete]
    if not ready:
        problems.append("no model is ready: elsewise models get smollm2")
    if available_backends().get(default_backend()) is not True:
        problems.append(f"backend {default_backend()} cannot run: {available_backends()[default_backend()]}")
    table.add_row("sessions", Text(str(settings.data.sessions)))
    print_table(table)
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)
    click.echo("everything is in place", err=True)


def _version(library: str, problems: list[str]) -> str:
    try:
        found = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < FLOORS.get(library, ()):
        problems.append(f"{library} {found} is too old: at least {'.'.join(map(str, FLOORS[library]))}")
    if library in NEVER and numbers >= NEVER[library] and platform.python_version_tuple()[:2] < ("3", "12"):
        problems.append(f"{library} {found} aborts on Python {platform.python_version()}: use 6.11.3")
    return found
