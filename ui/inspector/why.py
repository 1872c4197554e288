"""The tab that replays a draw: the effect of each stage, and of other settings with the same random number."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QPushButton

from ui.controller import Controller
from ui.core.shown import Spot
from ui.inspector import words
from ui.inspector.provenance import SamplerRows
from ui.inspector.replay import Candidate, DrawLine, Outcome, Row, at_stage, candidates, replayed, same_draw
from ui.inspector.stage_rows import CandidateLine, Candidates, cut_words, stage_words
from ui.inspector.tab import BytesOf, Empty, InspectorTab
from ui.inspector.token import WhyFacts
from ui.port import QT_TRANSLATE_NOOP, Drawing, EngineState, Origin, SamplingOptions, StatusView
from ui.theme.fonts import interface_font, mono_font
from ui.widgets.controls import button, column_in, row
from ui.widgets.labels import Caption, ElidedLabel, Label, Notice
from ui.widgets.numbers import count

MOST_CANDIDATES = 12


class WhyTab(InspectorTab):
    """Shows a `Spot`; asks for its `Drawing` once the tab is visible, and for the whole row when the button is pressed."""

    title = QT_TRANSLATE_NOOP("Inspector", "Why")
    row_wanted = Signal(int, int)  # node id, index

    def __init__(self) -> None:
        super().__init__()
        self._spot: Spot | None = None
        self._drawing: Drawing | None = None
        self._row: Row | None = None
        self._asked = False  # for the drawing of this spot
        self._can_choose = False
        self._engine: EngineState | None = None  # as of the last status
        self._vocabulary: BytesOf = lambda _ids: []
        self.outcome = Outcome(None)
        self.empty = Empty(self.tr("Click a token to see how it was chosen."))
        self.large = ElidedLabel("", "", mono_font(17, QFont.Weight.DemiBold))
        self.why = WhyFacts(stages=False)
        self.source = Label("", "soft", interface_font(11.5), wraps=True)
        self.stale = Notice()
        self.missing = Label("", "soft", wraps=True)
        self.dials = SamplerRows()
        self.dials.changed.connect(lambda _sampling: self._replay())
        self.dials.chosen.connect(lambda _stage: self._show_table())
        self.line = DrawLine()
        self.verdict = Label("", "", interface_font(13, QFont.Weight.Medium), wraps=True)
        self.branch = button("")
        self.branch.clicked.connect(lambda _checked=False: self._branch())
        self.note = Label("", "soft", interface_font(11.5), wraps=True)
        self.reset = self._link(self.tr("as drawn"), self._as_drawn)
        self.ask = self._link(self.tr("get every probability from the model"), self._ask)
        self.table = Candidates()
        self.did = Label("", "soft", interface_font(11.5), wraps=True)  # describes the chosen stage
        self._stages, self._among = Caption(self.tr("Stages · click one to see its effect")), Caption("")
        self._lay_out()
        self._show()

    def _link(self, text: str, pressed: object) -> QPushButton:
        made = button(text, "link")
        made.setFont(interface_font(12))
        made.clicked.connect(lambda _checked=False: pressed())  # type: ignore[operator]  # a method of ours
        return made

    def _lay_out(self) -> None:
        column = column_in(self, spacing=0, margins=(16, 14, 16, 16))
        links = row(self.reset, self.ask, 1, spacing=14)
        for part, after in (
            (self.empty, 0), (self.large, 2), (self.source, 8), (self.stale, 8), (self.why, 10), (self.missing, 6),
            (self._stages, 4), (self.dials, 6), (self.line, 2), (self.verdict, 3), (self.note, 3),
        ):  # fmt: skip
            column.addWidget(part)
            column.addSpacing(after)
        column.addWidget(self.branch, 0, Qt.AlignmentFlag.AlignLeft)
        column.addSpacing(3)
        column.addLayout(links)
        column.addSpacing(14)
        column.addWidget(self._among)
        column.addSpacing(4)
        column.addWidget(self.did)
        column.addSpacing(2)
        column.addWidget(self.table)
        column.addStretch(1)

    # ---- what is shown --------------------------------------------------------------------------------------------

    def bind(self, controller: Controller) -> None:
        super().bind(controller)
        self.row_wanted.connect(controller.draws.ask_row)
        controller.draws.row_found.connect(self.show_row)
        controller.draws.row_refused.connect(self.say)

    def show_status(self, status: StatusView) -> None:
        """Asks for the drawing again when another model may run."""
        if status.engine is not self._engine:
            self._engine, self._asked = status.engine, False
            self.refresh()

    def show_spot(
        self, spot: Spot | None, vocabulary: BytesOf, *, can_choose: bool = False, can_continue: bool = False
    ) -> None:
        """Shows a token; for the same token, the sliders stay."""
        del can_continue  # for other tabs
        held, self._spot, self._vocabulary = self._spot, spot, vocabulary
        self._can_choose = can_choose
        if held is not None and spot is not None and same_draw(held, spot):
            self._offer_branch()
            return
        self._drawing, self._row, self._asked = None, None, False
        self._show()
        self.refresh()

    def refresh(self) -> None:
        """Asks for the drawing, while the tab is visible."""
        if self._spot is not None and not self._asked and self.isVisible():
            self._asked = True
            node_id, index = self._spot.node_id, self._spot.index
            self.request(
                "drawing",
                lambda workbench, session: workbench.drawings.find(session, node_id, index),
                partial(self.show_drawing, node_id, index),
            )

    def show_drawing(self, node_id: int, index: int, drawing: Drawing | None) -> None:
        """Shows how the token was drawn, if that token is still shown."""
        if not self._is_at(node_id, index) or drawing is None:
            return
        known, self._drawing = self._drawing, drawing
        if known is None or known.sampling != drawing.sampling:
            self._as_drawn()
        self._show()

    def show_row(self, node_id: int, index: int, row: Row) -> None:
        """Takes the whole distribution of the place."""
        if self._is_at(node_id, index):
            self._row = row
            self._replay()

    def say(self, refusal: str) -> None:
        """Shows why there is no row."""
        self.note.setText(refusal)
        self.note.show()

    def _is_at(self, node_id: int, index: int) -> bool:
        return self._spot is not None and (self._spot.node_id, self._spot.index) == (node_id, index)

    def _show(self) -> None:
        spot, drawing = self._spot, self._drawing
        self.empty.setVisible(spot is None)
        for part in (self.large, self.why):
            part.setVisible(spot is not None)
        self.source.setVisible(drawing is not None and bool(drawing.model))
        self.stale.clear()
        if spot is not None:
            self.large.setText(words.token(spot.record.token_bytes))
            self.why.show_spot(spot)
        if drawing is not None:
            said = [self.tr("numbers of {0}").format(drawing.model)]
            if drawing.seed is not None:
                said.append(self.tr("seed {0}, position {1}").format(drawing.seed, count(drawing.position)))
            if drawing.beams:
                said.append(self.tr("found by a beam search of {0} beams").format(drawing.beams))
            self.source.setText(" · ".join(said))
        if drawing is not None and drawing.stale:
            self.stale.say(self.tr("outdated: {0} is in use now and may differ").format(drawing.stale))
        self._replay()

    # ---- the draw again -------------------------------------------------------------------------------------------

    def _as_drawn(self) -> None:
        drawing, spot = self._drawing, self._spot
        if drawing is None or spot is None:
            return
        numbers = {stage.name for stage in spot.record.stages or () if stage.u is not None}
        self.dials.set_sampling(drawing.sampling or SamplingOptions(), numbers if drawing.seed is None else None)
        self._replay()

    def _offer_branch(self) -> None:
        """Offers a branch to the token that the sliders would draw instead."""
        spot, token = self._spot, self.outcome.token
        offered = spot is not None and self._can_choose and not self.outcome.fault and self.verdict.isVisibleTo(self)
        if spot is None or not offered or token in (None, spot.record.token_id):
            self.branch.hide()
            return
        self.branch.setText(self.tr("Branch to {0}").format(words.token(self._bytes_of(token, spot))).replace("&", "&&"))
        self.branch.show()

    def _branch(self) -> None:
        if self._spot is not None and self.outcome.token is not None:
            self.alternative_chosen.emit(self._spot.node_id, self._spot.index, self.outcome.token)

    def _ask(self) -> None:
        if self._spot is not None:
            self.row_wanted.emit(self._spot.node_id, self._spot.index)

    def _replay(self) -> None:
        spot, drawing = self._spot, self._drawing
        record = None if spot is None else spot.record
        replays = record is not None and drawing is not None and (record.stages is not None or self._row is not None)
        for part in (self._stages, self.dials, self.line, self.verdict, self._among, self.table, self.did):
            part.setVisible(replays)
        self.missing.setVisible(spot is not None and drawing is not None and not replays)
        self.ask.setVisible(self._can_ask())
        if spot is None or drawing is None or record is None or not replays:
            self.note.hide()
            self.reset.hide()
            self.branch.hide()
        if spot is None or drawing is None or record is None:
            return
        if not replays:
            self.missing.setText(self._why_not(record.origin))
            return
        changed = drawing.sampling is None or self.dials.sampling != drawing.sampling
        settings = self.dials.sampling if changed or record.stages is None else None
        if drawing.sampling is None and self.dials.sampling == SamplingOptions() and record.stages is not None:
            settings, changed = None, False  # sliders untouched: the original draw
        row = self._row if settings is not None else None
        self.outcome = replayed(spot, drawing, settings, row)
        self.reset.setVisible(changed)
        self._show_outcome(spot)

    def _can_ask(self) -> bool:
        """Whether the model of these numbers runs and could give the whole row; not with a grammar, which it does not know."""
        spot, drawing = self._spot, self._drawing
        if spot is None or drawing is None or not drawing.can_ask or self._row is not None:
            return False
        return drawing.position > 0 and all(stage.name != "grammar" for stage in spot.record.stages or ())

    def _show_outcome(self, spot: Spot) -> None:
        outcome, record = self.outcome, spot.record
        self.dials.show_outcome(outcome, record.token_id)
        self.verdict.setText(self._verdict(outcome, spot))
        self._offer_branch()
        notes = [] if outcome.whole or outcome.fault else [self._stored_head()]
        if self._drawing is not None and self._drawing.sampling is None:
            unknown = self.tr("its settings were not stored: every slider starts at off")
            searched = self.tr("the sliders show what sampling would have done here; every slider starts at off")
            notes.append(searched if self._drawing.beams else unknown)
        self.note.setText("\n".join(notes))
        self.note.setVisible(bool(notes))
        for part in (self.line, self.table, self._among):
            part.setVisible(bool(outcome.stages))
        if outcome.stages:
            last = outcome.stages[-1]
            ranked = sorted(zip(last.after, last.ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
            self.line.show_draw([share for share, _ in ranked if share > 0], outcome.u, self.verdict.text())
        self._show_table()

    def _show_table(self) -> None:
        """Shows the candidates over all stages, or before and after the chosen one."""
        outcome, spot = self.outcome, self._spot
        stage = outcome.stage(self.dials.stage)
        self.did.setVisible(stage is not None and self.table.isVisibleTo(self))
        if spot is None or not outcome.stages:
            return
        token = spot.record.token_id
        if stage is None:
            self._among.setText(self.tr("Candidates · line: mass so far"))
            self._show_lines(candidates(outcome, MOST_CANDIDATES, token), spot, "")
            return
        self._among.setText(self.tr("{0} · line: mass so far").format(cut_words(stage.name)))
        self.did.setText(stage_words(outcome, stage, self.dials.sampling))
        self._show_lines(at_stage(outcome, stage.name, MOST_CANDIDATES, token), spot, stage.name)

    def _show_lines(self, shown: Sequence[Candidate], spot: Spot, stage: str) -> None:
        outcome, record = self.outcome, spot.record
        data = list(self._vocabulary([one.token for one in shown])) or [b""] * len(shown)
        lines = [
            CandidateLine(
                record.token_bytes if one.token == record.token_id else known or f"#{one.token}".encode(),
                one,
                pinned=one.token == record.token_id,
                drawn=one.token == outcome.token,
            )
            for one, known in zip(shown, data, strict=True)
        ]
        self.table.show_lines(lines, stage)

    def _verdict(self, outcome: Outcome, spot: Spot) -> str:
        record = spot.record
        if outcome.fault:
            return outcome.fault
        if outcome.token is None:
            return self.tr("Draws a token that is not among the {0} stored.").format(len(record.top_ids))
        drawn = words.token(self._bytes_of(outcome.token, spot))
        where = self.tr("The likeliest") if outcome.u is None else self.tr("u = {0}").format(words.share(outcome.u))
        if outcome.as_drawn:
            if outcome.token == record.token_id:
                return self.tr("{0}: drew {1}.").format(where, drawn)
            return self.tr("{0}: the sampler drew {1}.").format(where, drawn)
        if outcome.token == record.token_id:
            return self.tr("{0}: draws {1} again.").format(where, drawn)
        return self.tr("{0}: would draw {1} instead.").format(where, drawn)

    def _bytes_of(self, token_id: int, spot: Spot) -> bytes:
        if token_id == spot.record.token_id:
            return spot.record.token_bytes
        known: Sequence[bytes] = self._vocabulary([token_id])
        return (known[0] if known else b"") or f"#{token_id}".encode()

    def _stored_head(self) -> str:
        held = len(self.outcome.stages[0].ids) if self.outcome.stages else 0
        return self.tr("based on the {0} likeliest tokens, which are stored; the others count as equally likely").format(held)

    def _why_not(self, origin: Origin) -> str:
        if self._drawing is not None and self._drawing.beams and origin is not Origin.TEMPLATE:
            return self.tr("Found by beam search: no token was sampled, the most probable sequence was kept.")
        if origin in (Origin.SAMPLED, Origin.GRAMMAR, Origin.PICKED):
            return self.tr("No sampler stages are stored with this token. A model on a server draws its tokens there.")
        return self.tr("No sampler was used here.")
