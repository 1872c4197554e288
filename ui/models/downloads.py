"""Downloads: a row each on the page, and a link in the status bar."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QPushButton, QWidget

from ui.models.bars import AskBar, ThinBar
from ui.models.wording import rate_words, time_left
from ui.port import DownloadState, DownloadView
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, restyle, row, words
from ui.widgets.labels import ElidedLabel, Hairline, Label, plain_tooltip
from ui.widgets.numbers import size


class DownloadRow(QWidget):
    """Shows a `DownloadView`."""

    pause_wanted = Signal(str)  # repository
    go_on_wanted = Signal(str)
    cancel_wanted = Signal(str)  # also dismisses a finished download
    open_wanted = Signal(str)  # the model's name on the shelf

    def __init__(self, view: DownloadView) -> None:
        super().__init__()
        self.view = view
        self.title = ElidedLabel(view.repository, "", interface_font(13.5, QFont.Weight.Medium))
        self.setAccessibleName(view.repository)
        self.numbers = Label("", "soft", interface_font(12))
        self.bar = ThinBar(self.tr("Download of {0}").format(view.repository))
        self.detail, self.cause = words(px=11.5), words("", "warm")
        self.pause_button, self.go_on_button = button(self.tr("Pause"), "link"), button(self.tr("Resume"), "link")
        self.open_button = button(self.tr("Open"), "link")
        self.cancel_button = button(self.tr("Cancel"), "plain")
        self.ask = AskBar(self.cancel_button, self.tr("Keep"))
        self.pause_button.clicked.connect(lambda: self.pause_wanted.emit(self.view.repository))
        self.go_on_button.clicked.connect(lambda: self.go_on_wanted.emit(self.view.repository))
        self.open_button.clicked.connect(lambda: self.open_wanted.emit(self.view.name))
        self.cancel_button.clicked.connect(self._ask_cancel)
        self.ask.agreed.connect(lambda: self.cancel_wanted.emit(self.view.repository))
        column = column_in(
            self,
            row(self.title, 1, self.numbers),
            self.bar,
            self.detail,
            self.cause,
            row(self.pause_button, self.go_on_button, self.open_button, self.cancel_button, 1, spacing=16),
            self.ask,
            spacing=4,
        )
        column.addSpacing(6)
        column.addWidget(Hairline())
        self.show_download(view)

    @property
    def buttons(self) -> tuple[QPushButton, ...]:
        ask = self.ask
        return self.pause_button, self.go_on_button, self.open_button, self.cancel_button, ask.do_button, ask.keep_button

    def show_download(self, view: DownloadView) -> None:
        """Updates the row; the focus moves between Pause and Resume as these replace each other."""
        self.view = view
        state = view.state
        had_keyboard = self.pause_button.hasFocus() or self.go_on_button.hasFocus()
        self.pause_button.setVisible(state is DownloadState.RUNNING)
        self.go_on_button.setVisible(state in (DownloadState.PAUSED, DownloadState.FAILED))
        self.go_on_button.setText(self.tr("Try again") if state is DownloadState.FAILED else self.tr("Resume"))
        self.open_button.setVisible(state is DownloadState.DONE and view.kind == "model")
        self.cancel_button.setText(self.tr("Dismiss") if state is DownloadState.DONE else self.tr("Cancel"))
        if had_keyboard:
            (self.pause_button if state is DownloadState.RUNNING else self.go_on_button).setFocus()
        self.bar.setVisible(state is not DownloadState.DONE)
        self.bar.show_share(view.done, view.total)
        self.numbers.setText(self._numbers(view))
        self.detail.setText(self._detail(view))
        self.detail.setVisible(bool(self.detail.text()))
        self.cause.setText(view.note if state is DownloadState.FAILED else "")
        self.cause.setVisible(bool(self.cause.text()))

    def _numbers(self, view: DownloadView) -> str:
        if view.state is DownloadState.DONE:
            return self.tr("{0}, ready").format(size(view.total)) if view.total else self.tr("ready")
        parts = [f"{100 * view.done // view.total} %" if view.total else ""]
        if view.rate:
            parts += [rate_words(view.rate), time_left(view.eta)]
        return " · ".join(part for part in parts if part)

    def _detail(self, view: DownloadView) -> str:
        here = self.tr("{0} of {1}").format(size(view.done), size(view.total)) if view.total else size(view.done)
        if view.state is DownloadState.DONE:
            return self.tr("an adapter: add it under Model and Adapters") if view.kind == "adapter" else ""
        if view.state is DownloadState.PAUSED:
            return self.tr("paused; {0} downloaded and kept").format(here)
        if view.state is DownloadState.FAILED:
            return self.tr("{0} downloaded and kept").format(here) if view.done else self.tr("nothing downloaded yet")
        if view.step == "wait":
            return self.tr("waiting: {0}").format(view.note)
        if view.step == "fetch" and view.file_total:
            file = self.tr("{0}: {1} of {2}").format(view.file, size(view.file_done), size(view.file_total))
            return f"{here} · {file}"
        steps = {
            "look up": self.tr("asking Hugging Face…"),
            "check": self.tr("checking downloaded files…"),
            "install": self.tr("verifying and installing…"),
        }
        return steps.get(view.step, here)

    def _ask_cancel(self) -> None:
        view = self.view
        if view.state is DownloadState.DONE or not view.done:
            self.cancel_wanted.emit(view.repository)
            return
        self.ask.ask(self.tr("cancel and delete the {0} already downloaded?").format(size(view.done)), self.tr("Delete"))


MOST_NAME = 32  # characters shown of a repository


class DownloadsLink(QPushButton):
    """Sums up the downloads, and leads to the models; hidden while there is none."""

    def __init__(self) -> None:
        super().__init__()
        restyle(self, "link")
        self.setFont(interface_font(11.5))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.hide()

    def minimumSizeHint(self) -> QSize:
        return super().sizeHint()

    def show_downloads(self, downloads: Sequence[DownloadView]) -> None:
        """Shows the running downloads, else the last failed, else the last finished one."""
        words = self._words(downloads)
        self.setText(words.replace("&", "&&"))
        self.setAccessibleName(self.tr("{0}; show models").format(words))
        self.setToolTip(plain_tooltip("\n".join(view.repository for view in downloads)))
        self.setVisible(bool(words))

    def _words(self, downloads: Sequence[DownloadView]) -> str:
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
        for state, sentence in ends.items():
            found = [view for view in downloads if view.state is state]
            if found:
                return sentence.format(_short(found[-1].repository))
        return ""


def _short(repository: str) -> str:
    name = repository.rpartition("/")[2]
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…"
