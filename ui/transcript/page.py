"""The turns of the path one under the other: their boxes, their heights, and which one is at a height."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from PySide6.QtGui import QPainter

from ui.transcript.faces import MARGIN_TOP_PX, TURN_GAP_PX, Faces
from ui.transcript.ink import Ink
from ui.transcript.meta import MetaLine
from ui.transcript.turn import Turn


class Body(Protocol):
    """The text of one turn in one of the modes; heights in pixels, x from the text's left edge."""

    @property
    def height(self) -> int:
        """Pixels; may be an estimate until `done`."""

    @property
    def done(self) -> bool:
        """Whether the height is final for the tokens there are."""

    def set_width(self, width: float) -> None:
        """Another width from now on; call `prepare`."""

    def set_faces(self, faces: Faces, width: float) -> None:
        """Other measures."""

    def set_template_visible(self, visible: bool) -> None:
        """Shows or hides what the chat template added."""

    def prepare(self, deadline: float | None) -> int | None:
        """Lays out until the deadline (of `perf_counter`); the first row that changed, or None."""

    def refresh(self) -> None:
        """The turn's numbers or its state changed."""

    def top_of(self, token: int) -> int:
        """The height at which a token stands."""

    def first_token(self, y: float) -> int:
        """The first token at a height."""

    def paint(self, painter: QPainter, ink: Ink, clip: tuple[float, float]) -> None:
        """Draws what meets the heights `clip`; the painter's origin is the text's top left."""


BodyT = TypeVar("BodyT", bound=Body)


class Box(Generic[BodyT]):
    """A turn with its text and the line under it."""

    def __init__(self, turn: Turn, body: BodyT, meta: MetaLine) -> None:
        self.turn = turn
        self.body = body
        self.meta = meta
        self.top = 0
        self.under = 0  # pixels between the text and the line, for what stands there

    @property
    def height(self) -> int:
        """Text, what stands under it, and meta line."""
        return self.meta_top + self.meta.height

    @property
    def meta_top(self) -> int:
        """Where the meta line begins, from the top of the box."""
        return self.body.height + self.under


class Page(Generic[BodyT]):
    """All boxes. Positions are pixels from the top of the page."""

    def __init__(self, make_body: Callable[[Turn, Faces, float], BodyT], faces: Faces) -> None:
        self._make_body = make_body
        self.faces = faces
        self.width = 0.0
        self.boxes: list[Box[BodyT]] = []
        self.height = 0
        self.under: Callable[[int], int] = lambda _node_id: 0  # pixels wanted under the text of a turn
        self._tops: list[int] = []

    def set_turns(self, turns: Sequence[Turn]) -> None:
        """Shows these turns; boxes of turns that were shown already are kept."""
        held = {id(box.turn): box for box in self.boxes}
        self.boxes = [held.get(id(turn)) or self._box(turn) for turn in turns]
        self.place()

    def set_width(self, width: float) -> None:
        """Another column width; call `prepare`."""
        if width == self.width:
            return
        self.width = width
        for box in self.boxes:
            box.body.set_width(width)
            box.meta = MetaLine(box.turn.view, self.faces, width)
        self.place()

    def set_faces(self, faces: Faces) -> None:
        """Another text size; call `prepare`."""
        self.faces = faces
        for box in self.boxes:
            box.body.set_faces(faces, self.width)
            box.meta = MetaLine(box.turn.view, faces, self.width)
        self.place()

    def refresh(self, box: Box[BodyT]) -> None:
        """A turn has other numbers or another state."""
        box.body.refresh()
        box.meta = MetaLine(box.turn.view, self.faces, self.width)

    def refresh_line(self, box: Box[BodyT]) -> None:
        """The line under a turn that waited until now says so no more; its numbers come with its end."""
        if box.meta.is_waiting and not box.turn.is_waiting:
            box.meta = MetaLine(box.turn.view, self.faces, self.width)

    def place(self, first: int = 0) -> None:
        """Computes the positions again, from box `first` on."""
        del self._tops[first:]
        y = self.boxes[first - 1].top + self.boxes[first - 1].height + TURN_GAP_PX if first else MARGIN_TOP_PX
        for box in self.boxes[first:]:
            box.top, box.under = y, self.under(box.turn.node_id)
            self._tops.append(y)
            y += box.height + TURN_GAP_PX
        self.height = y

    def index_at(self, y: float) -> int:
        """The box at a height: the last that begins above it; 0 where there is none."""
        return max(bisect_right(self._tops, y) - 1, 0)

    def index_of(self, node_id: int) -> int | None:
        """Which box shows a turn."""
        return next((i for i in reversed(range(len(self.boxes))) if self.boxes[i].turn.node_id == node_id), None)

    def prepare(self, around: float, seconds: float) -> bool:
        """Lays out what is not laid out yet, nearest to the height `around` first, for about `seconds`.

        Returns:
            Whether everything is laid out.
        """
        if self.width <= 0:  # not on a screen yet
            return True
        waiting = [i for i, box in enumerate(self.boxes) if not box.body.done]
        if not waiting:
            return True
        here = self.index_at(around)
        waiting.sort(key=lambda i: abs(i - here))
        deadline = perf_counter() + seconds
        for index in waiting:
            self.boxes[index].body.prepare(deadline)
            if perf_counter() > deadline:
                break
        self.place(min(waiting))
        return all(box.body.done for box in self.boxes)

    def _box(self, turn: Turn) -> Box[BodyT]:
        return Box(turn, self._make_body(turn, self.faces, self.width), MetaLine(turn.view, self.faces, self.width))
