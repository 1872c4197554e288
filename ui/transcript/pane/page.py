"""The turns of the path, one under the other: their boxes and positions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from PySide6.QtGui import QPainter

from ui.transcript.pane.meta import MetaLine, usual_height
from ui.transcript.path import TranscriptTurn
from ui.transcript.text.faces import CHARACTERS_PER_TOKEN, MARGIN_TOP_PX, TURN_GAP_PX, Faces
from ui.transcript.text.ink import Ink


class TurnBody(Protocol):
    """The text of one turn in one of the modes; heights in pixels, x from the text's left edge."""

    @property
    def height(self) -> int:
        """Pixels; may be an estimate until `done`."""

    @property
    def done(self) -> bool:
        """Whether the height is final for the current tokens."""

    def set_width(self, width: float) -> None:
        """Sets another width; call `prepare` to lay out."""

    def set_faces(self, faces: Faces, width: float) -> None:
        """Sets other fonts and measures."""

    def set_template_visible(self, visible: bool) -> None:
        """Shows or hides the chat template's tokens."""

    def prepare(self, deadline: float | None) -> int | None:
        """Lays out until the deadline (of `perf_counter`); returns the first changed pixel row, or None."""

    def refresh(self) -> None:
        """Takes other numbers or another state of the turn."""

    def top_of(self, token: int) -> int:
        """The y of the line with a token."""

    def first_token(self, y: float) -> int:
        """The first token of the line at y."""

    def paint(self, painter: QPainter, ink: Ink, clip: tuple[float, float]) -> None:
        """Draws the lines between the y of `clip`; the painter's origin is the text's top left."""


BodyT = TypeVar("BodyT", bound=TurnBody)


class Box(Generic[BodyT]):
    """A turn with its text and the line under it, both made on first use.

    Args:
        turn: The turn.
        page: Makes both, with its width.
    """

    def __init__(self, turn: TranscriptTurn, page: TranscriptPage[BodyT]) -> None:
        self.turn = turn
        self._page = page
        self.made: BodyT | None = None
        self._meta: MetaLine | None = None
        self._guess: int | None = None
        self.top = 0
        self.under = 0  # pixels between the text and the line, for a widget there

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
        """Discards the line, as its content or its width has changed."""
        self._meta = self._guess = None

    @property
    def done(self) -> bool:
        """Whether the height is final for the current tokens."""
        return self.made is not None and self.made.done

    @property
    def height(self) -> int:
        """The height of text, widget and meta line; estimated until the text is made."""
        if self.made is None:
            if self._guess is None:
                self._guess = self._page.estimate(self.turn)
            return self._guess + self.under
        return self.meta_top + self.meta.height

    @property
    def meta_top(self) -> int:
        """The y of the meta line in the box."""
        return self.body.height + self.under


class Laid(Struct, frozen=True):
    """The state of the layout."""

    done: bool  # whether everything is laid out
    touched: Set[int] = frozenset()  # boxes that may look different now


class TranscriptPage(Generic[BodyT]):
    """The boxes of all turns. Positions are pixels from the top of the page."""

    def __init__(self, make_body: Callable[[TranscriptTurn, Faces, float], BodyT], faces: Faces) -> None:
        self._make_body = make_body
        self.faces = faces
        self.width = 0.0
        self.boxes: list[Box[BodyT]] = []
        self.height = 0
        self.developer = False  # lines show more counts
        self.under: Callable[[int], int] = lambda _node_id: 0  # pixels needed under the text of a turn
        self._tops: list[int] = []

    def set_turns(self, turns: Sequence[TranscriptTurn]) -> None:
        held = {id(box.turn): box for box in self.boxes}
        self.boxes = [held.get(id(turn)) or Box(turn, self) for turn in turns]
        self.place()

    def set_width(self, width: float) -> None:
        """Sets another column width; call `prepare` to lay out."""
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
        """Shows or hides the counts of reused, computed and drafted tokens in the lines under turns."""
        self.developer = developer
        for box in self.boxes:
            box.forget_line()
        self.place()

    def refresh(self, box: Box[BodyT]) -> None:
        """Takes other numbers or another state of a turn."""
        if box.made is not None:
            box.made.refresh()
        box.forget_line()

    def refresh_line(self, box: Box[BodyT]) -> None:
        """Updates the line under a turn that has stopped waiting; its numbers follow at its end."""
        if box.meta.is_waiting and not box.turn.is_waiting:
            box.forget_line()

    def place(self, first: int = 0) -> None:
        """Computes the positions of the boxes from `first` on."""
        del self._tops[first:]
        y = self.boxes[first - 1].top + self.boxes[first - 1].height + TURN_GAP_PX if first else MARGIN_TOP_PX
        for box in self.boxes[first:]:
            box.top, box.under = y, self.under(box.turn.node_id)
            self._tops.append(y)
            y += box.height + TURN_GAP_PX
        self.height = y

    def index_at(self, y: float) -> int:
        """The box at y: the last one that begins above; 0 if there is none."""
        return max(bisect_right(self._tops, y) - 1, 0)

    def index_of(self, node_id: int) -> int | None:
        return next((i for i in reversed(range(len(self.boxes))) if self.boxes[i].turn.node_id == node_id), None)

    def prepare(self, around: float, seconds: float, room: float | None = None) -> Laid:
        """Lays out unfinished boxes, those nearest to the y `around` first.

        Args:
            around: Pixels from the top of the page.
            seconds: Stops after this time.
            room: Stops at this distance above and below `around`, pixels; None: lays out the whole page.
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
        # as placed before: a box may have been laid out elsewhere too, as for its first visible token
        ends = zip(self.boxes, [*self._tops[1:], self.height], strict=True)
        changed = (i for i, (box, end) in enumerate(ends) if i in touched or box.top + box.height + TURN_GAP_PX != end)
        if (first := next(changed, None)) is not None:
            self.place(first)
        return Laid(all(box.done for box in self.boxes), touched)

    def _nearest(self, around: float, room: float | None) -> Iterator[int]:
        """Yields boxes alternately upwards and downwards from the one at `around`, each way until `room` is used up."""
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
                room -= self.boxes[index].height + TURN_GAP_PX  # the height after its layout
                if room <= 0:
                    return

    def make_body(self, turn: TranscriptTurn) -> BodyT:
        """Makes the text of a turn with the page's width."""
        return self._make_body(turn, self.faces, self.width)

    def estimate(self, turn: TranscriptTurn) -> int:
        """The estimated height of a turn whose text is not made yet."""
        lines = int(turn.count * self.faces.average * CHARACTERS_PER_TOKEN / max(self.width, 1)) + 1
        return lines * self.faces.pitch + usual_height(turn.view, self.faces)
