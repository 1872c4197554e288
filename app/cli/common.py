"""Helpers of the commands: reading input, tables and progress bars."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from app.cli.settings import CliSettings
from app.paths import DataFolder
from resources.files import read_regular
from runtime import OnComparison, OnProgress
from runtime import Progress as Step
from storage import DataFolderLock, SessionStore

console = Console(stderr=True)
PIPE_WIDTH = 10_000  # characters; wider than any row
LARGEST_TEXT: Final = 256 << 20  # bytes that a command reads of one file, or of stdin
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
INTERRUPTED: Final = 130  # the exit code of shells after Ctrl-C


@contextmanager
def counting(words: str) -> Iterator[OnComparison]:
    """A bar of tokens on stderr, if that is a terminal."""
    columns = (TextColumn(words), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(words, total=None, visible=False)
        yield lambda done, total: bar.update(task, total=total, completed=done, visible=done < total)


@contextmanager
def reading() -> Iterator[OnProgress]:
    """The bar of tokens while a prompt is read."""
    with counting("reading") as show:
        yield lambda progress: show(progress.done, progress.total)


def headed(*names: str, right: Container[str]) -> Table:
    """A table without lines; the columns `right` hold numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def rows_table(rows: Iterable[Iterable[str | Text]] = ()) -> Table:
    """A table without lines and without a head."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Table) -> None:
    """Prints a table on stdout; does not wrap lines if that is not a terminal."""
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def read_secret(name: str) -> str:
    """Reads a secret: from the terminal without echo, or the first line of a stdin that is none.

    Raises:
        click.ClickException: stdin is closed.
    """
    if sys.stdin is None:
        raise click.ClickException(f"stdin is closed; pipe the {name} in, or type it in a terminal")
    typed: str = click.prompt(name, hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    return typed


def read_text(file: str, limit: int = LARGEST_TEXT) -> str:
    """The text of a file, or of stdin for "-", without a UTF-8 byte order mark; line ends stay as they are.

    Args:
        file: Its path.
        limit: The most bytes.

    Raises:
        click.ClickException: It cannot be read, is too large, or is not UTF-8.
    """
    name = "stdin" if file == "-" else file
    try:
        if file.startswith("/dev/fd/"):  # a shell's <(command): already open, so opening it does not block
            with Path(file).open("rb") as stream:
                data = stream.read(limit + 1)
        elif file != "-":
            data = read_regular(Path(file), limit)
        elif sys.stdin is not None:
            data = sys.stdin.buffer.read(limit + 1)
        else:
            raise click.ClickException("stdin is closed; name a file instead of -")
    except OSError as error:
        raise click.ClickException(f"{name}: {error.strerror}") from error
    if len(data) > limit:
        raise click.ClickException(f"{name}: more than {limit:,} bytes; split it into smaller files")
    mark = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    try:
        return data[mark:].decode()
    except UnicodeDecodeError as error:
        at = error.start + mark
        raise click.ClickException(f"{name}: not UTF-8 at byte {at:,}; only plain text can be read") from error


@contextmanager
def step_bar() -> Iterator[Callable[[Step], None]]:
    """A bar on stderr for the steps of loading, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, stage = bar.add_task("", total=None), ""

        def show(step: Step) -> None:
            nonlocal task, stage
            if step.stage != stage:  # a new task: an unknown total cannot replace a known one
                bar.remove_task(task)
                task, stage = bar.add_task(step.stage, total=None), step.stage
            bar.update(task, completed=step.done if step.total else 0, total=step.total or None)

        yield show


@contextmanager
def locked(data: DataFolder, holder: str, advice: str) -> Iterator[None]:
    """Holds the lock of a data folder under the name `holder`, so that no window or engine uses it.

    Raises:
        click.ClickException: Another process holds it; with the advice.
    """
    lock = DataFolderLock(data.root, holder)
    if not lock.acquire():
        raise click.ClickException(f"{data.root} is in use by {lock.held_by or 'another process'}; {advice}")
    try:
        yield
    finally:
        lock.release()


T = TypeVar("T")


def with_store(settings: CliSettings, read: Callable[[SessionStore], Coroutine[Any, Any, T]]) -> T:
    """Runs `read` on the store, opened read-only, which does not disturb a writer."""

    async def run() -> T:
        async with SessionStore.open(settings.data.sessions, read_only=True) as store:
            return await read(store)

    return asyncio.run(run())
