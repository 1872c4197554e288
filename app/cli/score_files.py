"""`elsewise score FILES --parquet OUT`: many texts into one file of numbers, resumable.

While it runs, results are appended to an Arrow stream beside the file (`.OUT.part`), which can be read up to where it was cut
off. At the end it becomes a file under another temporary name, which is renamed: OUT is whole, or is not there.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import click

from app.cli.common import console, read_text
from app.cli.options import in_options
from runtime import LanguageModel, RuntimeFault, TokenRun, __version__

FORMATS: Final = (".parquet", ".jsonl", ".csv")
FLUSHED_ROWS: Final = 20_000  # that are held before they are written
LEFT_OUT: Final = ("origin", "finish_reason", "draw")  # of a run's columns: they say nothing of a text that was given
MOST_OF_A_FIELD: Final = 1 << 27  # characters of a field in CSV
IN_ORDER: Final = 1 << 10  # rows of an input in Parquet that are read at a time


@dataclass(frozen=True, slots=True)
class Input:
    """One text, and where it is from: the row of a table counts from 1, a text file has one."""

    file: str
    row: int
    text: str


def check_out(out: Path) -> None:
    """Refuses a name that nothing can be written under, and says which library is missing.

    Raises:
        click.ClickException, click.UsageError: See above.
    """
    if out.suffix.lower() not in FORMATS:
        raise click.UsageError(f"{out}: choose a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not out.absolute().parent.is_dir():
        raise click.ClickException(f"{out}: there is no folder {out.absolute().parent}")
    _arrow()


def score_files(model: LanguageModel, files: tuple[str, ...], out: Path, *, top_k: int, per_text: bool, resume: bool) -> None:
    """Scores every text of the files.

    Raises:
        click.ClickException: A file that cannot be read, a full disk, or a partial file of something else.
    """
    metadata = {
        "elsewise": __version__,
        "model": model.info.name,
        "backend": model.info.backend,
        "precision": model.info.precision,
        "model_fingerprint": model.info.model_fingerprint,
        "numbers_fingerprint": model.info.numbers_fingerprint,
        "options": {"alternatives": top_k, "rows": "text" if per_text else "token"},
        "inputs": [[file, Path(file).stat().st_size if Path(file).is_file() else 0] for file in files],
    }
    part = _Part(out.with_name(f".{out.name}.part"), metadata, per_text=per_text)
    if resume and not part.path.exists() and out.exists():
        click.echo(f"{out}: complete; there is nothing to go on with", err=True)
        return
    try:
        done = part.open(resume=resume)
        told = f"{len(done):,} texts are done already; " if done else ""
        given: dict[int, Input] = {}

        def texts() -> Iterator[str]:
            for number, each in enumerate(inputs(files)):
                if number not in done:
                    given[number] = each
                yield each.text

        faults: dict[int, RuntimeFault] = {}
        stream = model.score_many_sync(
            texts(), top_k, skip=done, ordered=True, progress=console.is_terminal, on_fault=faults.__setitem__
        )
        try:
            for number, run in stream:
                part.add(number, given.pop(number), run)
        finally:
            stream.close()
            part.close()
        for number, fault in faults.items():
            where = given[number]
            click.echo(f"{where.file}, row {where.row:,}: left out: {in_options(fault)}", err=True)
        if not part.texts + len(done):
            raise click.ClickException(f"{', '.join(files)}: there is no text that can be scored")
        rows = part.finish(out)
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"stopped; the results so far are in {part.path}: go on with --resume", err=True)
        raise
    except OSError as error:
        left = f"; the results so far are in {part.path}: go on with --resume" if part.path.exists() else ""
        raise click.ClickException(f"{out}: {error.strerror or error}{left}") from error
    click.echo(f"{told}{part.texts:,} texts scored, {rows:,} rows in {out}", err=True)


# ---- what is read --------------------------------------------------------------------------------------------------------


def inputs(files: tuple[str, ...]) -> Iterator[Input]:
    """The texts of all files, in order: a .txt file is one text; the others have a column or name "text".

    Raises:
        click.ClickException: A file cannot be read; the place is named.
    """
    readers = {".jsonl": _read_json_lines, ".csv": _read_csv, ".parquet": _read_parquet}
    for file in files:
        reader = readers.get(Path(file).suffix.lower())
        texts = [read_text(file)] if reader is None else reader(file)
        for row, text in enumerate(texts, 1):
            if not isinstance(text, str):
                raise click.ClickException(f'{file}, row {row:,}: there is no "text", or it is no text')
            yield Input(file, row, text)


def _read_json_lines(file: str) -> Iterator[object]:
    with _opened(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise click.ClickException(f"{file}, line {number:,}: no JSON ({error})") from error
            yield found.get("text") if isinstance(found, dict) else found


def _read_csv(file: str) -> Iterator[object]:
    csv.field_size_limit(MOST_OF_A_FIELD)
    with _opened(file) as lines:
        try:
            for row in csv.DictReader(lines, strict=True):
                yield row.get("text")
        except csv.Error as error:
            raise click.ClickException(f"{file}: no CSV ({error})") from error


def _read_parquet(file: str) -> Iterator[object]:
    arrow = _arrow()
    parquet = import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(file) as table:
            if "text" not in table.schema_arrow.names:
                raise click.ClickException(f'{file}: no column "text"; it has {", ".join(table.schema_arrow.names)}')
            for batch in table.iter_batches(IN_ORDER, columns=["text"]):
                yield from batch.column(0).to_pylist()
    except arrow.ArrowInvalid as error:
        raise click.ClickException(f"{file}: no whole Parquet file: it is cut short, damaged or of another format") from error
    except OSError as error:
        raise click.ClickException(f"{file}: cannot be read as Parquet: {error.strerror or 'it is damaged'}") from error


def _opened(file: str) -> IO[str]:
    try:
        return Path(file).open(encoding="utf-8-sig", errors="strict", newline="")
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error


# ---- what is written -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """The results so far, in a stream of Arrow batches."""

    path: Path
    metadata: Mapping[str, Any]
    per_text: bool
    texts: int = 0  # added in this run
    _held: list[Any] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _writer: Any = None

    def open(self, *, resume: bool) -> set[int]:
        """The numbers of the texts that are done, whose results are taken over.

        Raises:
            click.ClickException: They are of another model, other options or other files.
        """
        before = self.path.with_name(f"{self.path.name}.before")
        done: set[int] = set()
        if resume and self.path.exists():
            self.path.replace(before)
        try:
            self._file = self.path.open("wb")
            for table in self._batches(before) if before.exists() else ():
                self._write(table)
                done.update(table.column("text_id").to_pylist())
        except BaseException:
            self.close()
            if before.exists():
                before.replace(self.path)
            raise
        before.unlink(missing_ok=True)
        return done

    def add(self, number: int, given: Input, run: TokenRun) -> None:
        """The scores of one text."""
        arrow = _arrow()
        if self.per_text:
            scored = run.surprisal_bits[1:]
            bits = float(scored.sum())
            mean = bits / len(scored) if len(scored) else math.nan
            own = {
                "text": run.text,
                "tokens": len(run),
                "logprob": -bits * math.log(2),
                "surprisal_bits": bits,
                "perplexity": 2.0 ** min(mean, 1000.0) if len(scored) else None,
            }
            table = arrow.table({name: [value] for name, value in own.items()})
        else:
            table = run.to_arrow().drop_columns(list(LEFT_OUT))
        for name, value, kind in (("row", given.row, "int64"), ("file", given.file, "string"), ("text_id", number, "int64")):
            table = table.add_column(0, name, arrow.array([value] * len(table), kind))
        self._held.append(table)
        self.texts += 1
        if sum(map(len, self._held)) >= FLUSHED_ROWS:
            self._flush()

    def close(self) -> None:
        """What is held is written, and the file closed."""
        try:
            if self._file is not None and not self._file.closed:
                self._flush()
                if self._writer is not None:
                    self._writer.close()
        finally:
            if self._file is not None:
                self._file.close()

    def finish(self, out: Path) -> int:
        """Makes the file of it; how many rows it has."""
        made = out.with_name(f".{out.name}.made")
        try:
            with made.open("wb") as file:
                rows = _written(self._batches(self.path), file, out.suffix.lower(), self.metadata)
            made.replace(out)
        finally:
            made.unlink(missing_ok=True)
        self.path.unlink()
        return rows

    def _flush(self) -> None:
        if self._held:
            self._write(_arrow().concat_tables(self._held))
            self._held.clear()
        if self._file is not None:
            self._file.flush()

    def _write(self, table: Any) -> None:
        if self._writer is None:
            schema = table.schema.with_metadata({"elsewise": json.dumps(self.metadata)})
            self._writer = import_module("pyarrow.ipc").new_stream(self._file, schema)
        self._writer.write_table(table.replace_schema_metadata(None).combine_chunks())

    def _batches(self, path: Path) -> Iterator[Any]:
        """The tables of a partial file up to where it was cut off."""
        arrow = _arrow()
        with path.open("rb") as file:
            try:
                stream = import_module("pyarrow.ipc").open_stream(file)
            except arrow.ArrowInvalid:
                return  # cut off before the first
            if json.loads((stream.schema.metadata or {}).get(b"elsewise", b"null")) != self.metadata:
                raise click.ClickException(
                    f"{path}: it was begun with another model, other options or other files; leave out --resume to begin anew"
                )
            with suppress(arrow.ArrowInvalid, StopIteration, OSError):
                while True:
                    yield arrow.Table.from_batches([stream.read_next_batch()])


def _written(tables: Iterator[Any], file: IO[bytes], suffix: str, metadata: Mapping[str, Any]) -> int:
    """Writes all tables in a format; how many rows there are."""
    rows = 0
    writer: Any = None
    if suffix == ".jsonl":
        file.write(json.dumps({"metadata": metadata}).encode() + b"\n")
    try:
        for table in tables:
            rows += len(table)
            if suffix == ".jsonl":
                file.writelines(json.dumps(_plain(row), ensure_ascii=False).encode() + b"\n" for row in table.to_pylist())
                continue
            if writer is None:
                schema = table.schema.with_metadata(
                    {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
                )
                if suffix == ".csv":
                    schema = _flat(table).schema
                    writer = import_module("pyarrow.csv").CSVWriter(file, schema)
                else:
                    writer = import_module("pyarrow.parquet").ParquetWriter(file, schema)
            writer.write_table(_flat(table) if suffix == ".csv" else table.replace_schema_metadata(writer.schema.metadata))
    finally:
        if writer is not None:
            writer.close()
    return rows


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON: bytes as hexadecimal digits, infinite numbers as null."""
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(table: Any) -> Any:
    """For CSV: lists as JSON, bytes as hexadecimal digits."""
    arrow = _arrow()
    for at, name in enumerate(table.column_names):
        kind = str(table.schema.field(name).type)
        if kind.startswith(("list", "binary")):
            values = [_value(value) for value in table.column(name).to_pylist()]
            texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
            table = table.set_column(at, name, arrow.array(texts, "string"))
    return table


def _arrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise click.ClickException("this needs pyarrow, which is not installed: pip install pyarrow") from error
