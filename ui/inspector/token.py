"""The tab of one token: its numbers, its alternatives, and a summary of its draw."""

from __future__ import annotations

import math
from functools import partial
from itertools import accumulate

from PySide6.QtCore import Signal
from PySide6.QtGui import QFont

from ui.comparison.model_rows import ComparedRows
from ui.core.shown import Spot
from ui.inspector import words
from ui.inspector.alternatives import Alternative, AlternativeList, BeamRows, CountButtons
from ui.inspector.replay import probability_after
from ui.inspector.stage_rows import cut_words
from ui.inspector.tab import BytesOf, Empty, FactGrid, InspectorTab
from ui.port import QT_TRANSLATE_NOOP, Drawing, EngineState, Origin, StatusView, TokenRecord, translate
from ui.theme.fonts import interface_font, mono_font
from ui.widgets.controls import button, column_in, fill, row
from ui.widgets.labels import Caption, ElidedLabel, Hairline, Label
from ui.widgets.numbers import UNKNOWN, probability


class WhyFacts(FactGrid):
    """The raw probability of a token, its origin, its probability after each stage, and its random number.

    Args:
        stages: Whether to show the stages.
    """

    def __init__(self, *, stages: bool = True) -> None:
        super().__init__(columns=1)
        self._has_stages = stages

    def show_spot(self, spot: Spot) -> None:
        record = spot.record
        facts = {self.tr("came from"): self.origin(record.origin)}
        if record.logprob is not None:
            facts = {self.tr("raw"): words.likely(record.logprob), **facts}
        facts |= self._stages(record) if self._has_stages else {}
        if spot.draw is not None:
            facts[self.tr("drawn")] = f"u = {words.share(spot.draw)}"
        if record.finish_reason is not None:
            facts[self.tr("ended the answer")] = record.finish_reason.replace("_", " ")
        self.show_facts(facts)

    def _stages(self, record: TokenRecord) -> dict[str, str]:
        shares: dict[str, str] = {}
        for stage in (record.stages or ())[1:-1]:
            after = probability_after(stage, record.token_id)
            if after is not None:
                shares[self.tr("after {0}").format(cut_words(stage.name))] = probability(after) if after else self.tr("cut")
        return shares

    def origin(self, origin: Origin) -> str:
        return {
            Origin.TEMPLATE: self.tr("the chat template"),
            Origin.TYPED: self.tr("typed by you"),
            Origin.SAMPLED: self.tr("sampled by the model"),
            Origin.PICKED: self.tr("picked by you"),
            Origin.GRAMMAR: self.tr("forced by the grammar"),
            Origin.IMPORTED: self.tr("imported"),
        }[origin]


MOST_SHOWN = 10
FORBIDDING = {  # stages that forbid tokens, and the words beside a forbidden candidate
    "grammar": QT_TRANSLATE_NOOP("Stages", "not allowed by the format"),
    "bias": QT_TRANSLATE_NOOP("Stages", "banned"),
}


class TokenTab(InspectorTab):
    """Shows a `Spot`; asks for the model of its numbers if that may be on a server, or not the model in use."""

    title = QT_TRANSLATE_NOOP("Inspector", "Token")
    preview_wanted = Signal(int, int, int)  # node id, index, token id
    columns_wanted = Signal(int, int, int, bool)  # node id, index, how many, whether by a beam search

    def __init__(self) -> None:
        super().__init__()
        self.spot: Spot | None = None
        self._status = StatusView(EngineState.NONE)
        self._asked: tuple[int, int] | None = None  # the place whose drawing was asked for
        self.source = Label("", "soft", interface_font(11.5), wraps=True)
        self.source.hide()
        self.empty = Empty(self.tr("Click a token to see its numbers and what else was likely."))
        self.large = ElidedLabel("", "", mono_font(21, QFont.Weight.DemiBold))
        self.facts = FactGrid()
        self.unscored = Label("", "soft", wraps=True)
        self.score_button = button(self.tr("Score the session"), "link")
        self.alternatives = AlternativeList()
        self.alternatives.chosen.connect(self._choose)
        self.alternatives.previewed.connect(self._preview)
        self.draws, self.beam_rows = CountButtons(self.tr("continuations from here")), BeamRows()
        self.beams = self.beam_rows.ways
        self.draws.wanted.connect(lambda count: self._continue(count, beams=False))
        self.beams.wanted.connect(lambda count: self._continue(count, beams=True))
        self.lacking = Label("", "soft", wraps=True)
        self.lacking.hide()
        self.why = WhyFacts()
        self.compared = ComparedRows()
        column = column_in(self, self.empty, self.large, self.source, spacing=0, margins=(16, 12, 16, 16))
        column.addSpacing(8)
        fill(column, self.facts, self.unscored, row(self.score_button, 1))
        column.addSpacing(14)
        column.addWidget(self.compared)
        column.addWidget(self.alternatives)
        column.addSpacing(12)
        column.addWidget(self.draws)
        column.addSpacing(6)
        column.addWidget(self.beam_rows)
        column.addWidget(self.lacking)
        column.addSpacing(14)
        self._parts = (self.large, self.facts, self.alternatives, self.why)
        self._line, self._caption = Hairline(), Caption(self.tr("Why this one"))
        column.addWidget(self._line)
        column.addSpacing(10)
        column.addWidget(self._caption)
        column.addSpacing(6)
        column.addWidget(self.why)
        column.addStretch(1)
        self.show_status(self._status)
        self.show_spot(None, lambda _ids: [], can_choose=False)

    def show_spot(
        self, spot: Spot | None, vocabulary: BytesOf, *, can_choose: bool = False, can_continue: bool = False
    ) -> None:
        self.spot = spot
        for part in (*self._parts, self._line, self._caption):
            part.setVisible(spot is not None)
        self.empty.setVisible(spot is None)
        lacks_numbers = spot is not None and spot.record.logprob is None
        self.unscored.setVisible(lacks_numbers)
        self.score_button.setVisible(lacks_numbers)
        for ways in (self.draws, self.beam_rows):
            ways.setVisible(spot is not None and can_continue)
        self._show_lacking()
        self.refresh()
        if spot is None:
            return
        record = spot.record
        self.large.setText(words.token(record.token_bytes))
        self.facts.show_facts(self._facts(record))
        self.alternatives.show_alternatives(alternatives_of(record, vocabulary), can_choose=can_choose)
        self.why.show_spot(spot)

    def show_status(self, status: StatusView) -> None:
        self.beam_rows.setEnabled(not status.lacking("beams"))
        self.lacking.setText(status.lacking("branch") or status.lacking("beams"))
        self._show_lacking()
        if (status.model, status.written_by) != (self._status.model, self._status.written_by):
            self._asked = None
            self.source.hide()
        self._status = status
        self.refresh()
        unscored = self.tr("Not scored: nothing precedes it, or the model has not read it yet.")
        self.unscored.setText(" ".join(filter(None, (unscored, status.lacking("score")))))

    def show_drawing(self, node_id: int, index: int, drawing: Drawing | None) -> None:
        """Shows the model of the numbers, if the place is still shown."""
        if drawing is not None and drawing.model and (node_id, index) == self._asked:
            self.source.setText(self.tr("numbers of {0}").format(drawing.model))
            self.source.show()

    def refresh(self) -> None:
        """Asks once per place, while the tab is visible, unless the status bar names the one model of all numbers."""
        spot, status = self.spot, self._status
        named = spot is not None and spot.record.logprob is not None and (status.lacking("server") or status.written_by)
        place = (spot.node_id, spot.index) if spot is not None and named else None
        if place != self._asked:
            self.source.hide()
            self._asked = place if self.isVisible() else None
            if self._asked is not None:
                node_id, index = self._asked
                self.request(
                    "drawing",
                    lambda workbench, session: workbench.drawings.find(session, node_id, index),
                    partial(self.show_drawing, node_id, index),
                )

    def _show_lacking(self) -> None:
        self.lacking.setVisible(self.spot is not None and bool(self.lacking.text()))

    def _facts(self, record: TokenRecord) -> dict[str, str]:
        identity = {self.tr("id"): str(record.token_id), self.tr("bytes"): words.hexadecimal(record.token_bytes)}
        if record.logprob is None:
            return identity
        held = len(record.top_ids)
        return {
            self.tr("probability"): words.likely(record.logprob),
            self.tr("rank"): UNKNOWN if record.rank is None else f"{record.rank:,}",
            self.tr("logprob"): words.in_nats(record.logprob),
            self.tr("surprise"): words.in_bits(-record.logprob),
            self.tr("entropy"): words.in_bits(record.entropy),
            self.tr("top-{0} mass").format(held): words.percent(record.covered_mass),
            **identity,
        }

    def _continue(self, count: int, *, beams: bool) -> None:
        if self.spot is not None:
            self.columns_wanted.emit(self.spot.node_id, self.spot.index, count, beams)

    def _preview(self, token_id: int) -> None:
        if self.spot is not None:
            self.preview_wanted.emit(self.spot.node_id, self.spot.index, token_id)

    def _choose(self, token_id: int) -> None:
        if self.spot is not None:
            self.alternative_chosen.emit(self.spot.node_id, self.spot.index, token_id)


def forbidden(record: TokenRecord, token_id: int) -> str:
    """Why a candidate was forbidden whatever its probability; "" if it was not, or that is not stored."""
    for stage in record.stages or ():
        if stage.name in FORBIDDING and any(i == token_id and p == 0.0 for i, p in zip(stage.ids, stage.after, strict=True)):
            return translate("Stages", FORBIDDING[stage.name])
    return ""


def alternatives_of(record: TokenRecord, vocabulary: BytesOf) -> list[Alternative]:
    """The likeliest candidates of a token's place; the token itself comes last if it is not among them."""
    if not record.top_ids:
        return []
    ids, logprobs = record.top_ids[:MOST_SHOWN], record.top_logprobs[:MOST_SHOWN]
    known = list(vocabulary(ids)) or [b""] * len(ids)
    first = logprobs[0]
    mass = list(accumulate(math.exp(logprob) for logprob in logprobs))
    made = [
        Alternative(
            token_id,
            record.token_bytes if token_id == record.token_id else data or f"#{token_id}".encode(),
            logprob,
            place,
            math.exp(logprob - first),
            chosen=token_id == record.token_id,
            forbidden=forbidden(record, token_id),
            so_far=mass[place - 1],
        )
        for place, (token_id, logprob, data) in enumerate(zip(ids, logprobs, known, strict=True), 1)
    ]
    if record.token_id not in ids and record.logprob is not None and record.rank is not None:
        share = math.exp(record.logprob - first)
        made.append(Alternative(record.token_id, record.token_bytes, record.logprob, record.rank, share, chosen=True))
    return made
