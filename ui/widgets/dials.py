"""Sampler settings as sliders, each with a scale of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct
from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QSizePolicy, QSlider

from ui.port import SAMPLER_STAGES

STEPS = 1000


class SliderScale(Struct, frozen=True):
    """Maps a slider's position (0 to 1) to a setting and back."""

    to_value: Callable[[float], float]
    to_place: Callable[[float], float]
    digits: int = 2


class Dial(Struct, frozen=True):
    """One sampler setting: its stage, its name in the window, the value that turns it off, and its scale."""

    setting: str
    stage: str
    words: str
    off: float
    scale: SliderScale
    always: bool  # shown even while it is off
    draws: bool  # its stage needs a random number


def linear(low: float, high: float) -> SliderScale:
    """A linear scale."""
    return SliderScale(lambda x: low + (high - low) * x, lambda value: (value - low) / (high - low))


def squared(high: float) -> SliderScale:
    """A square scale, finer towards 0."""
    return SliderScale(lambda x: high * x * x, lambda value: math.sqrt(max(value, 0.0) / high), digits=3)


def counts(most: int) -> SliderScale:
    """A logarithmic scale of whole numbers; its right end is 0, "off"."""

    def count_of(x: float) -> float:
        return 0.0 if x >= 1 else round(math.exp(x * math.log(most)))

    return SliderScale(count_of, lambda k: 1.0 if k == 0 else math.log(max(k, 1)) / math.log(most), digits=0)


_SCALES: dict[str, Callable[[float, float], SliderScale]] = {
    "linear": linear,
    "square": lambda _low, high: squared(high),
    "count": lambda _low, high: counts(int(high)),
}


DIALS = tuple(  # in the order of the stages
    Dial(
        each.name,
        spec.name,
        slider.label or each.label,
        float(each.default),
        _SCALES[slider.scale](slider.low, slider.high),
        slider.always,
        spec.draws is not None,
    )
    for spec in SAMPLER_STAGES
    for each in spec.parameters
    if (slider := each.slider) is not None
)


class DialSlider(QSlider):
    """A slider for one setting; emits its value, a whole number for counts."""

    moved = Signal(object)

    def __init__(self, dial: Dial) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.dial = dial
        self.setting = dial.off
        self.setRange(0, STEPS)
        self.setPageStep(STEPS // 10)
        self.setSingleStep(STEPS // 200)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # as numbers run, and as the style sheet fills it
        self.setAccessibleName(dial.words)
        self.valueChanged.connect(self._slid)
        self.show_setting(dial.off)

    def show_setting(self, value: float) -> None:
        """Shows a value, even beyond the slider's range; emits nothing."""
        with QSignalBlocker(self):
            self.setValue(round(STEPS * min(max(self.dial.scale.to_place(value), 0.0), 1.0)))
        self._hold(value)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the wheel scrolls the page

    @property
    def words(self) -> str:
        """The setting as text, such as ".85"."""
        if self.setting == self.dial.off and self.dial.setting != "temperature":
            return self.tr("off")
        digits = self.dial.scale.digits
        if digits == 0:
            return f"{self.setting:,.0f}"
        written = f"{self.setting:.{digits}f}".rstrip("0").rstrip(".")
        return written.removeprefix("0") or "0"

    def _slid(self, place: int) -> None:
        digits = self.dial.scale.digits
        value = round(self.dial.scale.to_value(place / STEPS), digits)
        self._hold(int(value) if digits == 0 else value)
        self.moved.emit(self.setting)

    def _hold(self, value: float) -> None:
        self.setting = value
        self.setAccessibleDescription(self.words)
