"""A palette as the brushes and pens that painting needs, made once per palette."""

from __future__ import annotations

from dataclasses import dataclass, field

from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QColor, QPen

from ui.theme.palette import Palette
from ui.transcript.stamps import Stamps


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours ready to paint with."""

    palette: Palette
    diverging: bool = False  # spans are of the palette's `difference` rather than its `surprise`
    window: QColor = field(init=False)
    text: QColor = field(init=False)
    soft: QColor = field(init=False)
    faint: QColor = field(init=False)
    hairline: QColor = field(init=False)
    accent: QColor = field(init=False)
    disk: QColor = field(init=False)
    selection: QColor = field(init=False)
    steps: tuple[QBrush | None, ...] = field(init=False)
    strongest: int | None = field(init=False)  # the step whose text has a colour of its own
    stamps: Stamps = field(init=False)
    rare: QPen = field(init=False)  # the underline of tokens beyond rank 10
    pin: QPen = field(init=False)
    on_strongest: QColor = field(init=False)
    template: QColor = field(init=False)  # words of the template: between text and soft, to be read on every step but the last

    def __post_init__(self) -> None:
        p = self.palette
        for name in ("window", "text", "soft", "faint", "hairline", "accent", "disk"):
            object.__setattr__(self, name, QColor(getattr(p, name)))
        selection = QColor(p.accent)
        selection.setAlphaF(0.26)
        object.__setattr__(self, "selection", selection)
        ramp = p.difference if self.diverging else p.surprise
        object.__setattr__(self, "steps", tuple(None if c is None else QBrush(QColor(c)) for c in ramp))
        object.__setattr__(self, "strongest", None if self.diverging else len(ramp) - 1)
        object.__setattr__(self, "stamps", Stamps(self.steps))
        object.__setattr__(self, "rare", QPen(QColor(p.text), 1))
        pin = QPen(self.accent, 2)
        pin.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        object.__setattr__(self, "pin", pin)
        object.__setattr__(self, "on_strongest", QColor(p.on_strongest))
        object.__setattr__(self, "template", _between(self.text, self.soft))


def _between(one: QColor, other: QColor) -> QColor:
    return QColor(*((getattr(one, part)() + getattr(other, part)()) // 2 for part in ("red", "green", "blue")))
