"""Turns that are alike: what the parts ask for, and what is shown then."""

from __future__ import annotations

from PySide6.QtCore import QObject

from ui.actions import Actions, connect
from ui.desk import Desk
from ui.frame import Frame
from ui.similar.stage import SimilarStage


def wire_similar(desk: Desk, parts: Frame, acts: Actions, parent: QObject) -> None:
    """The panel, the menu, the line under each turn."""
    similar, panel = desk.similar, parts.similar
    stage = SimilarStage(desk, parts, acts, parent)
    connect(acts.similar, stage.look)
    parts.transcript.similar_requested.connect(similar.look)
    similar.began.connect(lambda words, pooling, other: panel.begin(words, pooling, other=other))
    similar.progressed.connect(panel.show_progress)
    similar.found.connect(panel.show_found)
    similar.failed.connect(lambda words, needs_model: panel.say(words, needs_model=needs_model))
    similar.left.connect(panel.dismiss)
    panel.pooling_chosen.connect(similar.choose_pooling)
    panel.again_wanted.connect(similar.look_again)
    panel.model_wanted.connect(desk.models.ask_menu)
    panel.chosen.connect(lambda _node_id: parts.compare.dismiss())  # a turn is shown in the conversation
    panel.chosen.connect(desk.tree.go_to)
    panel.closed.connect(stage.close)
    panel.focus_lost.connect(parts.transcript.setFocus)
    desk.tree.turn_shown.connect(parts.transcript.go_to)
