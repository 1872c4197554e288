"""Port events on their way to the widgets: queued, merged, delivered at most once per frame.

A model may say a hundred tokens in one frame; painting once is enough. The timer runs only while something is queued.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

from msgspec.structs import replace
from PySide6.QtCore import QObject, QTimer

from ui.port import (
    ColumnsChanged,
    ColumnTokens,
    DownloadsChanged,
    Event,
    SessionChanged,
    StatusChanged,
    TokenRun,
    TokensArrived,
)

logger = logging.getLogger(__name__)

FRAME_MS = 16
SLICE_SECONDS = 0.004  # of showing news, in one turn of the event loop


class EventQueue(QObject):
    """Hands events to `deliver` in order, those of one frame together.

    Args:
        deliver: Called on the window's thread for each event that is left after merging.
        parent: Owns the queue and its timer.
    """

    def __init__(self, deliver: Callable[[Event], None], parent: QObject) -> None:
        super().__init__(parent)
        self._deliver = deliver
        self._queued: deque[Event] = deque()
        self._due: deque[Event] = deque()  # of a frame that is being delivered
        self._timer = QTimer(self)
        self._timer.setInterval(FRAME_MS)
        self._timer.timeout.connect(self._drain)
        self._rest = QTimer(self, singleShot=True, interval=0)  # for what one turn of the event loop is too short for
        self._rest.timeout.connect(self._drain)
        self._open = True

    @property
    def idle(self) -> bool:
        """Nothing is queued and the timer is at rest."""
        return not self._timer.isActive()

    def push(self, event: Event) -> None:
        """Takes an event; this is the listener given to `Workbench.subscribe`."""
        if not self._open:
            return
        self._queued.append(event)
        if not self._timer.isActive():
            self._timer.start()

    def close(self) -> None:
        """Drops what is queued and takes nothing more."""
        self._open = False
        self._queued.clear()
        self._due.clear()
        self._timer.stop()
        self._rest.stop()

    def _drain(self) -> None:
        if not (self._due or self._queued):
            self._timer.stop()
            return
        self._hand_over(perf_counter() + SLICE_SECONDS)
        if self._due:
            self._rest.start()

    def flush(self) -> None:
        """Delivers now what is queued: everything older than what the caller is about to show."""
        self._hand_over(math.inf)

    def _hand_over(self, deadline: float) -> None:
        """Delivers what is queued now, in order; what is left at the deadline comes next."""
        self._due = deque(merged([*self._due, *self._queued]))
        self._queued.clear()
        while self._due:
            event = self._due.popleft()
            try:
                self._deliver(event)
            except Exception:  # the border between news and widgets: one bug must not swallow the rest of the frame
                logger.exception("showing %s failed", type(event).__name__)
            if perf_counter() > deadline:
                break


def merged(events: Iterable[Event]) -> Iterator[Event]:
    """The same news in fewer events.

    Tokens that follow each other are joined per turn or column; of statuses, downloads, the views and the columns of a session
    the last stand.
    """
    events = list(events)
    last = {_whole(event): i for i, event in enumerate(events)}  # where a later one says all that this one says
    tokens: dict[tuple[type, int, int], list[TokensArrived | ColumnTokens]] = {}
    for i, event in enumerate(events):
        if isinstance(event, TokensArrived | ColumnTokens):
            tokens.setdefault((type(event), event.session_id, event.node_id), []).append(event)
        elif _whole(event) is not None and last[_whole(event)] != i:
            continue
        elif isinstance(event, StatusChanged | DownloadsChanged):
            yield event
        else:
            yield from _joined(tokens)
            tokens.clear()
            yield event
    yield from _joined(tokens)


def _whole(event: Event) -> tuple[type, int] | None:
    """What an event tells all of, if it does: the next of the same kind makes it old."""
    if isinstance(event, StatusChanged | DownloadsChanged):
        return type(event), 0
    if isinstance(event, SessionChanged):
        return type(event), event.view.session_id
    return (ColumnsChanged, event.session_id) if isinstance(event, ColumnsChanged) else None


def _joined(tokens: dict[tuple[type, int, int], list[TokensArrived | ColumnTokens]]) -> Iterator[Event]:
    for arrived in tokens.values():
        yield replace(arrived[-1], run=TokenRun.concat([event.run for event in arrived]))
