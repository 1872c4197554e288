"""`elsewise models catalogue`: models to fetch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from app.cli.common import print_table
from app.cli.fit_rows import fit_facts, fit_word
from runtime import CatalogueModel, catalogue, default_backend, fitting

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


def _facts(model: CatalogueModel, context: int | None) -> dict[str, Any]:
    plain = asdict(model) | {"source": model.source, "context": model.context, "for_this_machine": model.variant().source}
    for variant, told in zip(model.variants, plain["variants"], strict=True):
        del told["config"]
        told["backends"] = list(variant.backends)
    return plain | {"fit": fit_facts([model.fit(context=context)])}
