"""`elsewise models fetch`: a model or an adapter from a Hugging Face hub, or the embedded model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from app.cli.bars import Bar
from app.cli.common import console, print_table
from app.cli.fit_rows import fit_facts, fit_rows
from app.cli.model_rows import one_line, ready_line
from app.cli.values import load_options
from app.fitting import fits
from runtime import DownloadPlan, DownloadProgress, ShelvedAdapter, fetch_any, fetch_embedded, plan_download

EMBEDDED = "smollm2"


@click.command("fetch")
@click.argument("model")
@click.option("--dry-run", is_flag=True, help="Say what would be fetched, how large it is and whether it fits; fetch nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: one JSON object.")
@click.option("--context", type=click.IntRange(1), help="With --dry-run: tokens to reckon with. Example: --context 4096")
@click.option(
    "--load", "loads", multiple=True, help="With --dry-run: It would be loaded with this. Example: --load weights=int8"
)
def fetch_command(model: str, dry_run: bool, as_json: bool, context: int | None, loads: tuple[str, ...]) -> None:
    """Fetches a model or an adapter: ORG/NAME or ORG/NAME@REVISION from Hugging Face, or smollm2, the embedded model.

    Only safetensors, tokenizer and configuration are taken. Ctrl-C pauses: the same command goes on where it stopped.
    """
    if (as_json or context is not None or loads) and not dry_run:
        raise click.UsageError("--json, --context and --load are for --dry-run")
    options = load_options("--load", loads)
    if model == EMBEDDED:
        if dry_run:
            raise click.UsageError("--dry-run is for models of a hub")
        with Bar() as bar:
            folder = fetch_embedded(bar.show)
        click.echo(ready_line(EMBEDDED, folder.path))
    elif dry_run:
        with console.status(f"looking up {model}"):
            plan = plan_download(model)
        found = [] if plan.kind == "adapter" else fits(plan.config, plan.weights, "", plan.backends, context, options=options)
        if as_json:
            click.echo(json.dumps(_facts(plan) | {"fit": fit_facts(found)}))
        else:
            print_table(_files(plan))
            print_table(_summary(plan, fit_rows(found)))
    else:
        with FetchBar() as fetching:
            try:
                fetched = fetch_any(model, fetching.show)
            except KeyboardInterrupt:
                click.echo("paused: the same command goes on with what is here", err=True)
                raise click.exceptions.Exit(1) from None
        name = fetched.path.name.replace("--", "/")
        if isinstance(fetched, ShelvedAdapter):
            click.echo(f"{name}: ready in {fetched.path}; use it with: elsewise ask --adapter {name}")
        else:
            click.echo(ready_line(name, fetched.path, fetched.quantisation))


class FetchBar:
    """How far a download is, on stderr: a bar where somebody looks, else a line for each file and each reason to wait."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TextColumn("{task.fields[speed]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("look up", total=None, speed="")
        self._said: set[str] = set()
        self._under_way: dict[str, None] = {}  # files that come side by side, the first one first

    def __enter__(self) -> FetchBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: DownloadProgress) -> None:
        """One step."""
        note = one_line(step.note) if step.note else ""
        if step.state == "fetch" and step.file_done < step.file_total:
            self._under_way[step.file] = None
        else:
            self._under_way.pop(step.file, None)
        first, others = next(iter(self._under_way), step.file or step.state), len(self._under_way) - 1
        speed = f"{rate_text(step.rate)}, {time_left(step.eta)}" if step.rate else note
        shown = f"{first} +{others}" if others > 0 else first
        self._progress.update(self._task, description=shown, completed=step.done, total=step.total or None, speed=speed)
        taken = f"{step.file}: {step.file_total:,} bytes" if step.state == "fetch" and step.total else ""
        line = f"{note}; waiting to ask again" if note else taken
        if line and line not in self._said and not console.is_terminal:
            self._said.add(line)
            click.echo(line, err=True)


def rate_text(rate: float) -> str:
    """Bytes a second for people."""
    return f"{rate / 1e6:,.1f} MB/s"


def time_left(seconds: float | None) -> str:
    """Seconds for people."""
    if seconds is None:
        return "time unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min left" if hours else f"{minutes} min {rest} s left" if minutes else f"{rest} s left"


def _files(plan: DownloadPlan) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("file")
    table.add_column("bytes", justify="right")
    for file in plan.files:
        table.add_row(Text(file.name), f"{file.size:,}")
    return table


def _summary(plan: DownloadPlan, more: Mapping[str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = {
        "name": f"{plan.name} (here already)" if plan.here else plan.name,
        "revision": plan.revision,
        "commit": plan.commit,
        "in all": f"{plan.bytes:,} bytes in {len(plan.files)} files; {len(plan.left)} others are left",
        "here": f"{plan.kept:,} bytes of a download that was stopped" if plan.kept else "",
        "disk": f"{plan.free / 1e9:,.1f} GB free",
        "licence": plan.licence,
        "runs on": ", ".join(plan.backends),
        "made for": str(plan.config.get("base_model_name_or_path") or "") if plan.kind == "adapter" else "",
        **more,
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(one_line(value)))
    return table


def _facts(plan: DownloadPlan) -> dict[str, object]:
    found = {key: value for key, value in asdict(plan).items() if key != "config"}
    return found | {"name": plan.name, "bytes": plan.bytes}
