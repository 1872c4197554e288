"""Replays a draw: the random number on the cumulative probabilities, and the candidates after each stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.core.shown import Spot
from ui.port import SAMPLER_STAGES, Drawing, RuntimeFault, SamplingOptions, Stage, translate
from ui.theme.scheme import current_theme

HEIGHT, LINE_TOP, LINE_HEIGHT = 26, 10, 10
_GAP_PX = 1.0  # between two tokens
_LEAST_PX = 1.5  # narrower tokens are not drawn one by one


class DrawLine(QWidget):
    """Paints the final distribution as a line; the token that the random number u selects is in the accent colour."""

    def __init__(self) -> None:
        super().__init__()
        self._theme = current_theme()
        self._shares: tuple[float, ...] = ()
        self._u: float | None = None
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def show_draw(self, shares: Sequence[float], u: float | None, spoken: str) -> None:
        """Shows probabilities in descending order (their sum may be below 1) and the random number `u`."""
        self._shares, self._u = tuple(shares), u
        self.setAccessibleName(spoken)
        self.update()

    def hit(self) -> int | None:
        """The index of the token that u selects; None beyond the known tokens, or without u."""
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
    """The result of a draw or of its replay.

    Attributes:
        token: The id that is drawn; None if it depends on tokens that are not stored.
        stages: "raw", the enabled stages, "draw".
        whole: The whole vocabulary was known, or this is the original draw.
        as_drawn: Replayed with the original settings and random number.
        fault: Why there is no result; "" if there is one.
    """

    token: int | None
    stages: tuple[Stage, ...] = ()
    whole: bool = True
    as_drawn: bool = False
    fault: str = ""

    def stage(self, name: str) -> Stage | None:
        """The stage of that name; None if it is off."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def u(self) -> float | None:
        """The random number of the draw."""
        return self.stages[-1].u if self.stages else None


class Candidate(Struct, frozen=True):
    """One token and its probabilities, over all stages or over one of them.

    Attributes:
        token: Its id.
        before: Its probability before the first stage, or before the one stage.
        after: Its probability after the last stage, or after the one stage; 0 if it was cut.
        cut_by: The stage that removed it, or "".
        cumulative: The mass of the tokens up to it, before the first stage that cuts or before the one stage.
    """

    token: int
    before: float
    after: float
    cut_by: str
    cumulative: float


def replayed(spot: Spot, drawing: Drawing, sampling: SamplingOptions | None, row: Row | None) -> Outcome:
    """Replays the draw of a token.

    Args:
        spot: The token, with its record.
        drawing: How it was drawn, as far as that is stored.
        sampling: The settings of the sliders; None: the original ones.
        row: ``(vocab,)`` raw log-probabilities before the token; None: those that are stored with the token.
    """
    from ui.port.replay import replay_draw  # imported only when the Why tab is opened

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
    """Whether the record has all random numbers that these settings need."""
    known = {stage.name for stage in stages or () if stage.u is not None}
    random = (spec for spec in SAMPLER_STAGES if spec.draws is not None)
    switches = ((spec.name, each) for spec in random for each in spec.parameters if each.switch)
    needed = {name for name, each in switches if getattr(settings, each.name) not in (None, each.default)}
    return {"draw", *needed} <= known


def candidates(outcome: Outcome, most: int, always: int) -> list[Candidate]:
    """At most `most` tokens over all stages, by descending raw probability; `always` and the drawn token are among them."""
    if not outcome.stages:
        return []
    raw, last = outcome.stages[0], outcome.stages[-1]
    first = {token: p for token, p in zip(raw.ids, raw.after, strict=True) if p > 0}
    # the draw itself cuts tokens only in greedy decoding, and then all others
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
    """At most `most` tokens before and after one stage; `always` and the drawn token are among them, even if cut before."""
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
    """A token's probability after a stage; None if the stage is off or does not list it."""
    stage = outcome.stage(name)
    return None if stage is None else probability_after(stage, token)


def same_draw(one: Spot, other: Spot) -> bool:
    """Whether two spots are the same token with the same data for a replay."""
    mine, theirs = one.record, other.record
    if (one.node_id, one.index, mine.token_id) != (other.node_id, other.index, theirs.token_id):
        return False
    return (mine.stages, mine.logprob, mine.finish_reason) == (theirs.stages, theirs.logprob, theirs.finish_reason)
