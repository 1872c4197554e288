"""One model of the shelf: what it is, and what can be done with it."""

from __future__ import annotations

import time

from PySide6.QtCore import QUrl, Signal
from PySide6.QtGui import QDesktopServices, QFont
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from ui.models.ask import AskBar
from ui.models.bars import ThinBar
from ui.models.wording import facts_of, fit_words
from ui.numbers import size
from ui.parts import button, row, words
from ui.port import FitView, ShelfModel
from ui.theme.fonts import interface_font
from ui.transcript.visible import one_line
from ui.widgets import ElidedLabel, Hairline, Label


class ShelfRow(QWidget):
    """Shows a `ShelfModel`."""

    open_wanted = Signal(str)  # name, where it fits
    open_anyway_wanted = Signal(str)
    verify_wanted = Signal(str)
    stop_wanted = Signal(str)  # of verifying
    remove_wanted = Signal(str)
    refused = Signal(str)

    def __init__(self, model: ShelfModel) -> None:
        super().__init__()
        self.model = model
        self.title = ElidedLabel("", "", interface_font(13.5, QFont.Weight.Medium))
        self.in_use = Label(self.tr("in use"), "accent", interface_font(11.5))
        self.size_label = Label("", "soft", interface_font(12))
        self.facts = words("", "soft")
        self.facts.setFont(interface_font(11.5))
        self.problem = words("", "warm")
        self.open_button = button(self.tr("Open"), "link")
        self.verify_button = button(self.tr("Verify"), "plain")
        self.reveal_button = button(self.tr("Show in file manager"), "plain")
        self.remove_button = button(self.tr("Remove"), "plain")
        self.bar, self.stop_button = ThinBar(self.tr("Verifying")), button(self.tr("Stop"), "plain")
        self.state = words("", "soft")
        self.ask = AskBar(self.remove_button, self.tr("Keep"))
        self.ask_open = AskBar(self.open_button, self.tr("Not now"))
        self._verifying = False
        self._connect()
        self._lay_out()
        self.show_model(model)

    @property
    def buttons(self) -> tuple[QPushButton, ...]:
        """In the order of the keyboard."""
        ask = self.ask
        return (
            self.open_button, self.verify_button, self.reveal_button, self.remove_button,
            self.stop_button, ask.do_button, ask.keep_button, self.ask_open.do_button, self.ask_open.keep_button,
        )  # fmt: skip

    def show_model(self, model: ShelfModel) -> None:
        """Shows what it is now."""
        self.model = model
        name = one_line(model.title)
        self.title.setText(name)
        self.setAccessibleName(name)
        self.in_use.setVisible(model.loaded)
        self.size_label.setText(size(model.size))
        self.facts.setText(facts_of(model, time.time()))
        self.problem.setText(model.problem)
        self.problem.setVisible(bool(model.problem))
        self.open_button.setVisible(model.kind == "model")
        self.open_button.setEnabled(not model.problem and not model.loaded)
        for part, what in (
            (self.open_button, self.tr("Open {0}")),
            (self.verify_button, self.tr("Verify {0}")),
            (self.reveal_button, self.tr("Show {0} in the file manager")),
            (self.remove_button, self.tr("Remove {0}")),
        ):
            part.setAccessibleName(what.format(name))

    def show_progress(self, done: int, total: int) -> None:
        """Its files are being read."""
        self._say(self.tr("reading {0} of {1}…").format(size(done), size(total)) if total else self.tr("reading…"))
        self.bar.show_share(done, total)
        self._verify(True)

    def show_too_large(self, fit: FitView) -> None:
        """It was to be opened, and does not fit."""
        self.ask.leave()
        self.ask_open.ask(fit_words(fit), self.tr("Open anyway"))

    def show_verified(self, problem: str) -> None:
        """They were read: what differs, or that nothing does."""
        self._verify(False)
        self._say(problem or self.tr("sound: every file was read and is as it was"), "warm" if problem else "soft")

    def show_stopped(self) -> None:
        """Nobody knows whether they are sound."""
        self._verify(False)
        self._say(self.tr("stopped before everything was read"))

    def _verify(self, verifying: bool) -> None:  # a state, not an option
        self._verifying = verifying
        self.bar.setVisible(verifying)
        self.stop_button.setVisible(verifying)
        self.verify_button.setEnabled(not verifying)
        self.remove_button.setEnabled(not verifying)

    def _say(self, text: str, kind: str = "soft") -> None:
        if self.state.property("kind") != kind:
            self.state.setProperty("kind", kind)
            self.state.style().unpolish(self.state)
            self.state.style().polish(self.state)
        self.state.setText(text)
        self.state.setVisible(bool(text))

    def _connect(self) -> None:
        self.open_button.clicked.connect(lambda: self.open_wanted.emit(self.model.name))
        self.verify_button.clicked.connect(self._ask_verify)
        self.stop_button.clicked.connect(lambda: self.stop_wanted.emit(self.model.name))
        self.reveal_button.clicked.connect(self._reveal)
        self.remove_button.clicked.connect(self._ask_remove)
        self.ask_open.agreed.connect(lambda: self.open_anyway_wanted.emit(self.model.name))
        self.ask.agreed.connect(lambda: self.remove_wanted.emit(self.model.name))

    def _ask_verify(self) -> None:
        self.show_progress(0, 0)
        self.stop_button.setFocus()
        self.verify_wanted.emit(self.model.name)

    def _ask_remove(self) -> None:
        self.ask_open.leave()
        if self.model.linked:
            question = self.tr("take it off the shelf? its folder stays where it is, nothing is freed")
        else:
            question = self.tr("delete it for good? {0} are free again").format(size(self.model.size))
        self.ask.ask(question, self.tr("Remove"))

    def _reveal(self) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(self.model.folder)):
            self.refused.emit(self.tr("no program here shows folders; it is {0}").format(self.model.folder))

    def _lay_out(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addLayout(row(self.title, self.in_use, 1, self.size_label))
        column.addWidget(self.facts)
        column.addWidget(self.problem)
        actions = row(self.open_button, self.verify_button, self.reveal_button, self.remove_button, 1, spacing=16)
        column.addLayout(actions)
        column.addWidget(self.bar)
        column.addLayout(row(self.state, self.stop_button))
        column.addWidget(self.ask)
        column.addWidget(self.ask_open)
        column.addSpacing(6)
        column.addWidget(Hairline())
        for part in (self.bar, self.stop_button, self.state):
            part.hide()
