"""`elsewise sessions`: the saved sessions of the window, in a terminal."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from app.block_files import put_into, take_from
from app.cli.common import console, headed, locked, print_table, with_store
from app.cli.printing import for_stdout, one_line, without_controls
from app.cli.settings import TEXT, CliSettings
from app.portable_kv import carries_blocks, keys_of, kv_draft
from app.rescue import recover_in_terminal, remedies
from app.workbench.compare.branch_diff import compare
from app.workbench.models.settings import back_up, damage_text, disk_budget
from app.workbench.transfer.exports import FORMATS, refuse_own
from app.workbench.transfer.import_check import foreign_models
from app.workbench.transfer.snapshots import snapshot_of
from app.workbench.transfer.transfers import left_out
from app.workbench.tree.outline import outline
from app.workbench.tree.reading import load_whole
from storage import DataFolderLock, SessionRow, SessionStore, StoreDamagedError, StoreDiskError, StoreError, StoreReadOnlyError
from ui import BranchDiff, DiffSide, OnTransfer, Refusal

_FORMATS = tuple(name for name, exporter in FORMATS.items() if not exporter.snapshot)  # the others have their own options
_ENDINGS = {".markdown": "markdown"} | {f".{FORMATS[name].format.ending}": name for name in _FORMATS}


@click.group()
def sessions() -> None:
    """Saved sessions."""


@sessions.command("list")
@click.pass_obj
def list_command(settings: CliSettings) -> None:
    """Lists all sessions, pinned first, then the most recent."""
    _print_sessions(settings)


@sessions.command("search")
@click.argument("query", type=TEXT)
@click.pass_obj
def search_command(settings: CliSettings, query: str) -> None:
    """Lists sessions with QUERY in their title or text, in any branch."""
    _print_sessions(settings, query)


@sessions.command("show")
@click.argument("session_id", type=int)
@click.pass_obj
def show_command(settings: CliSettings, session_id: int) -> None:
    """Prints the branch of a session that was shown last."""
    if _nothing_yet(settings):
        raise click.exceptions.Exit(1)
    session = with_store(settings, lambda store: load_whole(store, session_id))
    click.echo(f"# {one_line(session.title)}")
    for turn in session.tree.turns(session.tip):
        if content := session.content(turn):
            click.echo(f"\n{turn.role}: {for_stdout(content)}")


@sessions.command("verify")
@click.pass_obj
def verify_command(settings: CliSettings) -> None:
    """Checks every row, lists the damaged ones and sets them aside if no other process uses the data folder.

    Rows set aside stay in the file: every session still opens, no answer continues a damaged turn, and the next check lists
    them as set aside.
    """
    if _nothing_yet(settings):
        return
    try:
        damage = with_store(settings, lambda store: store.verify())
    except StoreDamagedError as fault:
        click.echo(f"the whole file: {fault}")
        click.echo(remedies(settings.data), err=True)
        raise click.exceptions.Exit(1) from fault
    if not damage:
        aside = with_store(settings, lambda store: store.quarantined())
        for row in aside:
            click.echo(f"set aside before: {damage_text(row)}", err=True)
        click.echo("sound", err=True)
        return
    for row in damage:
        click.echo(damage_text(row))
    click.echo(f"{len(damage)} damaged", err=True)
    _set_aside(settings)
    raise click.exceptions.Exit(1)


def _set_aside(settings: CliSettings) -> None:
    """Sets damaged rows aside unless another process holds the folder; prints the result, or what to do."""
    lock = DataFolderLock(settings.data.root, "sessions verify")
    try:
        acquired = lock.acquire()
    except StoreReadOnlyError as fault:
        click.echo(f"nothing was changed: {fault}", err=True)
        return
    if not acquired:
        holder = lock.held_by or "another process"
        click.echo(f"nothing was changed: {settings.data.root} is in use by {holder}; close it and verify again", err=True)
        return

    async def run() -> int:
        async with SessionStore.open(settings.data.sessions) as store:
            return len(await store.set_aside_damage())

    try:
        count = asyncio.run(run())
    except StoreError as fault:
        click.echo(f"nothing was changed: {fault}", err=True)
        click.echo(remedies(settings.data), err=True)
    else:
        click.echo(f"{count} set aside: every session opens, with the text that is left", err=True)
    finally:
        lock.release()


@sessions.command("recover")
@click.pass_obj
def recover_command(settings: CliSettings) -> None:
    """Copies what can be read of a damaged sessions file into a new one and keeps both. An intact file is not changed."""
    if _nothing_yet(settings):
        raise click.exceptions.Exit(1)
    with locked(settings.data, "sessions recover", "close it first"):
        if _sound(settings):
            click.echo(f"{settings.data.sessions} is sound: there is nothing to recover, it was left as it is", err=True)
            return
        made = recover_in_terminal(settings.data, lambda words: click.echo(words, err=True))
    for words in made.lost:
        click.echo(f"lost: {words}")
    click.echo(f"{made.sessions:,} sessions with {made.turns:,} turns recovered into {settings.data.sessions}")
    click.echo(f"the damaged file is kept as {made.kept}")


def _sound(settings: CliSettings) -> bool:
    """Whether the sessions file is intact; one of an earlier version is migrated first, with a backup.

    Raises:
        StoreError: It cannot be checked, or a newer version wrote it.
    """

    async def check(*, read_only: bool) -> bool:
        async with SessionStore.open(settings.data.sessions, read_only=read_only) as store:
            return not await store.verify()

    try:
        try:
            return asyncio.run(check(read_only=True))
        except StoreReadOnlyError:  # an earlier version wrote it
            return asyncio.run(check(read_only=False))
    except (StoreDamagedError, StoreDiskError):
        return False


def _nothing_yet(settings: CliSettings) -> bool:
    """Whether there is no store, which is printed on stderr; does not create one."""
    if settings.data.sessions.exists() or settings.data.sessions.is_symlink():
        return False
    click.echo(f"no sessions yet in {settings.data.root}; start one with 'elsewise'", err=True)
    return True


def _print_sessions(settings: CliSettings, query: str = "") -> None:
    """Prints a table of the sessions; empty ones are not listed."""

    async def read(store: SessionStore) -> tuple[list[SessionRow], dict[int, str]]:
        names = {folder.id: folder.name for folder in await store.places.folders()}
        return [row for row in await store.sessions(query) if row.branches], names

    if _nothing_yet(settings):
        return
    rows, folders = with_store(settings, read)
    if not rows:
        click.echo("no session found", err=True)
        return
    placed = any(row.folder_id in folders or row.tags for row in rows)  # else those columns are left out
    table = headed("id", "title", "branches", "changed", *(("folder", "tags") if placed else ()), right=("id", "branches"))
    for row in rows:
        title = f"{one_line(row.title)} (sample)" if row.is_sample else one_line(row.title)
        place = (
            tuple(Text(one_line(words)) for words in (folders.get(row.folder_id or 0, ""), ", ".join(row.tags)))
            if placed
            else ()
        )
        table.add_row(str(row.id), Text(title), str(row.branches), _moment(row.updated), *place)
    print_table(table)


def _moment(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # a damaged time, or one imported by an earlier version
        return "?"


@sessions.command("export")
@click.argument("session", type=TEXT)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--format", "form", type=click.Choice(_FORMATS), help="What to write; by default, the file's extension decides.")
@click.option("--portable", is_flag=True, help="Write a session file with the whole tree, to open on another machine.")
@click.option("--with-kv", is_flag=True, help="With --portable: include the engine's stored KV blocks.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_obj
def export_command(
    settings: CliSettings, session: str, file: Path, form: str | None, portable: bool, with_kv: bool, force: bool
) -> None:
    """Writes SESSION (its id or title) to FILE ("-" for stdout).

    json is the whole tree with every number; markdown is the path that is shown; csv and tokens (JSON lines) are that path,
    a row per token.
    """
    if form is not None and portable:
        raise click.UsageError("choose one of --format and --portable")
    if with_kv and not portable:
        raise click.UsageError("--with-kv goes with --portable")
    kind = "portable" if portable else form or _ENDINGS.get(file.suffix.lower())
    if kind is None:
        raise click.UsageError(f"{file.name}: the ending says no format; give --format {', '.join(_FORMATS)}, or --portable")
    if kind == "csv" and file.suffix.lower() in (".json", ".jsonl"):
        raise click.UsageError(f"{file.name}: a file of that ending gets JSON lines; choose another name for CSV")
    to_stdout = str(file) == "-"
    if file.exists() and not force and not to_stdout:
        raise click.ClickException(f"{file} is there already; choose another name, or give --force")
    try:
        refuse_own(file, (settings.data.sessions, settings.data.blocks))
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    session_id = with_store(settings, lambda store: _find(store, session))
    given = (with_store(settings, lambda store: snapshot_of(store, session_id)),) if portable else ()
    instead = "close it and try again, or export from its window (File > Export Session File with KV), or leave out --with-kv"
    with ExitStack() as stack:
        if with_kv:  # locked before anything is written
            stack.enter_context(locked(settings.data, "sessions export --with-kv", instead))
        if to_stdout:  # through a file: the output is complete or missing
            file = Path(stack.enter_context(TemporaryDirectory())) / f"session.{FORMATS[kind].format.ending}"
        made = stack.enter_context(kv_draft(file)) if with_kv else file
        with _bar("exporting") as progress:
            FORMATS[kind].write(settings.data.sessions, session_id, made, progress, *given)
        if with_kv:
            keys = with_store(settings, lambda store: keys_of(store, session_id))
            copied = put_into(made, settings.data.blocks, keys)
            made.replace(file)
            click.echo(f"note: {copied:,} KV blocks went with it", err=True)
        if to_stdout:
            with file.open("rb") as whole:
                shutil.copyfileobj(whole, sys.stdout.buffer)
        else:
            click.echo(f"session {session_id} is in {file} ({file.stat().st_size:,} bytes)", err=True)
        if portable and (without := left_out(file)):
            click.echo(f"note: {without}", err=True)


@sessions.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--with-kv", is_flag=True, help="Also import the KV blocks of a portable file; use it only if you trust the source."
)
@click.pass_obj
def import_command(settings: CliSettings, file: Path, with_kv: bool) -> None:
    """Imports FILE: a session as JSON, a portable session file, or messages in the format of OpenAI's API.

    Imports everything or nothing.
    """
    with locked(settings.data, "sessions import", "close it and try again, or import in its window (File > Import)"):
        store = SessionStore.open(settings.data.sessions)
        with _bar("importing") as progress:
            keys, budget = asyncio.run(_import(store, file, progress))
        if not carries_blocks(file):
            return
        if with_kv:
            click.echo(f"note: {take_from(file, settings.data.blocks, keys, budget):,} KV blocks were taken", err=True)
        else:
            click.echo(
                "note: the KV blocks in the file were not imported, because they cannot be checked; the model computes them "
                "again. If you trust the source of the file, import it with --with-kv",
                err=True,
            )


@sessions.command("diff")
@click.argument("session", type=TEXT)
@click.argument("a", type=click.IntRange(1), required=False)
@click.argument("b", type=click.IntRange(1), required=False)
@click.pass_obj
def diff_command(settings: CliSettings, session: str, a: int | None, b: int | None) -> None:
    """Compares branches A and B of SESSION token by token; without A and B lists the branches with their numbers."""
    if (a is None) != (b is None):
        raise click.UsageError("give two branches, or none to list them")

    async def read(store: SessionStore) -> None:
        opened = await load_whole(store, await _find(store, session))
        rows = outline(opened.tree, opened.tip)
        if a is None or b is None:
            for number, row in enumerate(rows, 1):
                mark = "*" if row.current else " "
                console_out(Text(one_line(f"{mark}{number:>4}  {'  ' * row.depth}{row.before} {row.name}".rstrip())))
            return
        if max(a, b) > len(rows):
            raise click.ClickException(f"the session has {len(rows)} branches; 'sessions diff {session}' lists them")
        _print_diff(await compare(store, opened, rows[a - 1].node_id, rows[b - 1].node_id))

    try:
        with_store(settings, read)
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal


def console_out(text: Text) -> None:
    """Prints a line on stdout, with colours on a terminal."""
    Console().print(text, soft_wrap=True)


async def _import(store: SessionStore, file: Path, progress: OnTransfer) -> tuple[list[bytes], int]:
    """Imports a file and prints the sessions; returns the keys of their KV blocks, and the block file's byte limit."""
    async with store:
        await store.drop_unfinished_imports()
        imported = await store.import_file(file, progress)
        for session_id in imported.sessions:
            click.echo(f"{session_id}\t{one_line((await store.load_shape(session_id)).session.title)}")
            for note in await foreign_models(store, session_id):
                click.echo(f"note: {note}", err=True)
        for note in imported.notes:
            click.echo(f"note: {note}", err=True)
        await back_up(store)
        if not carries_blocks(file):
            return [], 0
        keys = [key for session_id in imported.sessions for key in await keys_of(store, session_id)]
        return keys, await disk_budget(store)


async def _find(store: SessionStore, session: str) -> int:
    rows = await store.sessions()
    if any(session == str(row.id) for row in rows):
        return int(session)
    named = [row.id for row in rows if row.title == session]
    if not named:
        raise click.ClickException(f"there is no session {session!r}; 'elsewise sessions list' shows all")
    if len(named) > 1:
        raise click.ClickException(f"{len(named)} sessions are called {session!r}: give the number of one ({named})")
    return named[0]


@contextmanager
def _bar(words: str) -> Iterator[OnTransfer]:
    """A bar on stderr, if that is a terminal."""
    columns = (TextColumn(words), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_diff(diff: BranchDiff) -> None:
    console_out(Text(f"  {diff.stem.tokens:,} tokens are the same in both", style="dim"))
    for part in diff.parts:
        if part.same:
            console_out(Text(_indented(" ", part.left), style="dim"))
            continue
        for sign, side, style in (("-", part.left, "red"), ("+", part.right, "green")):
            if side.tokens:
                console_out(Text(_indented(sign, side), style=style))
    for sign, name, side in (("-", diff.left_name, diff.left), ("+", diff.right_name, diff.right)):
        scored = "not scored" if side.logprob is None else f"{side.logprob:.2f} nats together"
        after = f"{side.tokens:,} tokens after the shared beginning, {scored}"
        console_out(Text(f"{sign} {one_line(name) or 'branch'}: {after}"))


def _indented(sign: str, side: DiffSide) -> str:
    lines = without_controls(side.text).strip("\n").split("\n") or [""]
    return "\n".join(f"{sign} {line}" for line in lines)
