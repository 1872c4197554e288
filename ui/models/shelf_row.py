"""The row of one model on the shelf."""

from __future__ import annotations

import time

from PySide6.QtCore import QPoint, Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QFont
from PySide6.QtWidgets import QMenu, QWidget

from ui.models.bars import AskBar, QuantiseBar, ThinBar
from ui.models.load_card import LoadCard
from ui.models.wording import facts_of
from ui.port import LoadChoice, LoadPlan, ShelfModel
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, row, words
from ui.widgets.labels import ElidedLabel, Hairline, Label, set_kind
from ui.widgets.numbers import size
from ui.widgets.visible import one_line


class ShelfRow(QWidget):
    """Shows a `ShelfModel`."""

    plan_wanted = Signal(str, object)  # name, LoadChoice or None: the plan of its loading
    open_wanted = Signal(str, object)  # name, LoadChoice
    quantise_wanted = Signal(str, int)  # name, bits
    stop_quantise_wanted = Signal(str)
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
        self.facts = words(px=11.5)
        self.problem = words("", "warm")
        self.open_button = button(self.tr("Open…"))
        self.more_button = button(self.tr("More"), "plain")
        self.menu = QMenu(self)
        self.verify_action = self.menu.addAction(self.tr("Verify"), self._ask_verify)
        self.quantise_action = self.menu.addAction(self.tr("Quantise…"), self._ask_quantise)
        self.reveal_action = self.menu.addAction(self.tr("Show Folder"), self._reveal)
        self.menu.addSeparator()
        self.remove_action = self.menu.addAction(self.tr("Remove…"), self._ask_remove)
        self.bar, self.stop_button = ThinBar(self.tr("Progress")), button(self.tr("Stop"), "plain")
        self.state = words()
        self.ask = AskBar(self.more_button, self.tr("Keep"))
        self.card = LoadCard(self.open_button)
        self.quantise = QuantiseBar(self.more_button)
        self._quantising = False
        self._connect()
        self._lay_out()
        self.show_model(model)

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        ask = self.ask
        return (
            self.open_button, self.more_button, self.stop_button, ask.do_button, ask.keep_button,
            *self.quantise.buttons, *self.card.buttons,
        )  # fmt: skip

    def show_model(self, model: ShelfModel) -> None:
        self.model = model
        name = one_line(model.title)
        self.title.setText(name)
        self.setAccessibleName(name)
        self.in_use.setVisible(model.loaded)
        server = model.kind == "server"
        self.size_label.setText("" if server else size(model.size))
        self.facts.setText(facts_of(model, time.time()))
        self.problem.setText(model.problem)
        self.problem.setVisible(bool(model.problem))
        self.open_button.setVisible(model.kind != "adapter")
        self.open_button.setText(self.tr("Open") if server else self.tr("Open…"))
        for act in (self.verify_action, self.reveal_action):  # a server has no files here
            act.setVisible(not server)
        self.open_button.setEnabled(not model.problem)
        self.quantise_action.setVisible(model.convertible)
        self.open_button.setAccessibleName(self.tr("Open {0}").format(name))
        self.more_button.setAccessibleName(self.tr("More for {0}").format(name))
        self.menu.setAccessibleName(self.more_button.accessibleName())

    def show_progress(self, done: int, total: int) -> None:
        """Shows how much of its files is read."""
        self._say(self.tr("reading {0} of {1}…").format(size(done), size(total)) if total else self.tr("reading…"))
        self.bar.show_share(done, total)
        self._work(True)

    def show_load(self, plan: LoadPlan) -> None:
        """Opens the card with the plan of its loading."""
        self.ask.leave()
        self.quantise.leave()
        self.card.show_plan(plan)

    def show_load_again(self, plan: LoadPlan) -> None:
        """Shows the plan for another choice, if the card is still open."""
        if not self.card.isHidden():
            self.card.show_plan(plan)

    def show_quantising(self, done: int, total: int) -> None:
        self._quantising = True
        share = f" {100 * done // total} %" if total else ""
        self._say(self.tr("quantising…{0}").format(share))
        self.bar.show_share(done, total)
        self._work(True)

    def show_quantised(self, made: str) -> None:
        self._end_work()
        self._say(self.tr("{0} is installed").format(made))

    def show_not_quantised(self, why: str) -> None:
        """Reports why quantising failed; "" if it was stopped."""
        self._end_work()
        self._say(why or self.tr("stopped; no model was created"), "warm" if why else "soft")

    def show_verified(self, problem: str) -> None:
        """Reports the result of verifying: what differs, or ""."""
        self._end_work()
        self._say(problem or self.tr("every file is intact"), "warm" if problem else "soft")

    def show_stopped(self) -> None:
        """Reports that verifying was stopped."""
        self._end_work()
        self._say(self.tr("stopped before every file was checked"))

    def _end_work(self) -> None:
        if self.stop_button.hasFocus():
            self.more_button.setFocus(Qt.FocusReason.OtherFocusReason)
        self._quantising = False
        self._work(False)

    def _work(self, working: bool) -> None:  # a state, not an option
        self.bar.setVisible(working)
        self.stop_button.setVisible(working)
        for act in (self.verify_action, self.quantise_action, self.remove_action):
            act.setEnabled(not working)

    def _say(self, text: str, kind: str = "soft") -> None:
        set_kind(self.state, kind)
        self.state.setText(text)
        self.state.setVisible(bool(text))

    def _connect(self) -> None:
        self.open_button.clicked.connect(self._open)
        self.stop_button.clicked.connect(self._stop)
        self.more_button.clicked.connect(self._open_menu)
        self.card.wanted.connect(lambda choice: self.plan_wanted.emit(self.model.name, choice))
        self.card.open_wanted.connect(lambda choice: self.open_wanted.emit(self.model.name, choice))
        self.quantise.wanted.connect(self._start_quantising)
        self.ask.agreed.connect(lambda: self.remove_wanted.emit(self.model.name))

    def _open_menu(self) -> None:
        self.menu.popup(self.more_button.mapToGlobal(QPoint(0, self.more_button.height() + 4)))

    def _ask_verify(self) -> None:
        self.show_progress(0, 0)
        self.stop_button.setFocus()
        self.verify_wanted.emit(self.model.name)

    def _ask_quantise(self) -> None:
        self.ask.leave()
        self.card.leave()
        self.quantise.ask()

    def _start_quantising(self, bits: int) -> None:
        self.show_quantising(0, 0)
        self.stop_button.setFocus()
        self.quantise_wanted.emit(self.model.name, bits)

    def _stop(self) -> None:
        (self.stop_quantise_wanted if self._quantising else self.stop_wanted).emit(self.model.name)

    def _open(self) -> None:
        """Opens a model on a server at once; asks for the plan of others first."""
        if self.model.kind == "server":
            self.open_wanted.emit(self.model.name, LoadChoice())
        else:
            self.plan_wanted.emit(self.model.name, None)

    def _ask_remove(self) -> None:
        self.card.leave()
        self.quantise.leave()
        if self.model.kind == "server":
            question = self.tr("remove it from the list and its key from the keychain? Nothing changes on the server.")
        elif self.model.linked:
            question = self.tr("remove it from the list? Its folder is not deleted.")
        else:
            question = self.tr("delete it permanently? This frees {0}.").format(size(self.model.size))
        self.ask.ask(question, self.tr("Remove"))

    def _reveal(self) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(self.model.folder)):
            self.refused.emit(self.tr("no file manager was found; the folder is {0}").format(self.model.folder))

    def _lay_out(self) -> None:
        column = column_in(
            self,
            row(self.title, self.in_use, 1, self.size_label),
            self.facts,
            self.problem,
            row(self.open_button, self.more_button, 1, spacing=16),
            self.bar,
            row((self.state, 1), self.stop_button),
            self.ask,
            self.quantise,
            self.card,
            spacing=4,
        )
        column.addSpacing(6)
        column.addWidget(Hairline())
        for part in (self.bar, self.stop_button, self.state):
            part.hide()
