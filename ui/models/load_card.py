"""The card that shows what loading a model takes, and its load options."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QPushButton, QWidget

from ui.models.bars import FitBar, FitLegend
from ui.models.token_row import InlinePanel
from ui.models.wording import fit_words
from ui.port import FitView, LoadChoice, LoadPlan
from ui.theme.fonts import interface_font
from ui.widgets.controls import LINE_PX, Combo, button, column_in, fill, grid, row, words
from ui.widgets.labels import Label
from ui.widgets.numbers import count

LEAST_CONTEXT = 1024  # tokens


def contexts(fit: FitView, most: int | None) -> list[tuple[str, int]]:
    """Context lengths to choose from, as (words, tokens) in ascending order.

    These are powers of two, the model's own length, that of the fit, and the longest that fits.

    Args:
        fit: The memory needed.
        most: Tokens that the model was made for.
    """
    top = most or fit.context
    sizes = {fit.context, top}
    tokens = LEAST_CONTEXT
    while tokens < top:
        sizes.add(tokens)
        tokens *= 2
    whole = fit.longest // LEAST_CONTEXT * LEAST_CONTEXT
    if LEAST_CONTEXT <= whole < top:
        sizes.add(whole)
    return [(context_words(tokens, fit.longest), tokens) for tokens in sorted(sizes)]


def context_words(tokens: int, longest: int) -> str:
    """A context length in words, with a remark if it is too long for the memory."""
    name = QCoreApplication.translate("Models", "{0} tokens").format(count(tokens))
    return name if tokens <= longest else QCoreApplication.translate("Models", "{0}: too many").format(name)


class LoadCard(InlinePanel):
    """Shows a `LoadPlan`; hidden until there is one. The focus then goes back to `home`."""

    wanted = Signal(object)  # LoadChoice to be planned
    open_wanted = Signal(object)  # LoadChoice

    def __init__(self, home: QWidget) -> None:
        super().__init__(home, "card")
        self.setAccessibleName(self.tr("How it is loaded"))
        self.plan: LoadPlan | None = None
        self.bar, self.legend = FitBar(), FitLegend()
        self.fit_words, self.cost = words("", ""), words()
        self.context, self.weights = (
            Combo(self.tr("Context of this model")),
            Combo(self.tr("Precision of the weights")),
        )
        for combo in (self.context, self.weights):
            combo.activated.connect(self._choose)
        self.open_button = QPushButton(self.tr("Open"))
        self.open_button.setObjectName("send")
        self.open_button.setFont(interface_font(LINE_PX, QFont.Weight.DemiBold))
        self.open_button.clicked.connect(self._open)
        self.leave_button = button(self.tr("Not now"), "plain")
        self.leave_button.clicked.connect(self.leave)
        self._lay_out()

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        return self.context, self.weights, self.open_button, self.leave_button

    def show_plan(self, plan: LoadPlan) -> None:
        """Shows a plan. A hidden card opens with the focus on Open, or on Not now if the model does not fit."""
        fresh, self.plan = self.isHidden(), plan
        fit = plan.fit
        for part in (self.bar, self.legend, self.context, self._context_label):
            part.setVisible(fit is not None)
        for part in (self.weights, self._weights_label):
            part.setVisible(bool(plan.forms) or plan.choice.weights != "auto")
        if fit is None:
            self.fit_words.setText(
                self.tr("The memory it needs is unknown: no engine here runs it, or its weights are read from disk")
            )
        else:
            self.bar.show_fit(fit)
            self.legend.show_fit(fit)
            self.fit_words.setText(fit_words(fit))
            self._show_contexts(plan, fit)
        self._show_forms(plan)
        self.open_button.setText(self.tr("Open") if fit is None or fit.fits else self.tr("Open anyway"))
        if fresh:
            self.open_at(self.open_button if fit is None or fit.fits else self.leave_button)

    def _show_contexts(self, plan: LoadPlan, fit: FitView) -> None:
        self.context.clear()
        own = plan.set_context or plan.most
        as_set = self.tr("default: {0}").format(context_words(own, fit.longest)) if own else self.tr("default")
        self.context.addItem(as_set, None)
        for name, tokens in contexts(fit, plan.most):
            self.context.addItem(name, tokens)
        self.context.setCurrentIndex(max(self.context.findData(plan.choice.context), 0))

    def _show_forms(self, plan: LoadPlan) -> None:
        self.weights.clear()
        self.cost.show()
        if not plan.forms:
            self._show_no_forms(plan)
            return
        plain = plan.forms[0].name
        held = plain if plan.set_weights == "auto" else plan.set_weights
        self.weights.addItem(self.tr("default: {0}").format(held), "auto")
        for form in plan.forms:
            self.weights.addItem(form.name, form.name)
        self.weights.setCurrentIndex(max(self.weights.findData(plan.choice.weights), 0))
        chosen = held if plan.choice.weights == "auto" else plan.choice.weights
        cost = next((form.cost for form in plan.forms if form.name == chosen), "")
        if chosen == plain:
            self.cost.setText(self.tr("Lower precision is faster on the CPU and changes probabilities slightly"))
        elif cost:
            self.cost.setText(self.tr("Perplexity of a test text: {0}").format(cost))
        else:
            self.cost.setText(self.tr("Differs slightly from {0}; loading measures by how much").format(plain))

    def _show_no_forms(self, plan: LoadPlan) -> None:
        """Shows that no form can be chosen here. A form chosen for this model before can be reset."""
        engine = self.tr("here") if plan.fit is None else self.tr("on {0}").format(plan.fit.engine)
        chosen = plan.choice.weights
        if chosen != "auto":
            self.weights.addItem(self.tr("the model's own"), "auto")
            self.weights.addItem(chosen, chosen)
            self.weights.setCurrentIndex(1)
            said = self.tr("{0} weights are chosen for this model but not available {1}: choose another precision to open it")
            self.cost.setText(said.format(chosen, engine))
        elif plan.set_weights != "auto":
            said = self.tr("{0} weights are set for all models but have no effect {1}: the model keeps its own precision")
            self.cost.setText(said.format(plan.set_weights, engine))
        else:
            self.cost.hide()

    def _choice(self) -> LoadChoice:
        """The load options chosen; hidden ones keep their values."""
        assert self.plan is not None
        held = self.plan.choice
        context = held.context if self.plan.fit is None else self.context.currentData()
        return LoadChoice(context, self.weights.currentData() or held.weights)

    def _choose(self) -> None:
        self.wanted.emit(self._choice())

    def _open(self) -> None:
        choice = self._choice()
        self.leave()
        self.open_wanted.emit(choice)

    def _lay_out(self) -> None:
        self._context_label = Label(self.tr("Context"), "soft", interface_font(LINE_PX))
        self._context_label.setBuddy(self.context)
        self._weights_label = Label(self.tr("Weights"), "soft", interface_font(LINE_PX))
        self._weights_label.setBuddy(self.weights)
        column = column_in(self, self.bar, self.legend, self.fit_words, spacing=7, margins=(14, 12, 14, 12))
        choices = grid(10, 7)
        choices.setColumnStretch(2, 1)
        rows = ((self._context_label, self.context), (self._weights_label, self.weights))
        for line, (label, combo) in enumerate(rows):
            choices.addWidget(label, line, 0)
            choices.addWidget(combo, line, 1)
        fill(column, choices, self.cost, row(self.open_button, self.leave_button, 1, spacing=14))
