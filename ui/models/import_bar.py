"""The question in which form the weights of a GGUF file are taken in."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from ui.models.choice_bar import ChoiceBar
from ui.numbers import size
from ui.port import GgufPlan, translate
from ui.transcript.visible import one_line

KEPT, FLOAT32 = range(2)


class ImportBar(ChoiceBar):
    """Hidden until there is a file; one of which mlx can keep nothing as it is packed is not asked about."""

    wanted = Signal(object, bool)  # the path; whether its weights stay quantised

    def __init__(self, home: QWidget) -> None:
        labels = [translate("ImportBar", "as packed, for mlx"), translate("ImportBar", "float32, for every engine")]
        super().__init__(home, translate("ImportBar", "Weights"), labels, translate("ImportBar", "Import"))
        self._plan: GgufPlan | None = None
        self.agreed.connect(self._go_on)

    def ask_form(self, plan: GgufPlan) -> None:
        """Asks, or goes on where there is nothing to choose."""
        self._plan = plan
        if not plan.kept:
            self._go_on(FLOAT32)
            return
        question = self.tr(
            "{0}: kept as packed its weights take {1} and run on mlx alone; in float32 they take {2} and run on every engine. "
            "Their numbers are the same."
        ).format(one_line(plan.path.name), size(plan.kept), size(plan.float32))
        note = f" {one_line(plan.note)}." if plan.note else ""
        self.ask_about(question + note, KEPT if plan.keeps else FLOAT32)

    def _go_on(self, place: int) -> None:
        assert self._plan is not None
        self.wanted.emit(self._plan.path, place == KEPT)
