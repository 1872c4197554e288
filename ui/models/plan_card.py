"""The card that shows a download before it starts: files, commit, licence, disk space, and whether the model fits."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from ui.models.bars import FitBar, FitLegend
from ui.models.load_card import contexts
from ui.models.wording import FINGERPRINT_SHOWN, fit_words
from ui.port import FitView, ModelPlan
from ui.theme.fonts import interface_font, mono_font
from ui.widgets.controls import Combo, button, column_in, drop, fill, grid, row, words
from ui.widgets.labels import ElidedLabel, Label
from ui.widgets.numbers import size
from ui.widgets.visible import one_line

MOST_FILES = 200  # that are listed


class PlanCard(QFrame):
    """Shows a `ModelPlan`; hidden until there is one."""

    download_wanted = Signal(str)  # pinned to the commit
    open_wanted = Signal(str)  # name of an installed model
    context_wanted = Signal(object, int)  # ModelPlan, tokens to compute its fit for
    own_wanted = Signal(str, int)  # name, context length to store for this model

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.plan: ModelPlan | None = None
        self._own: int | None = None
        self.title = ElidedLabel("", "", interface_font(13.5, QFont.Weight.Medium))
        self.commit = Label("", "soft", mono_font(11.5))
        self.facts, self.kept = words(), words()
        self.bar, self.legend = FitBar(), FitLegend()
        self.fit_words = words("", "")
        self.context = Combo(self.tr("Context to plan for"))
        self.context.activated.connect(self._choose)
        self.own_button = button(self.tr("use this context"), "link")
        self.own_button.clicked.connect(self._ask_own)
        self.files_button = button("", "plain")
        self.files_button.setCheckable(True)
        self._files = QWidget()
        self.files_button.toggled.connect(self._files.setVisible)
        self._grid = grid(14, 2, self._files)
        self._lines: list[QWidget] = []
        self.download_button = QPushButton()
        self.download_button.setObjectName("send")
        self.download_button.setFont(interface_font(12.5, QFont.Weight.DemiBold))
        self.download_button.clicked.connect(self._go)
        self.leave_button = button(self.tr("Not now"), "plain")
        self.leave_button.clicked.connect(self._leave)
        self._lay_out()
        self.hide()

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        return self.context, self.own_button, self.files_button, self.download_button, self.leave_button

    def show_plan(self, plan: ModelPlan) -> None:
        self.plan, self._own = plan, plan.own_context
        self.title.setText(plan.repository)
        self.setAccessibleName(self.tr("Plan for {0}").format(one_line(plan.repository)))
        self.commit.setText(self.tr("commit {0}").format(plan.commit[:FINGERPRINT_SHOWN]))
        self.facts.setText(self._facts(plan))
        self.kept.setText(self.tr("{0} already downloaded").format(size(plan.kept)))
        self.kept.setVisible(bool(plan.kept) and not plan.here)
        self.files_button.setChecked(False)
        self.files_button.setText(self.tr("1 file") if len(plan.files) == 1 else self.tr("{0:,} files").format(len(plan.files)))
        self._fill_files(plan)
        self._show_contexts(plan)
        self.show_fit(plan.fit)
        self.show()

    def show_fit(self, fit: FitView | None) -> None:
        """Shows the memory needed; None if no engine here runs it."""
        plan = self.plan
        assert plan is not None
        for part in (self.bar, self.legend, self.context, self._context_label):
            part.setVisible(fit is not None)
        self.fit_words.setVisible(fit is not None or plan.kind == "model")
        if fit is None:
            self.fit_words.setText(self.tr("no engine on this machine can run it; {0} could").format(", ".join(plan.engines)))
            self.own_button.hide()
        else:
            self.bar.show_fit(fit)
            self.legend.show_fit(fit)
            self.fit_words.setText(fit_words(fit))
            self.context.setCurrentIndex(max(self.context.findData(fit.context), 0))
            self._show_own(fit)
        fits = fit is None or fit.fits
        words = self.tr("Download {0}") if fits else self.tr("Download {0} anyway")
        left = max(plan.size - plan.kept, 0)
        self.download_button.setText(self.tr("Open") if plan.here else words.format(size(left)))
        self.download_button.setEnabled(not (plan.here and plan.kind == "adapter"))

    def show_own(self, name: str, context: int) -> None:
        """Takes the context length stored for a model."""
        if self.plan is not None and self.plan.name == name and self.plan.fit is not None:
            self._own = context
            self._show_own(self.plan.fit)

    def _show_own(self, fit: FitView) -> None:
        holds = self._own is not None and self.context.currentData() == self._own
        self.own_button.setEnabled(not holds)
        self.own_button.setText(self.tr("this context is used") if holds else self.tr("use this context"))
        self.own_button.setVisible(bool(fit.longest))

    def _facts(self, plan: ModelPlan) -> str:
        adapter = self.tr("an adapter for {0}").format(plan.base) if plan.base else self.tr("an adapter")
        parts = (
            self.tr("already installed") if plan.here else "",
            adapter if plan.kind == "adapter" else "",
            self.tr("{0} to download").format(size(plan.size)),
            self.tr("licence {0}").format(plan.licence) if plan.licence else self.tr("licence unknown"),
            self.tr("runs on {0}").format(", ".join(plan.engines)),
            self.tr("{0} free on disk").format(size(plan.disk)),
        )
        return one_line(" · ".join(part for part in parts if part))

    def _show_contexts(self, plan: ModelPlan) -> None:
        self.context.clear()
        if plan.fit is None:
            return
        for name, tokens in contexts(plan.fit, plan.context):
            self.context.addItem(name, tokens)

    def _fill_files(self, plan: ModelPlan) -> None:
        for old in self._lines:
            drop(self._grid, old)
        self._lines = []
        for line, (name, bytes_) in enumerate(plan.files[:MOST_FILES]):
            parts = ElidedLabel(name, "soft", mono_font(11.5)), Label(size(bytes_), "soft", interface_font(11.5))
            for place, part in enumerate(parts):
                self._grid.addWidget(part, line, place)
                self._lines.append(part)

    def _choose(self, place: int) -> None:
        if self.plan is not None:
            self.context_wanted.emit(self.plan, self.context.itemData(place))

    def _ask_own(self) -> None:
        tokens = self.context.currentData()
        if tokens and self.plan is not None:
            self.own_wanted.emit(self.plan.name, tokens)

    def _go(self) -> None:
        plan = self.plan
        assert plan is not None
        if plan.here:
            self.open_wanted.emit(plan.name)
        else:
            self.download_wanted.emit(plan.pinned)
        self._leave()

    def _leave(self) -> None:
        self.plan = None
        self.hide()

    def _lay_out(self) -> None:
        self._grid.setColumnStretch(0, 1)
        self._files.hide()
        self._context_label = Label(self.tr("Context"), "soft", interface_font(12.5))
        self._context_label.setBuddy(self.context)
        column = column_in(self, row(self.title, 1, self.commit), self.facts, self.kept, spacing=7, margins=(14, 12, 14, 12))
        column.addSpacing(4)
        context = row(self._context_label, self.context, self.own_button, 1, spacing=10)
        fill(column, self.bar, self.legend, self.fit_words, context, row(self.files_button, 1), self._files)
        column.addLayout(row(self.download_button, self.leave_button, 1, spacing=14))
