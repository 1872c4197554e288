"""The sampler's stages as rows: a slider for its setting, how many tokens it leaves, and what the pinned token has then."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QSlider, QVBoxLayout, QWidget

from runtime import SamplingOptions
from ui.inspector.replaying import Outcome, share_of
from ui.numbers import UNKNOWN, count, probability
from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_height, fix_width
from ui.widgets import ElidedLabel, Label

STEPS = 1000
NAME_PX, KEPT_PX, SHARE_PX = 92, 44, 42
ROW_HEIGHT = 25
MOST_K = 10_000  # the right end of top-k is "off"; more than these tokens make no difference one could see


@dataclass(frozen=True, slots=True)
class Scale:
    """From a slider's place (0 to `STEPS`) to a setting and back; places are finer where the setting is."""

    to_value: Callable[[float], float]
    to_place: Callable[[float], float]
    digits: int = 2


def _linear(low: float, high: float) -> Scale:
    return Scale(lambda x: low + (high - low) * x, lambda value: (value - low) / (high - low))


def _squared(high: float) -> Scale:
    return Scale(lambda x: high * x * x, lambda value: math.sqrt(max(value, 0.0) / high), digits=3)


def _count_of(x: float) -> float:
    return 0.0 if x >= 1 else round(math.exp(x * math.log(MOST_K)))


_COUNTS = Scale(_count_of, lambda k: 1.0 if k == 0 else math.log(max(k, 1)) / math.log(MOST_K), digits=0)


@dataclass(frozen=True, slots=True)
class Dial:
    """One setting of the sampler: its stage, its name in the window, where it is off, and how its slider goes."""

    setting: str
    stage: str
    words: str
    off: float
    scale: Scale


DIALS = (  # in the order of the stages
    Dial("repetition_penalty", "penalties", "repetition", 1.0, _linear(1.0, 2.0)),
    Dial("presence_penalty", "penalties", "presence", 0.0, _linear(0.0, 2.0)),
    Dial("frequency_penalty", "penalties", "frequency", 0.0, _linear(0.0, 2.0)),
    Dial("dry_multiplier", "dry", "DRY", 0.0, _linear(0.0, 2.0)),
    Dial("temperature", "temperature", "temp", 1.0, _linear(0.0, 2.0)),
    Dial("top_k", "top_k", "top-k", 0.0, _COUNTS),
    Dial("top_p", "top_p", "top-p", 1.0, _linear(0.01, 1.0)),
    Dial("min_p", "min_p", "min-p", 0.0, _squared(1.0)),
    Dial("typical_p", "typical", "typical", 1.0, _linear(0.01, 1.0)),
    Dial("xtc_probability", "xtc", "XTC", 0.0, _linear(0.0, 1.0)),
)
ALWAYS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p")  # others where they were in force


class SettingsRows(QWidget):
    """A row per stage. `changed` carries the settings the sliders stand at."""

    changed = Signal(object)  # SamplingOptions

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._sampling = SamplingOptions()
        self.raw, self.grammar, self.bias = StaticRow(), StaticRow(), StaticRow()
        self.rows: dict[str, DialRow] = {}
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self.raw.name.setText(self.tr("raw"))
        self.grammar.name.setText(self.tr("grammar"))
        self.bias.name.setText(self.tr("bias, bans"))
        for static in (self.raw, self.grammar, self.bias):
            column.addWidget(static)
        for dial in DIALS:
            row = self.rows[dial.setting] = DialRow(dial)
            row.moved.connect(self._moved)
            column.addWidget(row)

    @property
    def sampling(self) -> SamplingOptions:
        """The settings the sliders stand at; those without a slider are as they were in force."""
        return self._sampling

    def set_sampling(self, sampling: SamplingOptions, *, can_draw_xtc: bool) -> None:
        """Puts the sliders where these settings are; tells nobody."""
        self._sampling = sampling
        for dial in DIALS:
            held = getattr(sampling, dial.setting)
            there = sampling.order is None or dial.stage in sampling.order
            wanted = dial.setting in ALWAYS or held not in (None, dial.off)
            if dial.setting == "xtc_probability":
                wanted = wanted and can_draw_xtc
            self.rows[dial.setting].setVisible(there and wanted)
            self.rows[dial.setting].set_value(dial.off if held is None else float(held))

    def show_outcome(self, outcome: Outcome, token: int) -> None:
        """What each stage leaves, and what `token` has after it."""
        for name, static in (("raw", self.raw), ("grammar", self.grammar), ("bias", self.bias)):
            stage = outcome.stage(name)
            static.setVisible(name == "raw" or stage is not None)
            static.show_result(None if stage is None else stage.kept, share_of(outcome, name, token))
        last: dict[str, DialRow] = {}
        for dial in DIALS:  # of dials that share a stage, the last one visible shows its result
            row = self.rows[dial.setting]
            row.show_result(None, None)
            if not row.isHidden():
                last[dial.stage] = row
        for name, row in last.items():
            stage = outcome.stage(name)
            row.show_result(None if stage is None else stage.kept, share_of(outcome, name, token))

    def values(self) -> Mapping[str, float]:
        """What is shown, by setting."""
        return {name: row.value for name, row in self.rows.items() if not row.isHidden()}

    def _moved(self, setting: str, value: float) -> None:
        given = int(value) if setting == "top_k" else value
        self._sampling = replace(self._sampling, **{setting: given})  # type: ignore[arg-type]  # fields by name
        self.changed.emit(self._sampling)


class _Row(QWidget):
    """Name at the left, something in the middle, tokens left and a probability at the right."""

    def __init__(self, middle: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        fix_height(self, ROW_HEIGHT)
        self.name = ElidedLabel("", "soft", interface_font(12))
        fix_width(self.name, NAME_PX)
        self.kept = Label("", "faint", interface_font(11))
        self.share = Label("", "", interface_font(12))
        for label, width in ((self.kept, KEPT_PX), (self.share, SHARE_PX)):
            fix_width(label, width)
            label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        row.addWidget(self.name)
        row.addWidget(middle, 1)
        row.addWidget(self.kept)
        row.addWidget(self.share)

    def show_result(self, kept: int | None, share: float | None) -> None:
        """Tokens of the vocabulary that are left, and what the pinned one has; None: the stage does nothing."""
        self.kept.setText("" if kept is None else count(kept))
        self.kept.setAccessibleName("" if kept is None else self.tr("{0} tokens left").format(count(kept)))
        words = UNKNOWN if kept is not None else ""
        self.share.setText(words if share is None else self.tr("cut") if share == 0 else probability(share))


class StaticRow(_Row):
    """A stage that has no slider."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(QWidget(), parent)


class DialRow(_Row):
    """One setting that can be moved."""

    moved = Signal(str, float)  # setting, value

    def __init__(self, dial: Dial, parent: QWidget | None = None) -> None:
        self.slider = QSlider(Qt.Orientation.Horizontal)
        super().__init__(self.slider, parent)
        self._dial = dial
        self.value = dial.off
        self.slider.setRange(0, STEPS)
        self.slider.setPageStep(STEPS // 10)
        self.slider.setSingleStep(STEPS // 200)
        self.slider.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.slider.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.slider.valueChanged.connect(self._slid)
        self.set_value(dial.off)

    def set_value(self, value: float) -> None:
        """Shows a value, also one beyond the slider's ends; tells nobody."""
        self.slider.blockSignals(True)
        self.slider.setValue(round(STEPS * min(max(self._dial.scale.to_place(value), 0.0), 1.0)))
        self.slider.blockSignals(False)
        self._name(value)

    def _slid(self, place: int) -> None:
        scale = self._dial.scale
        value = round(scale.to_value(place / STEPS), scale.digits)
        self._name(value)
        self.moved.emit(self._dial.setting, value)

    def _name(self, value: float) -> None:
        self.value = value
        digits = self._dial.scale.digits
        written = f"{value:,.0f}" if digits == 0 else f"{value:.{digits}f}".rstrip("0").rstrip(".") or "0"
        written = written.removeprefix("0") if written not in ("0", "") and written.startswith("0.") else written
        off = value == self._dial.off and self._dial.setting != "temperature"
        self.name.setText(f"{self._dial.words} {self.tr('off') if off else written}")
        self.slider.setAccessibleName(self._dial.words)
        self.slider.setAccessibleDescription(self.tr("off") if off else written)
