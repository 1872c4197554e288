"""`elsewise models catalogue`, `search`, `fetch`, `login` and `logout`: models of the hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from app.cli.common import console, headed, print_table, read_secret, rows_table, step_bar
from app.cli.options import load_options
from app.cli.printing import fit_facts, fit_rows, fit_word, one_line, ready_line
from app.fitting import fits
from runtime import (
    CatalogueModel,
    DownloadPlan,
    DownloadProgress,
    HubModel,
    ShelvedAdapter,
    available_backends,
    catalogue,
    default_backend,
    fetch_any,
    fetch_embedded,
    fitting,
    forget_token,
    keep_token,
    plan_download,
    search_models,
    token_in_environment,
    token_owner,
)

_PROPOSED = 3


@click.command("catalogue")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, one for each model.")
@click.option("--context", type=click.IntRange(1), help="Context length to calculate with. Example: --context 4096")
def catalogue_command(as_json: bool, context: int | None) -> None:
    """Lists chat models that are known to run, what each is good for and whether it fits this machine; uses no network.

    An asterisk marks the models that suit this machine best. 'gated': accept the terms on the model's page first.
    """
    if as_json:
        for model in catalogue():
            click.echo(json.dumps(_catalogue_facts(model, context)))
        return
    names = ("model", "parameters", "to fetch", "memory", "", "context", "licence", "good for", "fetch")
    table = headed(*names, right=("parameters", "to fetch", "memory", "context"))
    best = {model.name for model in fitting(_PROPOSED)}
    for model in catalogue():
        chosen, fit = model.variant(), model.fit(context=context)
        table.add_row(
            f"{model.name} *" if model.name in best else model.name,
            f"{model.parameters / 1e6:,.0f} M",
            f"{chosen.bytes / 1e6:,.0f} MB",
            f"{fit.total / 1e9:,.1f} GB",
            fit_word(fit),
            f"{model.context:,}",
            f"{model.licence}, gated" if chosen.gated else model.licence,
            Text(model.good_for),
            Text(chosen.source),
        )
    print_table(table)
    click.echo(f"for {default_backend()} on this machine; fetch one with: elsewise models fetch ORG/NAME", err=True)


@click.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Limit of models. Example: --limit 5")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, one for each model.")
def search_command(words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Searches the hub for text models by name, most downloaded first, and shows which can run here.

    Sends one request to Hugging Face (or HF_ENDPOINT); downloads nothing.
    """
    with console.status("asking the hub"):
        found = search_models(" ".join(words), limit)
    if not found:
        click.echo("no model has these words in its name", err=True)
    if as_json:
        for model in found:
            click.echo(json.dumps(asdict(model) | {"runs_here": bool(_here(model))}))
    elif found:
        print_table(_found_table(found))


def _found_table(found: tuple[HubModel, ...]) -> Table:
    names = ("model", "parameters", "weights", "downloads", "likes", "licence", "runs here")
    table = headed(*names, right=("parameters", "downloads", "likes"))
    for model in found:
        marks = [word for word, is_so in (("gated", model.gated), ("private", model.private)) if is_so]
        table.add_row(
            Text(model.source),
            f"{model.parameters / 1e6:,.0f} M" if model.parameters else "-",
            Text(one_line("adapter" if model.kind == "adapter" else model.quantisation or "plain")),
            f"{model.downloads:,}",
            f"{model.likes:,}",
            Text(one_line(", ".join([model.licence or "-", *marks]))),
            Text(one_line(", ".join(_here(model)) or f"no: {model.problem or 'its engine is not installed'}")),
        )
    return table


def _here(model: HubModel) -> list[str]:
    """The engines of this machine that can run a model."""
    return [name for name in model.backends if available_backends().get(name) is True]


def _catalogue_facts(model: CatalogueModel, context: int | None) -> dict[str, Any]:
    plain = asdict(model) | {"source": model.source, "context": model.context, "for_this_machine": model.variant().source}
    for variant, facts in zip(model.variants, plain["variants"], strict=True):
        del facts["config"]
        facts["backends"] = list(variant.backends)
    return plain | {"fit": fit_facts([model.fit(context=context)])}


EMBEDDED = "smollm2"


@click.command("fetch")
@click.argument("model")
@click.option("--dry-run", is_flag=True, help="Show what would be downloaded, its size and whether it fits; download nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: one JSON object.")
@click.option(
    "--context", type=click.IntRange(1), help="With --dry-run: context length to calculate with. Example: --context 4096"
)
@click.option(
    "--load", "loads", multiple=True, help="With --dry-run: a load option to calculate with. Example: --load weights=int8"
)
def fetch_command(model: str, dry_run: bool, as_json: bool, context: int | None, loads: tuple[str, ...]) -> None:
    """Fetches a model or an adapter: ORG/NAME or ORG/NAME@REVISION from Hugging Face, or smollm2, the embedded model.

    Only safetensors, tokenizer and configuration files are downloaded. Ctrl-C pauses; the same command resumes.
    """
    if (as_json or context is not None or loads) and not dry_run:
        raise click.UsageError("--json, --context and --load are for --dry-run")
    options = load_options("--load", loads)
    if model == EMBEDDED:
        if dry_run:
            raise click.UsageError("--dry-run is for models of a hub")
        with step_bar() as show:
            folder = fetch_embedded(show)
        click.echo(ready_line(EMBEDDED, folder.path))
    elif dry_run:
        with console.status(f"looking up {model}"):
            plan = plan_download(model)
        found = [] if plan.kind == "adapter" else fits(plan.config, plan.weights, "", plan.backends, context, options=options)
        if as_json:
            click.echo(json.dumps(_plan_facts(plan) | {"fit": fit_facts(found)}))
        else:
            print_table(_files(plan))
            print_table(_summary(plan, fit_rows(found)))
    else:
        with fetch_bar() as show:
            try:
                fetched = fetch_any(model, show)
            except KeyboardInterrupt:
                click.echo("paused: run the same command again to resume", err=True)
                raise click.exceptions.Exit(1) from None
        name = fetched.path.name.replace("--", "/")
        if isinstance(fetched, ShelvedAdapter):
            click.echo(f"{name}: ready in {fetched.path}; use it with: elsewise ask --adapter {name}")
        else:
            click.echo(ready_line(name, fetched.path, fetched.quantisation))


@contextmanager
def fetch_bar() -> Iterator[Callable[[DownloadProgress], None]]:
    """Progress of a download on stderr: a bar on a terminal, else a line for each file and each reason to wait."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    printed: set[str] = set()
    under_way: dict[str, None] = {}  # files being downloaded, in the order in which they began
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("look up", total=None, speed="")

        def show(step: DownloadProgress) -> None:
            note = one_line(step.note) if step.note else ""
            if step.state == "fetch" and step.file_done < step.file_total:
                under_way[step.file] = None
            else:
                under_way.pop(step.file, None)
            first, others = next(iter(under_way), step.file or step.state), len(under_way) - 1
            speed = f"{rate_text(step.rate)}, {time_left(step.eta)}" if step.rate else note
            shown = f"{first} +{others}" if others > 0 else first
            bar.update(task, description=shown, completed=step.done, total=step.total or None, speed=speed)
            taken = f"{step.file}: {step.file_total:,} bytes" if step.state == "fetch" and step.total else ""
            line = f"{note}; waiting to ask again" if note else taken
            if line and line not in printed and not console.is_terminal:
                printed.add(line)
                click.echo(line, err=True)

        yield show


def rate_text(rate: float) -> str:
    """Bytes per second in words."""
    return f"{rate / 1e6:,.1f} MB/s"


def time_left(seconds: float | None) -> str:
    """Remaining seconds in words."""
    if seconds is None:
        return "time unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min left" if hours else f"{minutes} min {rest} s left" if minutes else f"{rest} s left"


def _files(plan: DownloadPlan) -> Table:
    table = headed("file", "bytes", right=("bytes",))
    for file in plan.files:
        table.add_row(Text(file.name), f"{file.size:,}")
    return table


def _summary(plan: DownloadPlan, more: Mapping[str, str]) -> Table:
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
    return rows_table((name, Text(one_line(value))) for name, value in rows.items() if value)


def _plan_facts(plan: DownloadPlan) -> dict[str, object]:
    found = {key: value for key, value in asdict(plan).items() if key != "config"}
    return found | {"name": plan.name, "bytes": plan.bytes}


@click.command("login")
@click.option("--check", is_flag=True, help="Check the token with the hub before storing it.")
def login_command(check: bool) -> None:
    """Stores a token for private and gated models in the system keychain; asks for it without showing it, uses no network.

    It can also be piped in: elsewise models login < token.txt. A token in HF_TOKEN takes precedence.
    """
    token = read_secret("token (hf_...)")
    if check:
        with console.status("asking the hub"):
            owner = token_owner(token)
        click.echo(f"the token belongs to {owner}", err=True)
    click.echo(f"the token is stored in {keep_token(token)}")
    if variable := token_in_environment():
        click.echo(f"note: {variable} is set and takes precedence", err=True)


@click.command("logout")
def logout_command() -> None:
    """Removes the token from the system keychain."""
    click.echo("the token is removed from the system keychain" if forget_token() else "no token was stored")
    if variable := token_in_environment():
        click.echo(f"note: {variable} is set and is still used", err=True)
