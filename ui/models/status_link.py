"""Downloads in the status bar: how far they are, and the way to them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QPushButton

from ui.models.wording import rate_words
from ui.parts import button
from ui.port import Download, DownloadState
from ui.theme.fonts import interface_font
from ui.widgets import plain_tooltip

MOST_NAME = 32  # characters of a repository


class DownloadsLink(QPushButton):
    """Hidden while nothing is fetched and nothing came of it; pressed, it leads to the models."""

    def __init__(self) -> None:
        super().__init__()
        made = button("", "link")
        self.setProperty("kind", "link")
        self.setFont(interface_font(11.5))
        self.setCursor(made.cursor())
        self.setFocusPolicy(made.focusPolicy())
        self.hide()

    def minimumSizeHint(self) -> QSize:
        return super().sizeHint()

    def show_downloads(self, downloads: Sequence[Download]) -> None:
        """Shows those that run, else the last that failed, else the last that is done."""
        words = self._words(downloads)
        self.setText(words.replace("&", "&&"))
        self.setAccessibleName(self.tr("{0}; show the models").format(words))
        self.setToolTip(plain_tooltip("\n".join(view.repository for view in downloads)))
        self.setVisible(bool(words))

    def _words(self, downloads: Sequence[Download]) -> str:
        running = [view for view in downloads if view.state is DownloadState.RUNNING]
        if len(running) > 1:
            done, total = sum(view.done for view in running), sum(view.total for view in running)
            return self.tr("{0} downloads").format(len(running)) + (f" {100 * done // total} %" if total else "")
        if running:
            (view,) = running
            share = f" {100 * view.done // view.total} %" if view.total else "…"
            rate = f" · {rate_words(view.rate)}" if view.rate else ""
            return f"{_short(view.repository)}{share}{rate}"
        ends = {DownloadState.FAILED: self.tr("{0}: download failed"), DownloadState.DONE: self.tr("{0} is ready")}
        for state, words in ends.items():
            found = [view for view in downloads if view.state is state]
            if found:
                return words.format(_short(found[-1].repository))
        return ""


def _short(repository: str) -> str:
    name = repository.rpartition("/")[2]
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…"
