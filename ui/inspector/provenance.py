"""How an answer was made: every setting that held, and where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.inspector.replay import Outcome, share_of
from ui.inspector.stage_rows import DialRow, StageRow, StaticRow
from ui.inspector.tab import Facts
from ui.port import Made, SamplingOptions
from ui.widgets.controls import button
from ui.widgets.dials import DIALS
from ui.widgets.labels import Caption


class SettingsRows(QWidget):
    """A row per stage, from the raw scores to the draw.

    `changed` carries the settings the sliders stand at, `chosen` the stage whose numbers are to be shown ("": those of all).
    """

    changed = Signal(object)  # SamplingOptions
    chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._sampling = SamplingOptions()
        self._stage = ""
        self.raw, self.grammar = StaticRow("raw", self.tr("raw")), StaticRow("grammar", self.tr("grammar"))
        self.bias, self.draw = StaticRow("bias", self.tr("bias, bans")), StaticRow("draw", self.tr("draw"))
        self.rows: dict[str, DialRow] = {}
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(0)
        for dial in DIALS:
            row = self.rows[dial.setting] = DialRow(dial)
            row.moved.connect(self._moved)
        for each in self._all():
            each.chosen.connect(self._choose)
        self._arrange(None)

    def _all(self) -> Iterable[StageRow]:
        return (self.raw, self.grammar, self.bias, *self.rows.values(), self.draw)

    @property
    def sampling(self) -> SamplingOptions:
        """The settings the sliders stand at; those without a slider are as they were in force."""
        return self._sampling

    @property
    def stage(self) -> str:
        """The stage that was chosen, also while it does nothing; "" for none."""
        return self._stage

    def set_sampling(self, sampling: SamplingOptions, *, can_draw_xtc: bool) -> None:
        """Puts the sliders where these settings are, and the rows in their order; emits nothing."""
        self._sampling = sampling
        for dial in DIALS:
            held = getattr(sampling, dial.setting)
            there = sampling.order is None or dial.stage in sampling.order
            wanted = (dial.always or held not in (None, dial.off)) and (can_draw_xtc or not dial.draws)
            self.rows[dial.setting].setVisible(there and wanted)
            self.rows[dial.setting].set_value(dial.off if held is None else float(held))
        self._arrange(sampling.order)

    def _arrange(self, order: tuple[str, ...] | None) -> None:
        """Puts the rows in the order in which the stages act."""
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
        """What each stage leaves, and what `token` has after it."""
        for static in (self.raw, self.grammar, self.bias, self.draw):
            static.setVisible(static.stage in ("raw", "draw") or outcome.stage(static.stage) is not None)
        telling = {row.stage: row for row in self._all() if not row.isHidden()}  # of rows that share a stage, the last one
        for row in self._all():
            stage = outcome.stage(row.stage)
            tells = telling.get(row.stage) is row and stage is not None
            row.show_result(stage.kept if tells and stage else None, share_of(outcome, row.stage, token) if tells else None)
            row.can_be_chosen(stage is not None)
            row.mark(stage is not None and self._stage == row.stage)

    def values(self) -> Mapping[str, float]:
        return {name: row.slider.setting for name, row in self.rows.items() if not row.isHidden()}

    def _moved(self, setting: str, value: float) -> None:
        self._sampling = replace(self._sampling, **{setting: value})  # type: ignore[arg-type]  # fields by name
        self.changed.emit(self._sampling)

    def _choose(self, stage: str, on: bool) -> None:
        self._stage = stage if on else ""
        for row in self._all():
            row.mark(row.stage == self._stage)
        self.chosen.emit(self._stage)


class Making(QWidget):
    """The model, the seed, counts and times of one answer; every option with its source, on request."""

    def __init__(self) -> None:
        super().__init__()
        self.facts, self.settings = Facts(columns=1), Facts(columns=1)
        self.more = button("", "link")
        self.more.setCheckable(True)
        self.more.toggled.connect(self._open)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 20, 0, 0)
        column.setSpacing(6)
        column.addWidget(Caption(self.tr("How the last answer was made")))
        column.addWidget(self.facts)
        column.addWidget(self.more, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self.settings)
        self._open(False)
        self.show_made(None)

    def show_made(self, made: Made | None) -> None:
        """Shows it; hidden where it was not stored."""
        self.setVisible(made is not None)
        if made is None:
            return
        self.facts.show_facts(made.facts)
        said = {setting.name: f"{setting.value} · {setting.source}" for setting in made.settings}
        self.settings.show_facts({name.replace("_", " "): words for name, words in said.items()})

    def _open(self, on: bool) -> None:  # a state, not an option
        self.settings.setVisible(on)
        self.more.setText(self.tr("Hide options") if on else self.tr("Every option and its source"))
