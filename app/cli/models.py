"""`elsewise models`: the shelf."""

from __future__ import annotations

from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from app.cli.common import console, print_table
from runtime import (
    ModelLoadError,
    fetch_embedded,
    import_adapter,
    import_model,
    is_adapter_folder,
    list_models,
    list_shelf_adapters,
    models_dir,
    verify_model,
)
from runtime import Progress as Step

EMBEDDED = "smollm2"


@click.group()
def models() -> None:
    """Models on this machine."""


@models.command("list")
def list_command() -> None:
    """What is here, with sizes; of adapters, the model that they were made for."""
    entries, adapters = list_models(), list_shelf_adapters()
    if not entries:
        click.echo(f"no models in {models_dir()}; fetch the embedded one: elsewise models get {EMBEDDED}", err=True)
    if not entries and not adapters:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "title", "parameters", "size", "format", "state"):
        table.add_column(name, justify="right" if name in ("parameters", "size") else "left")
    for entry in entries:
        parameters = f"{entry.parameters / 1e6:,.0f} M" if entry.parameters else "-"
        state = "ready" if entry.complete else entry.problem
        table.add_row(
            Text(entry.name), Text(entry.title), parameters, f"{entry.bytes / 1e6:,.0f} MB", entry.format, Text(state)
        )
    for adapter in adapters:
        parameters = f"{adapter.parameters / 1e6:,.1f} M" if adapter.parameters else "-"
        base = f"for {_one_line(adapter.base)}" if adapter.base else "for a base it does not name"
        kind = "activated adapter" if adapter.kind == "alora" else "adapter"
        size = f"{adapter.bytes / 1e6:,.1f} MB"
        state = _one_line(adapter.problem) or "ready"
        table.add_row(Text(adapter.name), Text(base), parameters, size, f"{kind} {adapter.layout}".rstrip(), Text(state))
    print_table(table)


def _one_line(text: str) -> str:
    """A text out of somebody's file, without what would move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


@models.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", help="What to call it on the shelf. Example: --name org/name")
def import_command(path: Path, name: str | None) -> None:
    """Takes a GGUF file, a model folder or an adapter folder onto the shelf.

    Of an adapter (peft's layout or mlx-lm's) its configuration and its safetensors are taken; ask --adapter NAME uses it.
    """
    with Bar() as bar:
        if is_adapter_folder(path):
            adapter = import_adapter(path, name, bar.show)
            done = f"{adapter.name}: ready in {adapter.path}; use it with: elsewise ask --adapter {adapter.name}"
        else:
            folder = import_model(path, name, bar.show)
            done = f"{folder.name}: ready in {folder.path}"
    click.echo(done)


@models.command("get")
@click.argument("name")
def get_command(name: str) -> None:
    """Fetches a model. So far: smollm2, the embedded one."""
    if name != EMBEDDED:
        raise ModelLoadError(
            f"{name}: only '{EMBEDDED}' can be fetched by this version (elsewise models get {EMBEDDED}); "
            "import one that you have with: elsewise models import FOLDER (or FILE.gguf)"
        )
    with Bar() as bar:
        folder = fetch_embedded(bar.show)
    click.echo(f"{folder.name}: ready in {folder.path}")


@models.command("verify")
@click.argument("name", required=False)
def verify_command(name: str | None) -> None:
    """Reads every file again and compares its SHA-256."""
    here = [entry.name for entry in list_models()] + [adapter.name for adapter in list_shelf_adapters()]
    names = [name] if name else here
    failed = False
    for each in names:
        try:
            verify_model(each)
            click.echo(f"{each}: sound")
        except ModelLoadError as fault:
            failed = True
            said = str(fault)
            click.echo(said if said.startswith(f"{each}: ") else f"{each}: {said}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


class Bar:
    """A progress bar on stderr for loading's `Progress` steps, where somebody looks."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None)
        self._stage = ""

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: Step) -> None:
        """One step."""
        if step.stage != self._stage:  # a bar of its own: a total that is not known does not replace one that was
            self._progress.remove_task(self._task)
            self._task, self._stage = self._progress.add_task(step.stage, total=None), step.stage
        self._progress.update(self._task, completed=step.done, total=step.total or None)
