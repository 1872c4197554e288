"""`elsewise doctor`: shows what is installed, what can run and where the data is; measures the machine with --deep."""

from __future__ import annotations

import importlib.metadata
import platform

import click
import msgspec
import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from app.cli.common import INTERRUPTED, console, print_table, rows_table
from app.cli.settings import CliSettings
from app.doctor.finding import Report, markdown
from app.doctor.run import PARTS, SLEEP, Doing, check_machine
from runtime import __version__, available_backends, default_backend, list_models, models_dir

LIBRARIES = ("PySide6-Essentials", "qasync", "numpy", "torch", "transformers", "mlx", "mlx-lm", "tokenizers", "sqlite-utils")
FLOORS = {"transformers": (5, 23), "torch": (2, 10), "mlx-lm": (0, 32)}  # older: holes, wrong numbers, missing parts
NEVER = {"PySide6-Essentials": (6, 12)}  # aborts on Python 3.11


EXAMPLES = """\b
Examples:
  elsewise doctor
  elsewise doctor --deep
  elsewise doctor --deep --only parity --only memory --markdown
"""


@click.command(epilog=EXAMPLES)
@click.option("--deep", is_flag=True, help="Measure this machine: numbers, window, disk, memory, speed; at most ten minutes.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice((*PARTS, SLEEP)),
    help="With --deep: only this part; can be repeated. The sleep part, in which you close the lid, runs only when named.",
)
@click.option("--json", "as_json", is_flag=True, help="With --deep: one JSON object on stdout.")
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="With --deep: Markdown for a bug report, without prompts and names."
)
@click.option(
    "--patience",
    type=click.FloatRange(0.1, 100),
    default=1.0,
    show_default=True,
    help="With --deep: multiplies the limit of ten minutes, for a slow or busy machine.",
)
@click.pass_context
def doctor(
    context: click.Context, deep: bool, only: tuple[str, ...], as_json: bool, as_markdown: bool, patience: float
) -> None:
    """Checks the installation; exit code 1 when something is missing or too old.

    With --deep, measures this machine: each figure with its limit and, where it misses that, what to do. Ctrl-C prints the
    results so far.
    """
    if as_json and as_markdown:
        raise click.UsageError("choose one of --json and --markdown")
    if deep:
        _check_deeply(context, only, as_json=as_json, as_markdown=as_markdown, patience=patience)
        return
    waits = context.get_parameter_source("patience") is not click.core.ParameterSource.DEFAULT
    if only or as_json or as_markdown or waits:
        raise click.UsageError("--only, --json, --markdown and --patience need --deep")
    _check_installation(context.obj)


def _check_deeply(context: click.Context, only: tuple[str, ...], *, as_json: bool, as_markdown: bool, patience: float) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def tell(doing: Doing) -> None:
            if doing.part == SLEEP and not doing.last:
                console.print("close the lid, or choose Sleep, and wake the machine after half a minute")
            last = f", after {doing.last}" if doing.last else ""
            bar.update(task, completed=doing.done, total=doing.total, description=f"{doing.part}{last}")

        report = check_machine(only, tell, factor=patience)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    elif as_markdown:
        click.echo(markdown(report), nl=False)
    else:
        _print_report(report)
    if report.interrupted:
        context.exit(INTERRUPTED)
    if not report.is_sound:
        context.exit(1)


def _print_report(report: Report) -> None:
    print_table(rows_table((name, Text(value)) for name, value in report.machine.items()))
    for part, rows in report.findings.items():
        table = Table(box=None, pad_edge=False, title=f"\n{part}", title_justify="left", title_style="bold")
        for head in ("check", "figure", "bar", "verdict", "what to do"):
            table.add_column(head, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, msgspec.structs.astuple(row)))
        print_table(table)
    if report.interrupted:
        click.echo("interrupted: the remaining parts were not run", err=True)


def _check_installation(settings: CliSettings) -> None:
    problems: list[str] = []
    table = rows_table()
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
