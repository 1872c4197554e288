"""The session that is shown, kept up to date by events; widgets and inspector read from it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ui.port import Origin, SessionView, TokenRecord, TokenRun, TurnStatus, TurnView

RUNNING = (TurnStatus.WAITING, TurnStatus.STREAMING)


class Spot(Struct, frozen=True):
    """One token of the path shown: turn `node_id`, place `index` of its run."""

    node_id: int
    index: int
    record: TokenRecord
    draw: float | None  # the uniform random number it was drawn with; None if it was not drawn


class Fork(Struct, frozen=True):
    """A turn of the path that has siblings: this one is number `place` (from 0) of `variants`."""

    variants: tuple[int, ...]
    place: int

    def step(self, by: int) -> int | None:
        """The sibling `by` places away, None past the ends."""
        place = self.place + by
        return self.variants[place] if 0 <= place < len(self.variants) else None


def typed_text(run: TokenRun) -> str:
    """The text of a run without the tokens of the chat template and without the end-of-sequence token."""
    rows = zip(run.texts, run.origin, run.by_eos, strict=True)
    return "".join(text for text, origin, end in rows if origin != Origin.TEMPLATE and not end)


class Shown:
    """A `SessionView` to which streamed tokens are joined only when they are read, for joining copies whole columns."""

    def __init__(self, view: SessionView) -> None:
        self._view = view
        self._arrived: dict[int, list[TokenRun]] = {}

    @property
    def view(self) -> SessionView:
        """The session as of now."""
        for node_id in list(self._arrived):
            self._join(node_id)
        return self._view

    @property
    def session_id(self) -> int:
        return self._view.session_id

    def turn(self, node_id: int) -> TurnView | None:
        """The turn with that id, with all tokens that have arrived; None if it is not on the path."""
        self._join(node_id)
        return next((turn for turn in self._view.turns if turn.node_id == node_id), None)

    def replace_turn(self, turn: TurnView) -> bool:
        """Replaces a turn; False if it is not on the path shown."""
        if all(known.node_id != turn.node_id for known in self._view.turns):
            return False
        self._arrived.pop(turn.node_id, None)
        self._view = replace(self._view, turns=tuple(turn if t.node_id == turn.node_id else t for t in self._view.turns))
        return True

    def append(self, node_id: int, run: TokenRun) -> bool:
        """Appends streamed tokens; False if their turn is not on the path shown."""
        if all(turn.node_id != node_id for turn in self._view.turns):
            return False
        self._arrived.setdefault(node_id, []).append(run)
        return True

    def spot(self, node_id: int, index: int) -> Spot | None:
        """One token with its numbers; None if it does not exist (any more)."""
        turn = self.turn(node_id)
        if turn is None or not 0 <= index < len(turn.run):
            return None
        draw = float(turn.run.draw[index])
        return Spot(node_id, index, turn.run.record(index), None if draw != draw else draw)

    @property
    def length(self) -> int:
        """The tokens of the path, streamed ones included; joins nothing."""
        arrived = sum(len(run) for runs in self._arrived.values() for run in runs)
        return arrived + sum(len(turn.run) for turn in self._view.turns)

    @property
    def running(self) -> bool:
        """Whether an answer is under way."""
        return any(turn.status in RUNNING for turn in self._view.turns)

    @property
    def last_answer(self) -> TurnView | None:
        """The model's last turn of the path."""
        return next((turn for turn in reversed(self._view.turns) if turn.role == "assistant"), None)

    @property
    def fork(self) -> Fork | None:
        """The deepest turn of the path that has siblings."""
        turn = next((turn for turn in reversed(self._view.turns) if len(turn.variants) > 1), None)
        return None if turn is None else Fork(turn.variants, turn.variant)

    def _join(self, node_id: int) -> None:
        if runs := self._arrived.pop(node_id, None):
            turns = tuple(
                replace(turn, run=TokenRun.concat([turn.run, *runs])) if turn.node_id == node_id else turn
                for turn in self._view.turns
            )
            self._view = replace(self._view, turns=turns)
