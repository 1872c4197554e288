"""`elsewise score`: log-probability, rank, entropy and alternatives of every token of a text."""

from __future__ import annotations

import asyncio
import csv
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from app.cli.common import counting, print_table, read_text, reading
from app.cli.options import (
    WEIGHTS,
    WEIGHTS_HELP,
    adapter_options,
    connection_of,
    in_options,
    load_model,
    load_options,
    model_options,
    precision_note,
    weights_of,
)
from app.cli.printing import record_fields, shown, token_table, top_fields
from app.cli.score.files import check_out, json_value, score_files
from app.cli.settings import CliSettings
from runtime import ContextOverflowError, LanguageModel, ModelComparison, OnProgress, TokenRun, check_fits, compare_models

LONGEST_IN_WINDOWS: Final = 16 << 20  # characters: about 4,000,000 tokens; tokenising them takes 2 GB


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@model_options
@click.option("--alternatives", type=click.IntRange(0, 1000), show_default="3", help="How many for each token.")
@click.option("--top-k", type=click.IntRange(0, 1000), hidden=True)  # the old name, until the next release
@click.option(
    "--stride",
    type=click.IntRange(1),
    help="Score a text longer than the context in windows, each this many tokens after the one before; every token is scored "
    "once, after at least (context - stride) tokens of its text (at most 16 Mi characters). Example: --stride 1024",
)
@click.option("--weights", type=click.Choice(WEIGHTS), help=WEIGHTS_HELP)
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header.")
@click.option("--against", metavar="MODEL", help="Compare with another model; different tokenizers are aligned by bytes.")
@click.option("--against-backend", help="The other model's engine; without --against, compares engines.")
@click.option(
    "--against-adapter",
    "against_adapters",
    multiple=True,
    help="LoRA adapter for the other model, with its scale (./pirate:0.8); without --against, for the same model.",
)
@click.option(
    "--against-weights", type=click.Choice(WEIGHTS), help="The other model's weights; without --against, compares weights."
)
@click.option("--load", "loads", multiple=True, help="Any load option by name. Example: --load kv_dtype=q8")
@click.option(
    "--against-load", "against_loads", multiple=True, help="Load option of the other model, or of the same without --against."
)
@click.option("--kl", is_flag=True, help="With --against: KL(A || B) at every token, where the vocabularies are the same.")
@click.option("--parquet", type=click.Path(path_type=Path, dir_okay=False), help="As --out FILE.parquet.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help='Score many texts into FILE.parquet, FILE.jsonl or FILE.csv: each "text" of .jsonl, .csv and .parquet files, other '
    "files as one text each.",
)
@click.option(
    "--rows", type=click.Choice(["token", "text"]), default="token", show_default=True, help="With --out: one row for each."
)
@click.option("--resume", is_flag=True, help="With --out: continue the run that was stopped.")
@click.pass_obj
def score(
    settings: CliSettings,
    files: tuple[str, ...],
    model: str | None,
    connect_to: str | None,
    plain_http: bool,
    tokenizer: str | None,
    backend: str | None,
    alternatives: int | None,
    top_k: int | None,
    stride: int | None,
    weights: str | None,
    as_json: bool,
    as_csv: bool,
    against: str | None,
    against_backend: str | None,
    against_adapters: tuple[str, ...],
    against_weights: str | None,
    loads: tuple[str, ...],
    against_loads: tuple[str, ...],
    kl: bool,
    parquet: Path | None,
    out: Path | None,
    rows: str,
    resume: bool,
) -> None:
    """Prints log-probability, rank, entropy and alternatives of every token of FILE ("-" for stdin)."""
    if parquet and (out or parquet.suffix.lower() != ".parquet"):
        raise click.UsageError("--parquet takes a name that ends in .parquet, and stands without --out")
    out = out or parquet
    if out is None and (len(files) > 1 or resume or rows != "token"):
        raise click.UsageError("several files, --rows and --resume need --out FILE.parquet (or .jsonl, .csv)")
    file = files[0]
    other_model = against is not None or against_backend is not None
    beside = other_model or bool(against_adapters or against_weights or against_loads)
    if out is not None and (as_json or as_csv or stride or beside or kl):
        raise click.UsageError("--out takes no --json, --csv, --stride, --kl or --against: its name says the format")
    if as_json and as_csv:
        raise click.UsageError("choose one of --json and --csv")
    if beside and connect_to:
        raise click.UsageError("--connect scores with one model: leave out --against")
    if kl and not beside:
        raise click.UsageError("--kl compares two models: give --against")
    if stride and beside:
        raise click.UsageError("--stride scores a text with one model: leave out --against")
    if top_k is not None:
        if alternatives is not None:
            raise click.UsageError("--top-k is the old name of --alternatives here: give one of the two")
        click.echo("note: --top-k is called --alternatives here now; elsewhere it is a setting of the sampler", err=True)
    count = next((given for given in (alternatives, top_k) if given is not None), 3)
    own = load_options("--load", loads) | weights_of(weights)
    other = load_options("--against-load", against_loads) | weights_of(against_weights) | adapter_options(against_adapters)
    first = settings.chosen(model, backend)
    if out is not None:
        check_out(out, files, resume=resume)
        connection = connection_of(connect_to, model, tokenizer, plain_http=plain_http)
        with load_model(*first, **(own | connection)) as loaded:
            score_files(loaded, files, out, top_k=count, per_text=rows == "text", resume=resume, loading=own)
        return
    text = read_text(file)
    if not text:
        raise click.ClickException(f"{file}: empty; there is nothing to score")
    if beside:
        second = CliSettings(settings.data, *first).chosen(against, against_backend)
        with load_model(*first, **own) as left, load_model(*second, **other) as right, counting("comparing") as show:
            found = asyncio.run(compare_models(left, right, text, kl_start=0 if kl else None, on_progress=show))
        (write_json if as_json else write_csv if as_csv else write_table)(found)
        for line in words(found):
            click.echo(line, err=True)
        return
    own |= connection_of(connect_to, model, tokenizer, plain_http=plain_http)
    with load_model(*first, **own) as loaded:
        _check_size(loaded, file, text, stride)
        ids = loaded.tokenize(text)
        with reading() as on_progress:
            run = asyncio.run(_scored(loaded, ids, count, stride, on_progress))
        write = _write_json if as_json else _write_csv if as_csv else _write_table
        write(run, loaded)
        precision = precision_note(loaded)
    total = [r.logprob for r in run if r.logprob is not None]
    if total:
        suffix = f", {precision}" if precision else ""
        mean = sum(total) / len(total)
        click.echo(
            f"{len(run):,} tokens, log-probability {sum(total):,.2f} nats, perplexity {math.exp(-mean):,.2f}{suffix}", err=True
        )


def _check_size(model: LanguageModel, file: str, text: str, stride: int | None) -> None:
    """Refuses a text that is too long by its size, before it is tokenised.

    Raises:
        click.ClickException: It cannot fit into the context, or with `stride` is longer than `LONGEST_IN_WINDOWS`.
    """
    if stride is not None:
        if len(text) > LONGEST_IN_WINDOWS:
            most = f"at most {LONGEST_IN_WINDOWS:,} are scored in windows"
            raise click.ClickException(f"{file}: {len(text):,} characters; {most}: split the text")
        return
    try:
        check_fits(model, text, stage=file)
    except ContextOverflowError as fault:
        windows = f"; or score it in windows: --stride {fault.limit // 2}" if len(text) <= LONGEST_IN_WINDOWS else ""
        raise click.ClickException(f"{in_options(fault)}{windows}") from fault


async def _scored(model: LanguageModel, ids: list[int], top_k: int, stride: int | None, on_progress: OnProgress) -> TokenRun:
    context = model.info.context_length - (not model.has("kv"))  # a server generates a token after the text
    if stride is None and len(ids) > context:
        raise click.ClickException(
            f"{len(ids):,} tokens do not fit into the context of {context:,}; score them in windows: --stride {context // 2}"
        )
    if stride is not None and stride >= context:
        raise click.UsageError(f"--stride {stride} leaves nothing before a window: give less than the context of {context:,}")
    return await model.score_run(ids, top_k, stride=stride, on_progress=on_progress)


def _write_json(run: TokenRun, model: LanguageModel) -> None:
    for record in run:
        fields = record_fields(record) | {"covered_mass": record.covered_mass, "top": top_fields(record, model.decode_token)}
        click.echo(json.dumps(fields, ensure_ascii=False))


def _write_csv(run: TokenRun, _: LanguageModel) -> None:
    k = run.top_k
    writer = csv.writer(sys.stdout)
    names = [f"top{i}_{what}" for i in range(1, k + 1) for what in ("id", "logprob")]
    writer.writerow(["position", "id", "bytes", "text", "logprob", "rank", "entropy", *names])
    for at, record in enumerate(run):
        pairs = [value for pair in zip(record.top_ids, record.top_logprobs, strict=True) for value in pair]
        own = [record.logprob, record.rank, record.entropy]
        writer.writerow([at, record.token_id, record.token_bytes.hex(), record.text, *own, *pairs])


def _write_table(run: TokenRun, model: LanguageModel) -> None:
    print_table(token_table(run, model.decode_token))


FIELDS = ("text", "bytes", "tokens", "logprob", "against_tokens", "against_logprob", "difference", "rank", "against_rank")


def write_json(found: ModelComparison) -> None:
    """Prints one object per span, then a summary."""
    for row in rows_of(found):
        click.echo(json.dumps(row, ensure_ascii=False))
    click.echo(json.dumps(summary(found), ensure_ascii=False))


def write_csv(found: ModelComparison) -> None:
    """Prints a row per span, with a header."""
    names = [*FIELDS, "likeliest", "against_likeliest", "disagree", *(["kl"] if found.kl is not None else [])]
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    for row in rows_of(found):
        writer.writerow([row[name] for name in names])


def write_table(found: ModelComparison) -> None:
    """Prints a line per span, with a star where the likeliest tokens differ."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = ["", "text", "A", "B", "B - A", "rank A", "rank B", "A says", "B says", ""]
    if found.kl is not None:
        names.insert(7, "KL")
    for name in names:
        table.add_column(name, justify="left" if name in ("text", "A says", "B says") else "right", no_wrap=True)
    for at, row in enumerate(rows_of(found)):
        numbers = [_number(row[name]) for name in ("logprob", "against_logprob", "difference")]
        ranks = [str(row[name] or "-") for name in ("rank", "against_rank")]
        kl = [_number(row["kl"])] if found.kl is not None else []
        says = [Text(shown(row[name])) for name in ("likeliest", "against_likeliest")]
        table.add_row(
            str(at),
            Text(shown(bytes.fromhex(row["bytes"]).decode(errors="replace"))),
            *numbers,
            *ranks,
            *kl,
            *says,
            "*" if row["disagree"] else "",
        )
    print_table(table)


def words(found: ModelComparison) -> list[str]:
    """The totals of the comparison, in lines for stderr."""
    lines = [
        f"{letter} {side.name}: log-probability {total.logprob:,.2f} nats over {total.tokens:,} tokens, "
        f"perplexity {_number(total.perplexity)} a token, {_number(total.byte_perplexity)} a byte"
        for letter, side, total in zip("AB", found.sides, found.totals(), strict=True)
    ]
    where = f"{found.disagrees():,} of {len(found):,} places disagree about the likeliest token"
    if found.aligned_by == "bytes":
        where += "; the tokenizers differ, aligned by bytes"
    return [*lines, where]


def rows_of(found: ModelComparison) -> list[dict[str, Any]]:
    """The spans as JSON values, null if unknown."""
    return [
        {name: json_value(value) for name, value in row.items() if name != "position"}
        for row in found.rows()
    ]  # fmt: skip


def summary(found: ModelComparison) -> dict[str, Any]:
    """The totals as JSON values."""
    sides = [
        {
            "model": side.name,
            "logprob": total.logprob,
            "tokens": total.tokens,
            "perplexity": total.perplexity,
            "byte_perplexity": total.byte_perplexity,
        }
        for side, total in zip(found.sides, found.totals(), strict=True)
    ]
    return {
        "type": "summary",
        "aligned_by": found.aligned_by,
        "bytes": found.totals()[0].bytes,
        "places": len(found),
        "disagree": found.disagrees(),
        "left": sides[0],
        "right": sides[1],
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"
