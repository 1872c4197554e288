"""`elsewise models catalogue` and `search`: models to fetch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from app.cli.common import console, print_table
from app.cli.fit_rows import fit_facts, fit_word
from app.cli.model_rows import one_line
from runtime import CatalogueModel, HubModel, available_backends, catalogue, default_backend, fitting, search_models

_PROPOSED = 3


@click.command("catalogue")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, one for each model.")
@click.option("--context", type=click.IntRange(1), help="Tokens to reckon with. Example: --context 4096")
def catalogue_command(as_json: bool, context: int | None) -> None:
    """Chat models that are known to run, with what each is good for and whether it fits into this machine; asks nobody.

    An asterisk marks those that suit this machine best. 'gated' ones want their owners' consent first.
    """
    if as_json:
        for model in catalogue():
            click.echo(json.dumps(_facts(model, context)))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("model", "parameters", "to fetch", "memory", "", "context", "licence", "good for", "fetch"):
        table.add_column(name, justify="right" if name in ("parameters", "to fetch", "memory", "context") else "left")
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
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Models at most. Example: --limit 5")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, one for each model.")
def search_command(words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Asks the hub for text models with these words in their names, the most fetched first, and says which can run here.

    This is one question to Hugging Face (or HF_ENDPOINT); nothing is fetched.
    """
    with console.status("asking the hub"):
        found = search_models(" ".join(words), limit)
    if not found:
        click.echo("the hub finds nothing by these words", err=True)
    if as_json:
        for model in found:
            click.echo(json.dumps(asdict(model) | {"runs_here": bool(_here(model))}))
    elif found:
        print_table(_found_table(found))


def _found_table(found: tuple[HubModel, ...]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    right = ("parameters", "downloads", "likes")
    for name in ("model", "parameters", "weights", "downloads", "likes", "licence", "runs here"):
        table.add_column(name, justify="right" if name in right else "left")
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
    """The engines of this machine that can run it."""
    return [name for name in model.backends if available_backends().get(name) is True]


def _facts(model: CatalogueModel, context: int | None) -> dict[str, Any]:
    plain = asdict(model) | {"source": model.source, "context": model.context, "for_this_machine": model.variant().source}
    for variant, told in zip(model.variants, plain["variants"], strict=True):
        del told["config"]
        told["backends"] = list(variant.backends)
    return plain | {"fit": fit_facts([model.fit(context=context)])}
