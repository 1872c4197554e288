"""Bars on stderr, where somebody looks."""

from __future__ import annotations

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from app.cli.common import console
from runtime import Progress as Step


class Bar:
    """A progress bar for loading's `Progress` steps."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None)
        self._stage = ""

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: Step) -> None:
        """One step."""
        if step.stage != self._stage:  # a bar of its own: a total that is not known does not replace one that was
            self._progress.remove_task(self._task)
            self._task, self._stage = self._progress.add_task(step.stage, total=None), step.stage
        self._progress.update(self._task, completed=step.done, total=step.total or None)
