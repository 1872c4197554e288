"""Recovery of sessions that cannot be opened. Nothing is ever deleted."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.paths import DataFolder
from storage import StoreDamagedError, StoreError

if TYPE_CHECKING:
    from storage import Salvage
    from ui import RecoveryPage

log = logging.getLogger(__name__)
REPORT_SECONDS = 0.1  # between two reports of progress


class Stopped(Exception):
    """Stop was pressed; nothing was changed."""


def remedies(data: DataFolder) -> str:
    """The commands that help with a damaged sessions file, a line each."""
    where = "" if data.root == DataFolder.default().root else f" --data-dir {shlex.quote(str(data.root))}"
    fresh = shlex.quote(str(beside(data).root))
    return (
        f"  see what is damaged:        elsewise{where} sessions verify\n"
        f"  recover what can be read:   elsewise{where} sessions recover   (the damaged file is kept)\n"
        f"  start fresh beside it:      elsewise --data-dir {fresh}   (nothing is touched)"
    )


def beside(data: DataFolder) -> DataFolder:
    """The fresh folder that is offered beside a damaged one."""
    return DataFolder(data.root.with_name(f"{data.root.name}-fresh"))


async def rescue(
    data: DataFolder, fault: StoreError | OSError, on_shown: Callable[[RecoveryPage], None] | None = None
) -> DataFolder | None:
    """Shows a page with the fault, and carries out the choice.

    If the file is damaged, the caller holds the data folder's lock.

    Returns:
        The folder to open: `data`, maybe recovered, or a fresh one; None if the page was closed.
    """
    from ui import RecoveryPage, in_window

    page = RecoveryPage(in_window(str(fault)), str(beside(data).root), damaged=isinstance(fault, StoreDamagedError))
    return await Rescue(data, page).run(on_shown)


class Rescue:
    """The actions of one page, on the window's loop; a thread reads the file."""

    def __init__(self, data: DataFolder, page: RecoveryPage) -> None:
        self._data = data
        self._page = page
        self._stopping = False
        self._work: asyncio.Task[None] | None = None
        self._chosen: asyncio.Future[DataFolder | None] = asyncio.get_running_loop().create_future()
        page.recover_wanted.connect(self._recover)
        page.stop_wanted.connect(self._stop)
        page.open_wanted.connect(lambda: self._choose(data))
        page.fresh_wanted.connect(lambda: self._choose(beside(data)))
        page.closed.connect(lambda: self._choose(None))

    async def run(self, on_shown: Callable[[RecoveryPage], None] | None) -> DataFolder | None:
        """Shows the page until a choice is made."""
        self._page.show()
        if on_shown is not None:
            on_shown(self._page)
        chosen = await self._chosen
        self._stop()
        if self._work is not None:
            await self._work
        self._page.hide()
        self._page.deleteLater()
        return chosen

    def _choose(self, folder: DataFolder | None) -> None:
        if not self._chosen.done():
            self._chosen.set_result(folder)

    def _stop(self) -> None:
        self._stopping = True

    def _recover(self) -> None:
        if self._work is None or self._work.done():
            self._stopping = False
            self._work = asyncio.get_running_loop().create_task(self._read(), name="recover")

    async def _read(self) -> None:
        from storage import salvage  # imported only for a recovery
        from ui import in_window

        loop, reported = asyncio.get_running_loop(), 0.0

        def progress(what: str, done: int, of: int) -> None:
            nonlocal reported
            if self._stopping:
                raise Stopped
            if (now := time.monotonic()) - reported >= REPORT_SECONDS:  # thousands of unreadable rows per second
                reported = now
                loop.call_soon_threadsafe(self._page.show_progress, what, done, of)

        self._page.show_progress("sessions", 0, 0)
        try:
            made = await asyncio.to_thread(salvage, self._data.sessions, progress)
        except Stopped:
            self._page.show_choice("stopped; nothing was changed")
        except (StoreError, OSError) as fault:
            log.warning("recovering failed: %s", fault)
            self._page.show_choice(in_window(str(fault)))
        else:
            self._page.show_recovered(made.sessions, str(made.kept), made.lost)


def recover_in_terminal(data: DataFolder, say: Callable[[str], None]) -> Salvage:
    """Recovers the sessions file without a window; `say` gets one line per table.

    Raises:
        StoreError: It cannot be recovered; nothing was changed.
    """
    from storage import salvage

    seen: set[str] = set()

    def progress(what: str, _done: int, of: int) -> None:
        if what not in seen:
            seen.add(what)
            say(f"reading {what.replace('_', ' ')}: up to {of:,} rows")

    return salvage(data.sessions, progress)
