"""Downloads of models and adapters, which run independently of the windows and can be resumed after a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

import runtime  # its names are imported at their first use: the window opens without them
from app.workbench.background import stoppable
from app.workbench.refusals import refused
from app.workbench.windows import Windows
from runtime import DownloadError, RuntimeFault
from ui import DownloadsChanged, DownloadState, DownloadView, ModelsChanged, Refusal, in_window, translate

log = logging.getLogger(__name__)
FILE_SECONDS = 1.0  # a file is named at least this long before another one


class Fetched(Struct, frozen=True):
    """A finished download: its name on the shelf, its folder, and whether it is an adapter."""

    name: str
    folder: str
    is_adapter: bool


class Downloads:
    """All downloads of the app, by their repository. All members belong to the window's loop."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._views: dict[str, DownloadView] = {}
        self._wanted: dict[str, str] = {}  # by repository: the requested `org/name[@revision]`
        self._tasks: dict[str, asyncio.Task[Fetched]] = {}
        self._shown_until: dict[str, float] = {}  # by repository: when another file may be named
        self._closing = False

    async def find(self) -> None:
        """Finds stopped downloads on the disk, and tells the windows of all downloads."""
        for note in await asyncio.to_thread(lambda: runtime.unfinished_downloads()):
            if note.repository not in self._views:
                self._wanted[note.repository] = f"{note.repository}@{note.commit}"
                state = DownloadState.PAUSED
                self._views[note.repository] = DownloadView(note.repository, state, done=note.kept, total=note.total)
        self._tell_all()

    def begin(self, wanted: str, *, adapter: bool = False) -> asyncio.Task[Fetched]:
        """Begins or resumes a download; returns its task, or that of the running one. The task raises a refusal if it fails.

        Args:
            wanted: ``org/name[@revision]``; without a revision, a known repository means its earlier request.
            adapter: Whether it must be an adapter.
        """
        repository = wanted.strip().partition("@")[0]
        running = self._tasks.get(repository)
        if running is not None:
            return running
        if self._closing:
            raise Refusal(translate("Workbench", "the window is being closed"))
        wanted = self._wanted.get(repository, wanted) if wanted == repository else wanted
        self._wanted[repository] = wanted.strip()
        before = self._views.get(repository, DownloadView(repository))
        self._show(replace(before, state=DownloadState.RUNNING, step="look up", note="", rate=0.0, eta=None))
        task = asyncio.create_task(self._fetch(repository, wanted.strip(), adapter=adapter), name=f"fetch {repository}")
        self._tasks[repository] = task
        task.add_done_callback(partial(self._over, repository))
        return task

    async def pause(self, repository: str) -> None:
        """Stops a download; its partial files are kept."""
        task = self._tasks.get(repository)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def cancel(self, repository: str) -> int:
        """Stops a download and deletes its partial files; returns the bytes freed. A finished one is only forgotten."""
        view = self._views.get(repository)
        await self.pause(repository)
        freed = 0
        if view is not None and view.state is not DownloadState.DONE:
            freed = await refused(asyncio.to_thread(lambda: runtime.discard_download(repository) or 0))
        if repository not in self._tasks:  # otherwise it was begun again
            self._views.pop(repository, None)
            self._wanted.pop(repository, None)
            self._tell_all()
        return freed

    async def close(self) -> None:
        """Stops all downloads when the app ends; partial files are kept."""
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _fetch(self, repository: str, wanted: str, *, adapter: bool) -> Fetched:
        try:
            fetched = await stoppable(partial(_fetch, wanted, adapter), partial(self._progress, repository))
        except asyncio.CancelledError:
            kept = {note.repository: note.kept for note in runtime.unfinished_downloads()}  # reads only a few folders
            self._end(repository, state=DownloadState.PAUSED, done=kept.get(repository, 0), rate=0.0, eta=None, note="")
            raise
        except RuntimeFault as fault:
            kept_bytes = fault.kept if isinstance(fault, DownloadError) else 0
            if adapter and not kept_bytes:  # the caller reports it
                del self._tasks[repository], self._views[repository]
                self._tell_all()
            else:
                self._end(
                    repository, state=DownloadState.FAILED, done=kept_bytes, rate=0.0, eta=None, note=in_window(str(fault))
                )
            raise Refusal(str(fault)) from fault
        kind, total = "adapter" if fetched.is_adapter else "model", self._views[repository].total
        self._end(repository, state=DownloadState.DONE, name=fetched.name, kind=kind, done=total, note="", eta=None)
        self._windows.tell(ModelsChanged())
        return fetched

    def _over(self, repository: str, task: asyncio.Task[Fetched]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Refusal):  # a fault of ours
            log.error("the download of %s failed", repository, exc_info=error)
        if self._tasks.get(repository) is not task:
            return  # `_fetch` has reported it
        if error is None:  # it never began
            self._end(repository, state=DownloadState.PAUSED)
        else:  # it can be retried
            self._end(repository, state=DownloadState.FAILED, rate=0.0, eta=None, note=str(error))

    def _progress(self, repository: str, step: runtime.DownloadProgress) -> None:
        view = self._views[repository]
        if step.total:  # 0 during the lookup: keeps the earlier numbers
            view = replace(view, done=step.done, total=step.total)
        now = time.monotonic()
        other = step.file and step.file != view.file
        if not other or now >= self._shown_until.get(repository, 0.0):  # names one of several parallel files
            self._shown_until[repository] = now + FILE_SECONDS
            view = replace(view, file=step.file, file_done=step.file_done, file_total=step.file_total)
            view = replace(view, step=step.state, note=step.note)
        self._show(replace(view, rate=step.rate, eta=step.eta))

    def _end(self, repository: str, **changes: object) -> None:
        del self._tasks[repository]  # before the event: a listener may begin it again
        self._show(replace(self._views[repository], **changes))

    def _show(self, view: DownloadView) -> None:
        self._views[view.repository] = view
        self._tell_all()

    def _tell_all(self) -> None:
        self._windows.tell(DownloadsChanged(tuple(self._views.values())))


def _fetch(wanted: str, adapter: bool, progress: Callable[[runtime.DownloadProgress], None]) -> Fetched:  # called by `partial`
    got = runtime.fetch_adapter(wanted, progress) if adapter else runtime.fetch_any(wanted, progress)
    return Fetched(got.path.name.replace("--", "/"), str(got.path), isinstance(got, runtime.ShelvedAdapter))
