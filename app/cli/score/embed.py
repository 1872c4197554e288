"""`elsewise embed`: a vector for each text of a file."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import numpy as np
import numpy.typing as npt

from app.cli.common import read_text, reading
from app.cli.options import adapter_option, adapter_options, connection_of, in_options, load_model, model_options
from app.cli.settings import ESCAPE, CliSettings
from runtime import POOLINGS, Pooling, RuntimeFault

SUFFIXES = (".npy", ".jsonl")


EXAMPLES = """\b
Examples:
  elsewise embed notes.txt --out notes.npy
  elsewise embed notes.jsonl --pooling mean > vectors.jsonl
"""


@click.command(epilog=EXAMPLES)
@click.argument("file")
@model_options
@click.option(
    "--pooling",
    type=click.Choice(POOLINGS),
    default="last",
    show_default=True,
    help="Which hidden states become the vector: the last token's, the mean, the maximum, or the first token's.",
)
@adapter_option
@click.option("--jsonl", is_flag=True, help='Each line of FILE is an object with a "text", whatever its extension.')
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="FILE.npy (float32) or FILE.jsonl; else stdout.")
@click.pass_obj
def embed(
    settings: CliSettings,
    file: str,
    model: str | None,
    connect_to: str | None,
    plain_http: bool,
    tokenizer: str | None,
    backend: str | None,
    pooling: str,
    adapters: tuple[str, ...],
    jsonl: bool,
    out: Path | None,
) -> None:
    """Vectors of length 1 for the texts of FILE ("-" for stdin), one text a line; of a .jsonl file each line's "text".

    Writes one JSON object a line, {"text": ..., "vector": [...]}, in the order of the texts.
    """
    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise click.UsageError(f"--out {out}: choose a name that ends in .npy or .jsonl")
    if out is not None and not out.absolute().parent.is_dir():
        raise click.ClickException(f"{out}: there is no folder {out.absolute().parent}")
    options = adapter_options(adapters) | connection_of(connect_to, model, tokenizer, plain_http=plain_http)
    texts = read_texts(file, jsonl=jsonl or file.lower().endswith(".jsonl"))
    with load_model(*settings.chosen(model, backend), **options) as loaded, reading() as on_progress:
        try:
            vectors = asyncio.run(loaded.embed(texts, cast("Pooling", pooling), on_progress=on_progress))
        except RuntimeFault as fault:
            raise click.ClickException(_by_line(in_options(fault), file)) from fault
    if out is None:
        for line in json_lines(texts, vectors):
            click.echo(line)
    else:
        _write(out, texts, vectors)
    what = "text" if len(texts) == 1 else "texts"
    click.echo(f"{len(texts):,} {what}, {vectors.shape[1]:,} numbers each{f', in {out}' if out else ''}", err=True)


def read_texts(file: str, *, jsonl: bool) -> list[str]:
    """The texts of a file, in order.

    Raises:
        click.ClickException: It cannot be read, is empty, or a line has no text; names the line.
    """
    lines = read_text(file).split("\n")
    if not lines[-1].strip("\r"):
        lines.pop()  # the text after the last line end is empty
    if not any(line.strip() for line in lines):
        raise click.ClickException(f"{file}: empty; there is nothing to embed")
    texts = []
    for number, line in enumerate(lines, 1):
        text = _text_of(line, f"{file}, line {number:,}") if jsonl else line.removesuffix("\r")
        if not text.strip():
            raise click.ClickException(f"{file}, line {number:,}: empty; an empty text has no vector: remove the line")
        texts.append(text)
    return texts


def _by_line(message: str, file: str) -> str:
    """Replaces the index of a text, which counts from 0, by the number of its line."""
    return re.sub(r"^texts\[(\d+)\]", lambda found: f"{file}, line {int(found[1]) + 1:,}", message)


def _text_of(line: str, where: str) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{where}: no JSON ({error})") from error
    text = found.get("text") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise click.ClickException(f'{where}: no object with a "text"; write {{"text": "..."}}')
    return text


def json_lines(texts: list[str], vectors: npt.NDArray[np.float32]) -> Iterator[str]:
    """One object per line; the numbers have enough digits to restore the float32 values."""
    for text, vector in zip(texts, vectors, strict=True):
        numbers = ", ".join(vector.astype(np.str_).tolist())
        yield f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{numbers}]}}'


def _write(out: Path, texts: list[str], vectors: npt.NDArray[np.float32]) -> None:
    """Writes a temporary file and renames it, so that the output is whole or missing."""
    part = out.with_name(f".{out.name}.part{os.getpid()}")
    try:
        if out.suffix.lower() == ".npy":
            with part.open("wb") as file:
                np.save(file, vectors, allow_pickle=False)
        else:
            part.write_text("".join(f"{line}\n" for line in json_lines(texts, vectors)), "utf-8", errors=ESCAPE)
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise click.ClickException(f"{out}: {error.strerror}") from error
