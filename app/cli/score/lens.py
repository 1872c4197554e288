"""`elsewise lens`: what each layer of a model would answer at a position of a text."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from app.cli.common import print_table, read_text, reading
from app.cli.options import adapter_option, adapter_options, load_model, load_options
from app.cli.printing import shown
from app.cli.score.files import json_value
from app.cli.settings import CliSettings
from runtime import LanguageModel, LensCost, LensRun, check_fits

MOST_LISTED: Final = 1_000_000  # positions of one range; more than any context has
MOST_DIGITS: Final = 18  # digits of a position
EXAMPLES = """\b
Examples:
  elsewise lens text.txt
  elsewise lens text.txt --position 12 --token " Paris"
  elsewise lens text.txt --position 0-40 --json > layers.jsonl
"""


@click.command(epilog=EXAMPLES)
@click.argument("file")
@click.option("--model", help="A model folder, a GGUF file, or a name on the shelf.")
@click.option("--backend", help="auto, hf, mlx, mock, or a registered one.")
@click.option(
    "--position",
    "positions",
    multiple=True,
    metavar="N|A-B",
    help="What follows token N of the text (from 0) is looked at; A-B means both and all between; may be given again. "
    "Without it: the last token.",
)
@click.option("--alternatives", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many for each layer.")
@click.option("--token", "tokens", multiple=True, metavar="TEXT", help="Follow the first token of this text, too.")
@adapter_option
@click.option("--load", "loads", multiple=True, help="Any load option by name. Example: --load kv_dtype=q8")
@click.option("--json", "as_json", is_flag=True, help="One object a position.")
@click.pass_obj
def lens(
    settings: CliSettings,
    file: str,
    model: str | None,
    backend: str | None,
    positions: tuple[str, ...],
    alternatives: int,
    tokens: tuple[str, ...],
    adapters: tuple[str, ...],
    loads: tuple[str, ...],
    as_json: bool,
) -> None:
    """Shows what each layer of a model would answer after a token of FILE ("-" for stdin).

    Row 0 is the embedding; the last row is the model's own answer. The expected cost is written
    to stderr first, the actual cost at the end.
    """
    places = [place for given in positions for place in _places(given)]
    options = load_options("--load", loads) | adapter_options(adapters)
    text = read_text(file)
    if not text:
        raise click.ClickException(f"{file}: empty; there is no position to look at")
    with load_model(*settings.chosen(model, backend), **options) as loaded:
        check_fits(loaded, text, stage=file)
        ids = loaded.tokenize(text)
        followed = [_first_token(loaded, each) for each in tokens]
        cost = LensCost.of(loaded.info, len(places) or 1, alternatives, len(followed))
        click.echo(cost_words(cost, len(ids)), err=True)
        began = time.monotonic()
        with reading() as on_progress:
            looked = loaded.lens(ids, places or None, top_k=alternatives, tokens=followed, on_progress=on_progress)
            run = asyncio.run(looked)
        click.echo(spent_words(cost, time.monotonic() - began), err=True)
        for row in range(len(run)):
            found = position_of(run, row, ids, loaded)
            if as_json:
                click.echo(json.dumps(found, ensure_ascii=False))
            else:
                _write_table(found)


def cost_words(cost: LensCost, tokens: int) -> str:
    """The expected cost, in words."""
    where = "1 position" if cost.positions == 1 else f"{cost.positions:,} positions"
    return (
        f"{where} of {tokens:,} tokens, {cost.head_rows:,} rows of the vocabulary: about as long as "
        f"{cost.like_tokens:,} tokens of a prompt, {cost.moment_bytes / 1e6:,.1f} MB at once"
    )


def spent_words(cost: LensCost, seconds: float) -> str:
    """The actual time in words, including that of the text before the positions."""
    each, size = 1000 * seconds / cost.positions, cost.answer_bytes // cost.positions
    return f"{seconds:,.2f} s: {each:,.1f} ms and {size:,} bytes of answer for each position"


def position_of(run: LensRun, row: int, ids: list[int], model: LanguageModel) -> dict[str, Any]:
    """A position of a run as JSON values."""

    def text(token: int) -> str:
        return model.decode_token(token).decode(errors="replace")

    columns = {column: token for column, token in enumerate(run.token_ids[row].tolist()) if token >= 0}
    followed = [
        {"id": token, "text": text(token), "leads_from": int(run.leads_from(column)[row])} for column, token in columns.items()
    ]
    layers = []
    for layer in range(run.layers + 1):
        pairs = zip(run.top_ids[row, layer].tolist(), run.top_logprobs[row, layer].tolist(), strict=True)
        layers.append(
            {
                "layer": layer,
                "entropy": float(run.entropy[row, layer]),
                "logprobs": [json_value(float(run.logprobs[row, layer, column])) for column in columns],
                "ranks": [int(run.ranks[row, layer, column]) for column in columns],
                "top": [{"id": token, "text": text(token), "logprob": value} for token, value in pairs if token >= 0],
            }
        )
    position = int(run.positions[row])
    after = {"id": ids[position], "text": text(ids[position])}
    return {"position": position, "after": after, "followed": followed, "layers": layers, "deviation": run.deviation}


def _write_table(found: dict[str, Any]) -> None:
    """Prints each followed token with the layer from which on it is the likeliest, then a line per layer."""
    last = len(found["layers"]) - 1
    click.echo(f"after token {found['position']:,} {shown(found['after']['text'])}")
    for token in found["followed"]:
        leads = f"leads from layer {token['leads_from']} of {last}" if token["leads_from"] >= 0 else "does not lead in the end"
        click.echo(f"  {shown(token['text'])}: {leads}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", justify="right")
    table.add_column("bits", justify="right")
    for token in found["followed"]:
        table.add_column(Text(f"rank of {shown(token['text'])}"), justify="right", no_wrap=True)
    table.add_column("likeliest", no_wrap=True)
    for layer in found["layers"]:
        top = "  ".join(f"{shown(one['text'])} {math.exp(one['logprob']):.1%}" for one in layer["top"])
        ranks = [f"{rank:,}" for rank in layer["ranks"]]
        table.add_row(str(layer["layer"]), f"{layer['entropy'] / math.log(2):.2f}", *ranks, Text(top))
    print_table(table)


def _places(given: str) -> range:
    """The positions of an option.

    Raises:
        click.UsageError: It is not a number or a range, or longer than any text.
    """
    first, dash, last = given.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else True)):
        raise click.UsageError(f"--position {given}: give a number from 0 on, or a range such as 0-40")
    if max(len(first), len(last)) > MOST_DIGITS:
        raise click.UsageError(
            f"--position {given[:MOST_DIGITS]}...: a number of more than {MOST_DIGITS} digits; no text is so long"
        )
    found = range(int(first), (int(last) if dash else int(first)) + 1)
    if not found:
        raise click.UsageError(f"--position {given}: the first is behind the last")
    if found.stop - found.start > MOST_LISTED:
        raise click.UsageError(f"--position {given}: more positions than a text has tokens")
    return found


def _first_token(model: LanguageModel, text: str) -> int:
    ids = model.tokenize(text)
    ids = ids[1:] if len(ids) > 1 and not model.decode_token(ids[0]) else ids
    if not ids:
        raise click.UsageError(f"--token {text!r}: empty; give a text")
    if len(ids) > 1:
        click.echo(f"note: {text!r} is {len(ids)} tokens; the first, {model.decode_token(ids[0])!r}, is followed", err=True)
    return ids[0]
