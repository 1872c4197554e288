"""The turns of the path one under the other: their boxes, their heights, and which one is at a height."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from PySide6.QtGui import QPainter

from ui.transcript.pane.meta import MetaLine, usual_height
from ui.transcript.path import Turn
from ui.transcript.text.faces import CHARACTERS_PER_TOKEN, MARGIN_TOP_PX, TURN_GAP_PX, Faces
from ui.transcript.text.ink import Ink


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
    """A turn with its text and the line under it; both are made when they are first used.

    Args:
        turn: What is shown.
        page: Makes them, as wide as it is then.
    """

    def __init__(self, turn: Turn, page: TranscriptPage[BodyT]) -> None:
        self.turn = turn
        self._page = page
        self.made: BodyT | None = None
        self._meta: MetaLine | None = None
        self._guess: int | None = None
        self.top = 0
        self.under = 0  # pixels between the text and the line, for what stands there

    @property
    def body(self) -> BodyT:
        if self.made is None:
            self.made = self._page.make_body(self.turn)
        return self.made

    @property
    def meta(self) -> MetaLine:
        if self._meta is None:
            self._meta = MetaLine(self.turn.view, self._page.faces, self._page.width, developer=self._page.developer)
        return self._meta

    def forget_line(self) -> None:
        """The line says something else now, or is laid out for another width."""
        self._meta = self._guess = None

    @property
    def done(self) -> bool:
        """Whether the height is final for the tokens there are."""
        return self.made is not None and self.made.done

    @property
    def height(self) -> int:
        """Text, what stands under it, and meta line; estimated before there is any text."""
        if self.made is None:
            if self._guess is None:
                self._guess = self._page.estimate(self.turn)
            return self._guess + self.under
        return self.meta_top + self.meta.height

    @property
    def meta_top(self) -> int:
        """Where the meta line begins, from the top of the box."""
        return self.body.height + self.under


class Laid(Struct, frozen=True):
    """How far the layout is."""

    done: bool  # everything is laid out
    touched: Set[int] = frozenset()  # boxes that look different now


class TranscriptPage(Generic[BodyT]):
    """All boxes. Positions are pixels from the top of the page."""

    def __init__(self, make_body: Callable[[Turn, Faces, float], BodyT], faces: Faces) -> None:
        self._make_body = make_body
        self.faces = faces
        self.width = 0.0
        self.boxes: list[Box[BodyT]] = []
        self.height = 0
        self.developer = False  # lines tell more
        self.under: Callable[[int], int] = lambda _node_id: 0  # pixels wanted under the text of a turn
        self._tops: list[int] = []

    def set_turns(self, turns: Sequence[Turn]) -> None:
        held = {id(box.turn): box for box in self.boxes}
        self.boxes = [held.get(id(turn)) or Box(turn, self) for turn in turns]
        self.place()

    def set_width(self, width: float) -> None:
        """Another column width; call `prepare`."""
        if width == self.width:
            return
        self.width = width
        for box in self.boxes:
            if box.made is not None:
                box.made.set_width(width)
            box.forget_line()
        self.place()

    def set_faces(self, faces: Faces) -> None:
        self.faces = faces
        for box in self.boxes:
            if box.made is not None:
                box.made.set_faces(faces, self.width)
            box.forget_line()
        self.place()

    def show_developer(self, developer: bool) -> None:  # a state, not an option
        """Whether the lines under turns tell what was reused, computed and drafted."""
        self.developer = developer
        for box in self.boxes:
            box.forget_line()
        self.place()

    def refresh(self, box: Box[BodyT]) -> None:
        """A turn has other numbers or another state."""
        if box.made is not None:
            box.made.refresh()
        box.forget_line()

    def refresh_line(self, box: Box[BodyT]) -> None:
        """The line under a turn that waited until now says so no more; its numbers come with its end."""
        if box.meta.is_waiting and not box.turn.is_waiting:
            box.forget_line()

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
        return next((i for i in reversed(range(len(self.boxes))) if self.boxes[i].turn.node_id == node_id), None)

    def prepare(self, around: float, seconds: float, room: float | None = None) -> Laid:
        """Lays out what is not laid out yet, nearest to the height `around` first, for about `seconds`.

        Args:
            around: Pixels from the top of the page.
            seconds: After which the rest waits.
            room: Pixels above and below `around` with which it is enough; None: all of the page.
        """
        if self.width <= 0 or not self.boxes:  # not on a screen yet, or empty
            return Laid(done=True)
        touched: set[int] = set()
        deadline = perf_counter() + seconds
        for index in self._nearest(around, room):
            if not self.boxes[index].done:
                self.boxes[index].body.prepare(deadline)
                touched.add(index)
                if perf_counter() > deadline:
                    break
        ends = zip(self.boxes, [*self._tops[1:], self.height], strict=True)  # as placed; what was looked at may be laid out too
        changed = (i for i, (box, end) in enumerate(ends) if i in touched or box.top + box.height + TURN_GAP_PX != end)
        if (first := next(changed, None)) is not None:
            self.place(first)
        return Laid(all(box.done for box in self.boxes), touched)

    def _nearest(self, around: float, room: float | None) -> Iterator[int]:
        """Boxes from the one at a height on, upwards and downwards in turns; how far `room` reaches is seen on the way."""
        here = self.index_at(around)
        ways = [(range(here, -1, -1), room), (range(here + 1, len(self.boxes)), room)]
        walks = [self._walk(indices, left) for indices, left in ways]
        while walks:
            for walk in list(walks):
                index = next(walk, None)
                if index is None:
                    walks.remove(walk)
                else:
                    yield index

    def _walk(self, indices: range, room: float | None) -> Iterator[int]:
        for index in indices:
            yield index
            if room is not None:
                room -= self.boxes[index].height + TURN_GAP_PX  # as high as it is by now
                if room <= 0:
                    return

    def make_body(self, turn: Turn) -> BodyT:
        """The text of a turn, as wide as the page."""
        return self._make_body(turn, self.faces, self.width)

    def estimate(self, turn: Turn) -> int:
        """Pixels of a turn of which nothing was made yet."""
        lines = int(turn.count * self.faces.average * CHARACTERS_PER_TOKEN / max(self.width, 1)) + 1
        return lines * self.faces.pitch + usual_height(turn.view, self.faces)
