"""The queue of port events for the widgets: merged, and delivered at most once per frame.

A model may send a hundred tokens in one frame; painting once is enough. The timer runs only while events are queued.
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
SLICE_SECONDS = 0.004  # of delivery in one turn of the event loop


class EventQueue(QObject):
    """Delivers events in order, those of one frame together.

    Args:
        deliver: Called on the window's thread for each event after merging.
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
        self._next_slice = QTimer(self, singleShot=True, interval=0)  # delivers the rest in the next turn of the event loop
        self._next_slice.timeout.connect(self._drain)
        self._open = True

    @property
    def idle(self) -> bool:
        """Whether no event is queued and the timer is stopped."""
        return not self._timer.isActive()

    def push(self, event: Event) -> None:
        """Takes an event; this is the listener given to `Workbench.subscribe`."""
        if self._open:
            self._queued.append(event)
            if not self._timer.isActive():
                self._timer.start()

    def close(self) -> None:
        """Drops all queued events and ignores later ones."""
        self._open = False
        self._queued.clear()
        self._due.clear()
        self._timer.stop()
        self._next_slice.stop()

    def _drain(self) -> None:
        if not (self._due or self._queued):
            self._timer.stop()
            return
        self._deliver_until(perf_counter() + SLICE_SECONDS)
        if self._due:
            self._next_slice.start()

    def flush(self) -> None:
        """Delivers all queued events now: they are older than what the caller is about to show."""
        self._deliver_until(math.inf)

    def _deliver_until(self, deadline: float) -> None:
        """Delivers the queued events in order; those left at the deadline stay in `_due`."""
        self._due = deque(merged([*self._due, *self._queued]))
        self._queued.clear()
        while self._due:
            event = self._due.popleft()
            try:
                self._deliver(event)
            except Exception:  # the border between events and widgets: one bug must not swallow the rest of the frame
                logger.exception("showing %s failed", type(event).__name__)
            if perf_counter() > deadline:
                break


def merged(events: Iterable[Event]) -> Iterator[Event]:
    """Merges events without a loss.

    Consecutive tokens are joined per turn or column. Of statuses, downloads, and the views and columns of a session, only the
    last event remains.
    """
    events = list(events)
    last = {_replaceable(event): i for i, event in enumerate(events)}  # by key, the index of the event that replaces the rest
    tokens: dict[tuple[type, int, int], list[TokensArrived | ColumnTokens]] = {}
    for i, event in enumerate(events):
        if isinstance(event, TokensArrived | ColumnTokens):
            tokens.setdefault((type(event), event.session_id, event.node_id), []).append(event)
        elif _replaceable(event) is not None and last[_replaceable(event)] != i:
            continue
        elif isinstance(event, StatusChanged | DownloadsChanged):
            yield event
        else:
            yield from _joined(tokens)
            tokens.clear()
            yield event
    yield from _joined(tokens)


def _replaceable(event: Event) -> tuple[type, int] | None:
    """The key of events that each replace all earlier ones with the same key; None for events that must all be delivered."""
    if isinstance(event, StatusChanged | DownloadsChanged):
        return type(event), 0
    if isinstance(event, SessionChanged):
        return type(event), event.view.session_id
    return (ColumnsChanged, event.session_id) if isinstance(event, ColumnsChanged) else None


def _joined(tokens: dict[tuple[type, int, int], list[TokensArrived | ColumnTokens]]) -> Iterator[Event]:
    for arrived in tokens.values():
        yield replace(arrived[-1], run=TokenRun.concat([event.run for event in arrived]))
