"""`elsewise sessions`: the session shelf, read from the same file as the window's."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping

import click
from rich.table import Table
from rich.text import Text

from app.cli.common import print_table
from app.cli.settings import Settings
from app.cli.stores import with_store
from app.cli.transfers import diff_command, export_command, import_command
from app.rescue import recover_in_terminal, remedies
from app.workbench.damage import told
from app.workbench.session import OpenSession
from storage import DataFolderLock, SessionRow, SessionStore, StoreDamagedError, StoreDiskError, StoreError, StoreReadOnlyError


@click.group()
def sessions() -> None:
    """Saved sessions."""


@sessions.command("list")
@click.pass_obj
def list_command(settings: Settings) -> None:
    """All sessions, pinned first, then the latest."""
    if not _nothing_yet(settings):
        _print_rows(*with_store(settings, lambda store: _read_list(store)))


@sessions.command("search")
@click.argument("query")
@click.pass_obj
def search_command(settings: Settings, query: str) -> None:
    """Sessions whose title or text matches QUERY, over all branches."""
    if not _nothing_yet(settings):
        _print_rows(*with_store(settings, lambda store: _read_list(store, query)))


@sessions.command("show")
@click.argument("session_id", type=int)
@click.pass_obj
def show_command(settings: Settings, session_id: int) -> None:
    """The path of a session that was shown last."""

    async def read(store: SessionStore) -> OpenSession:
        session = OpenSession(await store.load_session(session_id))
        session.add_tokens(await store.load_tokens(session.missing()))
        return session

    if _nothing_yet(settings):
        raise click.exceptions.Exit(1)
    session = with_store(settings, read)
    click.echo(f"# {session.title}")
    for turn in session.tree.turns(session.tip):
        if content := session.content(turn):
            click.echo(f"\n{turn.role}: {content}")


@sessions.command("verify")
@click.pass_obj
def verify_command(settings: Settings) -> None:
    """Checks every row; names what is damaged, and sets it aside where nobody else uses the data folder.

    What is set aside stays in the file, out of the way: every session opens, no model goes on from a damaged turn, and the
    next check names it as set aside.
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
            click.echo(f"set aside before: {told(row)}", err=True)
        click.echo("sound", err=True)
        return
    for row in damage:
        click.echo(told(row))
    click.echo(f"{len(damage)} damaged", err=True)
    _set_aside(settings)
    raise click.exceptions.Exit(1)


def _set_aside(settings: Settings) -> None:
    """Puts what is damaged out of the way, where nobody else writes; says what was done, or what to do."""
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
        store = SessionStore.open(settings.data.sessions)
        try:
            return len(await store.set_aside_damage())
        finally:
            await store.close()

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
def recover_command(settings: Settings) -> None:
    """Puts what can be read of a damaged file into a new one; the damaged one is kept. A sound file is left as it is."""
    if _nothing_yet(settings):
        raise click.exceptions.Exit(1)
    lock = DataFolderLock(settings.data.root, "sessions recover")
    if not lock.acquire():
        raise click.ClickException(f"{settings.data.root} is in use by {lock.held_by or 'another process'}; close it first")
    try:
        if _sound(settings):
            click.echo(f"{settings.data.sessions} is sound: there is nothing to recover, it was left as it is", err=True)
            return
        made = recover_in_terminal(settings.data, lambda words: click.echo(words, err=True))
    finally:
        lock.release()
    for words in made.lost:
        click.echo(f"lost: {words}")
    click.echo(f"{made.sessions:,} sessions with {made.turns:,} turns recovered into {settings.data.sessions}")
    click.echo(f"the damaged file is kept as {made.kept}")


for command in (export_command, import_command, diff_command):
    sessions.add_command(command)


def _sound(settings: Settings) -> bool:
    """Whether the sessions file is whole; one of an earlier version is brought up to date first, with a backup.

    Raises:
        StoreError: It cannot be told, or a newer version wrote it.
    """

    async def check(*, read_only: bool) -> bool:
        store = SessionStore.open(settings.data.sessions, read_only=read_only)
        try:
            return not await store.verify()
        finally:
            await store.close()

    try:
        try:
            return asyncio.run(check(read_only=True))
        except StoreReadOnlyError:  # of an earlier version
            return asyncio.run(check(read_only=False))
    except (StoreDamagedError, StoreDiskError):
        return False


def _nothing_yet(settings: Settings) -> bool:
    """Whether there is no store; says so on stderr, and makes none."""
    if settings.data.sessions.exists():
        return False
    click.echo(f"no sessions yet in {settings.data.root}; start one with 'elsewise'", err=True)
    return True


async def _read_list(store: SessionStore, query: str = "") -> tuple[list[SessionRow], dict[int, str]]:
    """Sessions, and the names of the folders."""
    return await store.sessions(query), {folder.id: folder.name for folder in await store.places.folders()}


def _print_rows(rows: list[SessionRow], folders: Mapping[int, str]) -> None:
    rows = [row for row in rows if row.branches]  # one that nothing was said in is no session yet
    if not rows:
        click.echo("no session found", err=True)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    placed = any(row.folder_id in folders or row.tags for row in rows)  # who has neither reads no empty columns
    for name in ("id", "title", "branches", "changed", *(("folder", "tags") if placed else ())):
        table.add_column(name, justify="right" if name in ("id", "branches") else "left")
    for row in rows:
        changed = datetime.datetime.fromtimestamp(row.updated).strftime("%Y-%m-%d %H:%M")
        title = f"{row.title} (sample)" if row.is_sample else row.title
        place = (Text(folders.get(row.folder_id or 0, "")), Text(", ".join(row.tags))) if placed else ()
        table.add_row(str(row.id), Text(title), str(row.branches), changed, *place)
    print_table(table)
