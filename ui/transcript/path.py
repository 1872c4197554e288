"""The turns of the path that is shown, as both renderings draw them."""

from __future__ import annotations

from collections.abc import Sequence

from runtime import TokenRecord
from ui.port import SessionView
from ui.second.compared import Compared
from ui.transcript.measure import Measure
from ui.transcript.turn import Turn, has_own_words, is_same


class Path:
    """Turns that stay on the path keep their objects, and with them their layout.

    Attributes:
        turns: In order; a system turn that only the template brought is left out unless the template is shown.
        view: What they were made of; None before a session is shown.
        measure: The number that colours tokens.
        template: Whether what the chat template added is shown.
        compared: The numbers of a second model; None where none are known.
        shows_difference: They colour tokens, in the place of `measure`.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.view: SessionView | None = None
        self.measure = Measure.SURPRISAL
        self.template = False
        self.compared: Compared | None = None
        self.shows_difference = False

    def take(self, view: SessionView) -> Sequence[int]:
        """Takes a session, or another path of it; the places of turns that were there and changed."""
        held = {turn.node_id: turn for turn in self.turns} if self.is_of(view) else {}
        turns: list[Turn] = []
        changed: list[int] = []
        for turn_view in view.turns:
            if turn_view.role == "system" and not self.template and not has_own_words(turn_view.run):
                continue
            turn = held.get(turn_view.node_id)
            if turn is None:
                turn = Turn(turn_view, self.measure)
                self._lay_over(turn)
            elif not is_same(turn, turn_view):
                turn.take(turn_view)
                changed.append(len(turns))
            turns.append(turn)
        self.turns, self.view = turns, view
        return changed

    def is_of(self, view: SessionView) -> bool:
        """Whether the session is the one whose path this is."""
        return self.view is not None and self.view.session_id == view.session_id

    def parts_from(self, view: SessionView) -> bool:
        """Whether that is another branch: either has turns that the other lacks."""
        here = {turn.node_id for turn in self.view.turns} if self.view is not None else set[int]()
        there = {turn.node_id for turn in view.turns}
        return bool(here - there) and bool(there - here)

    def colour_by(self, measure: Measure) -> None:
        """Colours tokens by another number."""
        self.measure = measure
        for turn in self.turns:
            turn.colour_by(measure)

    def compare(self, compared: Compared | None, *, coloured: bool) -> None:
        """The numbers of a second model are known; None: not any more.

        Args:
            compared: They.
            coloured: Whether they colour the tokens.
        """
        self.compared, self.shows_difference = compared, coloured and compared is not None
        for turn in self.turns:
            self._lay_over(turn)

    def _lay_over(self, turn: Turn) -> None:
        if self.compared is not None and self.shows_difference:
            turn.lay_over(self.compared.marks(turn.node_id))
        else:
            turn.lay_over(None)

    def index(self, node_id: int) -> int | None:
        """Which turn it is; None where it is not shown. The streaming one is the last."""
        return next((i for i in reversed(range(len(self.turns))) if self.turns[i].node_id == node_id), None)

    def record(self, node_id: int, index: int) -> TokenRecord | None:
        """The numbers of a token, streamed ones included; None where there is no such token."""
        turn = self.index(node_id)
        if turn is None or not 0 <= index < self.turns[turn].count:
            return None
        return self.turns[turn].tokens.record(index)
