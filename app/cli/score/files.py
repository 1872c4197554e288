"""`elsewise score FILES --parquet OUT`: many texts into one file of numbers, resumable.

While it runs, results are appended to an Arrow stream beside the file (`.OUT.part`), which can be read up to where it was cut
off. A resumed run begins another stream (`.OUT.part2`, ...) and leaves the earlier ones unchanged. At the end they are joined
into a temporary file, which is renamed: OUT is complete or missing.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count, takewhile
from pathlib import Path
from typing import IO, Any, Final

import click

from app.cli.common import console, read_text
from app.cli.options import in_options
from resources.files import open_regular
from runtime import LanguageModel, RuntimeFault, TokenRun, __version__

FORMATS: Final = (".parquet", ".jsonl", ".csv")
FLUSHED_TOKENS: Final = 20_000  # tokens held in memory before a write
FLUSHED_SECONDS: Final = 5.0  # after which held tokens are written, however few
GROUPED_ROWS: Final = 20_000  # rows of a row group of OUT,
GROUPED_BYTES: Final = 64 << 20  # or bytes, whichever is reached first
LEFT_OUT: Final = ("origin", "finish_reason", "draw")  # columns of a run that have no meaning for a given text
LONGEST_LINE: Final = 1 << 27  # bytes of a line, characters of a field in CSV
IN_ORDER: Final = 1 << 10  # rows of a Parquet input that are read at a time
OF_ONE_TEXT: Final = {
    "text": "string",
    "tokens": "int64",
    "logprob": "float64",
    "surprisal_bits": "float64",
    "perplexity": "float64",  # null for a single token
}
# load options that do not change the numbers
NO_NUMBERS: Final = frozenset(("threads", "kv_cache_bytes", "offload", "offload_memory_bytes", "blocks"))


@dataclass(frozen=True, slots=True)
class Input:
    """One text and its source: rows count from 1, a text file has one."""

    file: str
    row: int
    text: str


def check_out(out: Path, files: tuple[str, ...], *, resume: bool) -> None:
    """Checks the output's name, whether the inputs can be resumed, and that pyarrow is installed.

    Raises:
        click.ClickException, click.UsageError: One of these fails.
    """
    if out.suffix.lower() not in FORMATS:
        raise click.UsageError(f"{out}: choose a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not out.absolute().parent.is_dir():
        raise click.ClickException(f"{out}: there is no folder {out.absolute().parent}")
    for file in files:
        if out.exists() and Path(file).exists() and out.samefile(file):
            raise click.UsageError(f"{out} is one of the inputs: choose another name for --out")
        if resume and not _readable_again(file):
            what = "stdin" if file == "-" else file
            raise click.UsageError(f"--resume reads the inputs again, which {what} does not allow: save its text in a file")
    _arrow()


def score_files(
    model: LanguageModel,
    files: tuple[str, ...],
    out: Path,
    *,
    top_k: int,
    per_text: bool,
    resume: bool,
    loading: Mapping[str, Any],
) -> None:
    """Scores every text of the files.

    Args:
        model: The model.
        files: The inputs.
        out: The output file.
        top_k: Alternatives of each token.
        per_text: Whether a row is a text, or a token.
        resume: Whether to keep the results of earlier runs.
        loading: The given load options, which must be those of a resumed run.

    Raises:
        click.ClickException: A file cannot be read, the disk is full, or the partial file is of other inputs or options.
        RuntimeFault: The model or its server failed.
    """
    metadata = {
        "elsewise": __version__,
        "model": model.info.name,
        "backend": model.info.backend,
        "precision": model.info.precision,
        "model_fingerprint": model.info.model_fingerprint,
        "numbers_fingerprint": model.info.numbers_fingerprint,
        "options": {"alternatives": top_k, "rows": "text" if per_text else "token"},
        "loading": {name: value for name, value in loading.items() if name not in NO_NUMBERS},
        "inputs": [_state(file) for file in files],
    }
    metadata = json.loads(json.dumps(metadata))  # in the form in which `_batches` reads it back
    part = _Part(out.with_name(f".{out.name}.part"), metadata, per_text=per_text)
    if resume and not part.paths() and out.exists():
        if not _made_with(out, metadata):
            raise click.ClickException(
                f"{out} is there, but does not say that it was made of these inputs with this model and these options; "
                "leave out --resume to make it anew"
            )
        click.echo(f"{out}: complete; there is nothing to go on with", err=True)
        return
    again = ": go on with --resume" if all(map(_readable_again, files)) else ""
    given: dict[int, Input] = {}

    def texts() -> Iterator[str]:
        for number, each in enumerate(inputs(files)):
            if number not in part.done:
                given[number] = each
            yield each.text

    def left_out(number: int, fault: RuntimeFault) -> None:
        where = given.pop(number)
        click.echo(f"{where.file}, row {where.row:,}: left out: {in_options(fault)}", err=True)

    try:
        part.open(resume=resume)
        before = f"{len(part.done):,} texts are done already; " if part.done else ""
        stream = model.score_many_sync(
            texts(), top_k, skip=part.done, ordered=True, progress=console.is_terminal, on_fault=left_out
        )
        with closing(part), closing(stream):
            for number, run in stream:
                part.add(number, given.pop(number), run)
        if not part.texts + len(part.done):
            raise click.ClickException(f"{', '.join(files)}: there is no text that can be scored")
        rows = part.finish(out)
    except (KeyboardInterrupt, click.Abort, RuntimeFault):
        if part.paths():
            click.echo(f"stopped; the results so far are in {part.path}{again}", err=True)
        raise
    except OSError as error:
        left = f"; the results so far are in {part.path}{again}" if part.paths() else ""
        raise click.ClickException(f"{out}: {error.strerror or error}{left}") from error
    click.echo(f"{before}{part.texts:,} texts scored, {rows:,} rows in {out}", err=True)


def _readable_again(file: str) -> bool:
    """Whether a second run can read the same input; a missing file is refused when it is read."""
    return file != "-" and (Path(file).is_file() or not Path(file).exists())


def _state(file: str) -> list[Any]:
    """Name, size in bytes and modification time of an input."""
    if not Path(file).is_file():
        return [file, 0, 0]
    info = Path(file).stat()
    return [file, info.st_size, info.st_mtime_ns]


def _made_with(out: Path, metadata: Mapping[str, Any]) -> bool:
    """Whether a file has this metadata; a CSV file has none."""
    try:
        with open_regular(out) as file:
            if out.suffix.lower() == ".jsonl":
                return bool(json.loads(file.readline(LONGEST_LINE)) == {"metadata": metadata})
            if out.suffix.lower() == ".parquet":
                found = import_module("pyarrow.parquet").read_schema(file).metadata or {}
                return all(found.get(name.encode()) == text.encode() for name, text in _texts_of(metadata).items())
    except (OSError, ValueError, RecursionError):  # ArrowInvalid is a ValueError
        pass
    return False


# ---- inputs --------------------------------------------------------------------------------------------------------------


def inputs(files: tuple[str, ...]) -> Iterator[Input]:
    """The texts of all files, in order: each "text" of .jsonl, .csv and .parquet files; any other file is one text.

    Raises:
        click.ClickException: A file cannot be read; names the file and the line.
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
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise click.ClickException(f"{file}, line {number:,}: no JSON ({error})") from error
        except RecursionError as error:
            raise click.ClickException(f"{file}, line {number:,}: nested too deeply to be read") from error
        yield found.get("text") if isinstance(found, dict) else found


def _read_csv(file: str) -> Iterator[object]:
    csv.field_size_limit(LONGEST_LINE)
    rows = csv.DictReader((part for line in _lines(file) for part in io.StringIO(line, newline="")), strict=True)
    try:
        for row in rows:
            yield row.get("text")
    except csv.Error as error:
        raise click.ClickException(f"{file}, line {rows.reader.line_num:,}: no CSV ({error})") from error


def _read_parquet(file: str) -> Iterator[object]:
    arrow = _arrow()
    parquet = import_module("pyarrow.parquet")
    row = 0
    try:
        with open_regular(Path(file)) as stream, parquet.ParquetFile(stream) as table:
            if "text" not in table.schema_arrow.names:
                raise click.ClickException(f'{file}: no column "text"; it has {", ".join(table.schema_arrow.names)}')
            for batch in table.iter_batches(IN_ORDER, columns=["text"]):
                for value in batch.column(0):
                    row += 1
                    yield value.as_py()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}, row {row:,}: not UTF-8 at byte {error.start:,} of the text") from error
    except arrow.ArrowInvalid as error:
        raise click.ClickException(f"{file}: no whole Parquet file: it is cut short, damaged or of another format") from error
    except OSError as error:
        raise click.ClickException(f"{file}: cannot be read as Parquet: {error.strerror or 'it is damaged'}") from error


def _lines(file: str) -> Iterator[str]:
    """The lines of a file with their line ends, without a byte order mark."""
    try:
        with open_regular(Path(file)) as stream:
            for number in count(1):
                line = stream.readline(LONGEST_LINE + 1)
                if len(line) > LONGEST_LINE:
                    raise click.ClickException(f"{file}, line {number:,}: longer than {LONGEST_LINE:,} bytes")
                if not line:
                    return
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise click.ClickException(f"{file}, line {number:,}: not UTF-8 at byte {error.start:,} of it") from error
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error


# ---- output --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """The results so far, in one stream of Arrow batches per run. A text's rows are in one batch."""

    path: Path  # of the first stream
    metadata: Mapping[str, Any]
    per_text: bool
    texts: int = 0  # added in this run
    done: set[int] = field(default_factory=set)  # numbers of the texts of earlier runs
    _held: list[Any] = field(default_factory=list)
    _held_tokens: int = 0
    _flushed: float = 0.0  # time of the last write
    _file: IO[bytes] | None = None
    _writer: Any = None
    _broken: bool = False

    def paths(self) -> list[Path]:
        """The existing streams, in order."""
        names = (self.path if n == 1 else self.path.with_name(f"{self.path.name}{n}") for n in count(1))
        return list(takewhile(Path.exists, names))

    def open(self, *, resume: bool) -> None:
        """Begins a stream; with `resume` after the existing ones, which are deleted otherwise.

        Raises:
            click.ClickException: The existing ones are of another model, other options or other files.
        """
        if resume:
            for table in self._batches():
                self.done.update(_numbers(table))
        else:
            for path in reversed(self.paths()):  # last first, so that an interruption leaves no gap
                path.unlink()
        there = len(self.paths())
        self._file = (self.path.with_name(f"{self.path.name}{there + 1}") if there else self.path).open("xb")
        self._flushed = time.monotonic()

    def add(self, number: int, given: Input, run: TokenRun) -> None:
        """Adds the scores of one text."""
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
            table = arrow.table({name: arrow.array([own[name]], kind) for name, kind in OF_ONE_TEXT.items()})
        else:
            table = run.to_arrow().drop_columns(list(LEFT_OUT))
        for name, value, kind in (("row", given.row, "int64"), ("file", given.file, "string"), ("text_id", number, "int64")):
            table = table.add_column(0, name, arrow.array([value] * len(table), kind))
        self._held.append(table)
        self._held_tokens += len(run)
        self.texts += 1
        if self._held_tokens >= FLUSHED_TOKENS or time.monotonic() - self._flushed >= FLUSHED_SECONDS:
            self._flush()

    def close(self) -> None:
        """Writes the held rows and closes the stream; removes an empty one."""
        if self._file is None:
            return
        with closing(self._file):
            if not self._broken:  # after half a batch, new rows would be read as its rest
                self._flush()
                if self._writer is not None:
                    self._writer.close()
        if self._writer is None:
            Path(self._file.name).unlink()

    def finish(self, out: Path) -> int:
        """Writes the output file from the streams; returns the number of rows.

        Raises:
            click.ClickException: Not all texts could be read back; the streams stay.
        """
        made = out.with_name(f".{out.name}.made")
        found = 0

        def counted() -> Iterator[Any]:
            nonlocal found
            for table in self._batches():
                found += len(_numbers(table))
                yield table

        try:
            with made.open("wb") as file:
                rows = _written(_grouped(counted()), file, out.suffix.lower(), self.metadata)
                file.flush()
                os.fsync(file.fileno())
            if found != self.texts + len(self.done):
                raise click.ClickException(
                    f"{self.path} has {found:,} of {self.texts + len(self.done):,} texts: it was changed or is damaged; "
                    "go on with --resume"
                )
            made.replace(out)
        finally:
            made.unlink(missing_ok=True)
        for path in reversed(self.paths()):
            path.unlink()
        return rows

    def _flush(self) -> None:
        if self._held:
            self._broken = True  # reset once all is written
            self._write(_arrow().concat_tables(self._held))
            self._held.clear()
            self._held_tokens = 0
            self._broken = False
        self._flushed = time.monotonic()

    def _write(self, table: Any) -> None:
        assert self._file is not None
        if self._writer is None:
            schema = table.schema.with_metadata({"elsewise": json.dumps(self.metadata)})
            self._writer = import_module("pyarrow.ipc").new_stream(self._file, schema)
        self._writer.write_table(table.replace_schema_metadata(None).combine_chunks())
        self._file.flush()

    def _batches(self) -> Iterator[Any]:
        """The tables of all streams; one that was cut off is read up to the cut."""
        arrow = _arrow()
        for path in self.paths():
            with path.open("rb") as file:
                try:
                    stream = import_module("pyarrow.ipc").open_stream(file)
                    if json.loads((stream.schema.metadata or {}).get(b"elsewise", b"null")) != self.metadata:
                        raise click.ClickException(
                            f"{path}: it was begun with another model, other options or other files; leave out --resume to "
                            "begin anew"
                        )
                    for batch in stream:
                        yield arrow.Table.from_batches([batch])
                except arrow.ArrowInvalid:  # cut off
                    continue
                except OSError as error:
                    if error.errno is not None:  # a disk error; pyarrow's error for a cut stream has no errno
                        raise


def _numbers(table: Any) -> list[int]:
    """The numbers of a table's texts."""
    numbers: list[int] = table.column("text_id").unique().to_pylist()
    return numbers


def _grouped(tables: Iterable[Any]) -> Iterator[Any]:
    """Joins tables until each is large enough for a row group of a Parquet file."""
    held: list[Any] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + len(table), size + table.nbytes
        if rows >= GROUPED_ROWS or size >= GROUPED_BYTES:
            yield _arrow().concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield _arrow().concat_tables(held)


def _texts_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a Parquet file."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}


def _written(tables: Iterator[Any], file: IO[bytes], suffix: str, metadata: Mapping[str, Any]) -> int:
    """Writes all tables in a format; returns the number of rows."""
    rows = 0
    writer: Any = None
    if suffix == ".jsonl":
        file.write(json.dumps({"metadata": metadata}).encode() + b"\n")
    try:
        for table in tables:
            rows += len(table)
            if suffix == ".jsonl":
                for row in table.to_pylist():
                    plain = {name: json_value(value) for name, value in row.items()}
                    file.write(json.dumps(plain, ensure_ascii=False).encode() + b"\n")
                continue
            if writer is None:
                schema = table.schema.with_metadata(_texts_of(metadata))
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


def json_value(value: Any) -> Any:
    """A value for JSON: bytes as hexadecimal digits, infinite numbers and NaN as null, also in lists."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [json_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(table: Any) -> Any:
    """The table for CSV: lists as JSON, bytes as hexadecimal digits."""
    arrow = _arrow()
    for at, name in enumerate(table.column_names):
        kind = str(table.schema.field(name).type)
        if kind.startswith(("list", "binary")):
            values = [json_value(value) for value in table.column(name).to_pylist()]
            texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
            table = table.set_column(at, name, arrow.array(texts, "string"))
    return table


def _arrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise click.ClickException("this needs pyarrow, which is not installed: pip install pyarrow") from error
