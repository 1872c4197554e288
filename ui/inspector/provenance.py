"""Provenance of an answer, and the sampler's settings as rows with sliders."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from itertools import pairwise

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QWidget

from ui.inspector.replay import Outcome, share_of
from ui.inspector.stage_rows import DialRow, StageRow
from ui.inspector.tab import FactGrid
from ui.port import Made, SamplingOptions
from ui.widgets.controls import button, column_in
from ui.widgets.dials import DIALS
from ui.widgets.labels import Caption


class SamplerRows(QWidget):
    """A row per sampler stage, from the raw scores to the draw.

    Attributes:
        sampling: The settings of the sliders; settings without a slider keep their values in force.
        stage: The stage that was chosen, even while it does nothing; "" for none.
    """

    changed = Signal(object)  # SamplingOptions, as the sliders are now
    chosen = Signal(str)  # the stage whose numbers are to be shown; "": the numbers of all stages

    def __init__(self) -> None:
        super().__init__()
        self.sampling = SamplingOptions()
        self.stage = ""
        self.raw, self.grammar = StageRow("raw", self.tr("raw")), StageRow("grammar", self.tr("grammar"))
        self.bias, self.draw = StageRow("bias", self.tr("bias, bans")), StageRow("draw", self.tr("draw"))
        self.rows: dict[str, DialRow] = {}
        self._column = column_in(self, spacing=0)
        for dial in DIALS:
            row = self.rows[dial.setting] = DialRow(dial)
            row.moved.connect(self._moved)
        for each in self._all():
            each.chosen.connect(self._choose)
        self._arrange(None)

    def _all(self) -> Iterable[StageRow]:
        return (self.raw, self.grammar, self.bias, *self.rows.values(), self.draw)

    def set_sampling(self, sampling: SamplingOptions, known: Set[str] | None) -> None:
        """Moves the sliders to these settings, and the rows into their order; emits nothing.

        Args:
            sampling: The settings.
            known: The stages whose random number is known; None: all.
        """
        self.sampling = sampling
        for dial in DIALS:
            held = getattr(sampling, dial.setting)
            there = sampling.order is None or dial.stage in sampling.order
            wanted = (dial.always or held not in (None, dial.off)) and (not dial.draws or known is None or dial.stage in known)
            self.rows[dial.setting].setVisible(there and wanted)
            self.rows[dial.setting].set_value(dial.off if held is None else float(held))
        self._arrange(sampling.order)

    def _arrange(self, order: tuple[str, ...] | None) -> None:
        """Sorts the rows by the order of the stages."""
        own = [row.stage for row in self._all()]
        places = {stage: place for place, stage in enumerate(("raw", "grammar", *(order or own), "draw"))}
        wanted = sorted(self._all(), key=lambda row: places.get(row.stage, -1))  # sorted is stable
        for place, row in enumerate(wanted):
            if self._column.indexOf(row) != place:
                self._column.removeWidget(row)
                self._column.insertWidget(place, row)
        stops = [stop for row in wanted for stop in row.stops]
        for before, after in pairwise(stops):
            QWidget.setTabOrder(before, after)

    def show_outcome(self, outcome: Outcome, token: int) -> None:
        """Shows how many tokens each stage leaves, and the probability of `token` after it."""
        for static in (self.raw, self.grammar, self.bias, self.draw):
            static.setVisible(static.stage in ("raw", "draw") or outcome.stage(static.stage) is not None)
        last_rows = {row.stage: row for row in self._all() if not row.isHidden()}  # the last row of each stage shows its result
        for row in self._all():
            stage = outcome.stage(row.stage)
            if stage is not None and last_rows.get(row.stage) is row:
                row.show_result(stage.kept, share_of(outcome, row.stage, token))
            else:
                row.show_result(None, None)
            row.can_be_chosen(stage is not None)
            row.mark(stage is not None and self.stage == row.stage)

    def _moved(self, setting: str, value: float) -> None:
        self.sampling = replace(self.sampling, **{setting: value})  # type: ignore[arg-type]  # fields by name
        self.changed.emit(self.sampling)

    def _choose(self, stage: str, on: bool) -> None:
        self.stage = stage if on else ""
        for row in self._all():
            row.mark(row.stage == self.stage)
        self.chosen.emit(self.stage)


class Provenance(QWidget):
    """The model, seed, counts and times of one answer; every option with its source, on request."""

    def __init__(self) -> None:
        super().__init__()
        self.facts, self.settings = FactGrid(columns=1), FactGrid(columns=1)
        self.more = button("", "link")
        self.more.setCheckable(True)
        self.more.toggled.connect(self._open)
        column = column_in(self, Caption(self.tr("How the last answer was made")), self.facts, spacing=6, margins=(0, 20, 0, 0))
        column.addWidget(self.more, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self.settings)
        self._open(False)
        self.show_made(None)

    def show_made(self, made: Made | None) -> None:
        """Shows the provenance of an answer; hidden if it was not stored (None)."""
        self.setVisible(made is not None)
        if made is None:
            return
        self.facts.show_facts(made.facts)
        said = {setting.name: f"{setting.value} · {setting.source}" for setting in made.settings}
        self.settings.show_facts({name.replace("_", " "): words for name, words in said.items()})

    def _open(self, on: bool) -> None:  # a state, not an option
        self.settings.setVisible(on)
        self.more.setText(self.tr("Hide options") if on else self.tr("Every option and its source"))
