"""The draw once more: the uniform number over the cumulated probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.core.shown import Spot
from ui.port import Drawing, RuntimeFault, SamplingOptions, Stage, translate
from ui.theme.scheme import current_theme

HEIGHT, LINE_TOP, LINE_HEIGHT = 26, 10, 10
_GAP_PX = 1.0  # between two tokens
_LEAST_PX = 1.5  # narrower ones are drawn as one rest


class DrawLine(QWidget):
    """Draws the last distribution in its order; the token that u falls on in the accent."""

    def __init__(self) -> None:
        super().__init__()
        self._theme = current_theme()
        self._shares: tuple[float, ...] = ()
        self._u: float | None = None
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def show_draw(self, shares: Sequence[float], u: float | None, spoken: str) -> None:
        """Shows probabilities by falling order (they need not add up to 1: the rest is beyond) and the number drawn."""
        self._shares, self._u = tuple(shares), u
        self.setAccessibleName(spoken)
        self.update()

    def hit(self) -> int | None:
        """The place of the token that u falls on; None beyond what is known, or without u."""
        if self._u is None:
            return None
        edge = 0.0
        for place, share in enumerate(self._shares):
            edge += share
            if self._u < edge:
                return place
        return None

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        palette, width = self._theme.palette, float(self.width() - 8)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(palette.hairline))
        painter.drawRoundedRect(QRectF(4, LINE_TOP, width, LINE_HEIGHT), 3, 3)
        hit, edge = self.hit(), 0.0
        for place, share in enumerate(self._shares):
            left, length = 4 + width * edge, width * share
            edge += share
            if length < _LEAST_PX and place != hit:
                continue
            painter.setBrush(QColor(palette.bar if place == hit else palette.bar_rest))
            painter.drawRoundedRect(QRectF(left, LINE_TOP, max(length - _GAP_PX, _LEAST_PX), LINE_HEIGHT), 2, 2)
        if self._u is not None:
            x = 4 + width * self._u
            painter.setBrush(QColor(palette.text))
            painter.drawPolygon(QPolygonF([QPointF(x - 4, 2), QPointF(x + 4, 2), QPointF(x, LINE_TOP - 1)]))
            painter.drawRect(QRectF(x - 0.5, LINE_TOP - 2, 1, LINE_HEIGHT + 4))
        painter.end()


Row = npt.NDArray[np.float32]
EDITING = ("grammar", "bias", "penalties", "dry")


class Outcome(Struct, frozen=True):
    """What a draw gave, or would give.

    Attributes:
        token: The id that is drawn; None where it depends on tokens that are not stored.
        stages: "raw", those that are on, "draw".
        whole: Every token of the vocabulary was there, or it is the draw as it was.
        as_drawn: With the settings and the number it was drawn with.
        fault: Why nothing came out ("" where something did).
    """

    token: int | None
    stages: tuple[Stage, ...] = ()
    whole: bool = True
    as_drawn: bool = False
    fault: str = ""

    def stage(self, name: str) -> Stage | None:
        """The stage of that name; None where it is off."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def u(self) -> float | None:
        """The number that decided."""
        return self.stages[-1].u if self.stages else None


class Candidate(Struct, frozen=True):
    """One token on its way through the stages.

    Attributes:
        token: Its id.
        before: Its probability before the first stage; of one stage: before that one.
        after: After the last, or after that one; 0 where it was cut.
        cut_by: The stage that removed it, or "".
        cumulative: Mass of those up to it when the first stage that cuts, or that one, looked at them.
    """

    token: int
    before: float
    after: float
    cut_by: str
    cumulative: float


def replayed(spot: Spot, drawing: Drawing, sampling: SamplingOptions | None, row: Row | None) -> Outcome:
    """The draw of a spot again.

    Args:
        spot: The token, with its record.
        drawing: What is known of how it was drawn.
        sampling: The sliders' settings; None: as it was drawn.
        row: ``(vocab,)`` raw log-probabilities before the token, where they are here; else what is stored counts.
    """
    from ui.port.replay import replay_draw  # waits until a token's Why is looked at

    record = spot.record
    if record.stages is None and row is None:
        return Outcome(None, fault=translate("Stages", "its stages were not stored"))
    try:
        if sampling is None and record.stages is not None:
            found = replay_draw(record)
            return Outcome(found.token, found.stages, as_drawn=True)
        settings = sampling if sampling is not None else drawing.sampling
        if settings is None:
            return Outcome(None, fault=translate("Stages", "the settings it was drawn with were not stored"))
        source = record if row is None else row
        found = replay_draw(
            source,
            settings,
            seed=drawing.seed if row is not None or not _has_number(record.stages, settings) else None,
            position=drawing.position,
            branch=drawing.branch,
            history=drawing.history,
            shift=record.shift,
        )
    except RuntimeFault as fault:  # settings that make no sense together, bans that leave nothing
        return Outcome(None, fault=str(fault))
    return Outcome(found.token, found.stages, found.whole)


def _has_number(stages: Sequence[Stage] | None, settings: SamplingOptions) -> bool:
    """Whether the record has the random numbers that these settings draw."""
    known = {stage.name for stage in stages or () if stage.u is not None}
    return "draw" in known and ("xtc" in known or not settings.xtc_probability)


def candidates(outcome: Outcome, most: int, always: int) -> list[Candidate]:
    """The likeliest tokens of the raw distribution and of the last one, by falling raw probability; `always` is among them."""
    if not outcome.stages:
        return []
    raw, last = outcome.stages[0], outcome.stages[-1]
    first = {token: p for token, p in zip(raw.ids, raw.after, strict=True) if p > 0}
    # the draw itself cuts nothing but in greedy decoding, where all else goes with it
    final = dict(zip(last.ids, last.after, strict=True))
    cutting = next((s for s in outcome.stages[1:] if s.name not in (*EDITING, "temperature")), last)
    cumulative = dict(zip(cutting.ids, cutting.cumulative, strict=True))
    order = sorted(first, key=lambda token: (-first[token], token))
    chosen = order[:most]
    for token in (always, outcome.token):
        if token is not None and token in first and token not in chosen:
            chosen = [*chosen[: most - 1], token]
    made = [Candidate(t, first[t], final.get(t, 0.0), _cut_by(outcome.stages, t), cumulative.get(t, 1.0)) for t in chosen]
    return sorted(made, key=lambda c: (-c.before, c.token))


def at_stage(outcome: Outcome, name: str, most: int, always: int) -> list[Candidate]:
    """The likeliest tokens that one stage found, in its order; `always` is among them, also where it was cut before."""
    stage = outcome.stage(name)
    if stage is None:
        return []
    rows = list(zip(stage.ids, stage.before, stage.after, stage.cumulative, strict=True))
    chosen = [row for row in rows if row[1] > 0][:most]
    shown = {row[0] for row in chosen}
    for row in rows:
        if row[0] in (always, outcome.token) and row[0] not in shown:
            chosen = [*chosen[: most - 1], row]
    made = [
        Candidate(token, before, after, _cut_by(outcome.stages, token) if not after else "", cumulative)
        for token, before, after, cumulative in chosen
    ]
    return sorted(made, key=lambda c: (-c.before, c.token))


def _cut_by(stages: Sequence[Stage], token: int) -> str:
    return next((stage.name for stage in stages if probability_after(stage, token) == 0.0), "")


def probability_after(stage: Stage, token: int) -> float | None:
    """A token's probability after a stage; None if the stage does not list it."""
    return stage.after[stage.ids.index(token)] if token in stage.ids else None


def share_of(outcome: Outcome, name: str, token: int) -> float | None:
    """A token's probability after a stage; None where the stage is off or does not know it."""
    stage = outcome.stage(name)
    return None if stage is None else probability_after(stage, token)


def same_draw(one: Spot, other: Spot) -> bool:
    """Whether nothing that is replayed differs."""
    mine, theirs = one.record, other.record
    if (one.node_id, one.index, mine.token_id) != (other.node_id, other.index, theirs.token_id):
        return False
    return (mine.stages, mine.logprob, mine.finish_reason) == (theirs.stages, theirs.logprob, theirs.finish_reason)
