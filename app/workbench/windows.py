"""The windows that the workbench serves: the session, the listeners and the status bar of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from app.supervisor import Supervisor
from app.workbench.tree.session import OpenSession
from ui import BranchAdded, EngineState, Event, SessionChanged, StatusChanged, StatusView

Listener = Callable[[Event], None]


@dataclass(eq=False)
class OpenWindow:
    """One window, as the workbench knows it."""

    shown: OpenSession | None = None
    status: StatusView = field(default_factory=lambda: StatusView(EngineState.NONE))
    listeners: list[Listener] = field(default_factory=list)
    sent: int = 0  # number of events sent: a view made before the last one may be out of date
    _opening: int | None = None  # the session that is being read for this window

    def tell(self, event: Event) -> None:
        """Sends an event to this window alone."""
        self.sent += 1
        for listener in list(self.listeners):
            listener(event)

    def holds(self, session_id: int) -> bool:
        """Whether this window shows or opens a session."""
        return session_id == self._opening or (self.shown is not None and self.shown.id == session_id)

    @contextmanager
    def opening(self, session_id: int) -> Iterator[None]:
        """Reserves a session for this window while it is being read."""
        self._opening = session_id
        try:
            yield
        finally:
            if self._opening == session_id:  # otherwise another one is being opened
                self._opening = None


class Windows:
    """All windows; a session is shown in one of them at most.

    Attributes:
        disk_note: The reason why not all KV is saved, or ""; part of each status.
        serving: The address at which the model is served to other programs, or ""; part of each status.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._all: list[OpenWindow] = []
        self.disk_note = self.serving = ""
        supervisor.subscribe(self.refresh_status)

    def __iter__(self) -> Iterator[OpenWindow]:
        """Iterates in the order in which the windows were opened."""
        return iter(tuple(self._all))

    def add(self) -> OpenWindow:
        """Adds a window without a session."""
        window = OpenWindow(status=self._status(None))
        self._all.append(window)
        return window

    def remove(self, window: OpenWindow) -> bool:
        """Removes a window, which gets no more events; returns whether it was the last."""
        window.shown, window.listeners = None, []
        if window in self._all:
            self._all.remove(window)
        return not self._all

    def tell(self, event: Event, *, but: OpenWindow | None = None) -> None:
        """Sends an event to every window except `but`."""
        for window in self:
            if window is not but:
                window.tell(event)

    def tell_path(self, session: OpenSession, before: int | None) -> None:
        """Sends a session's view, first `BranchAdded` if its path no longer goes through the tip `before`."""
        tree, tip = session.tree, session.tip
        if before is not None and before in tree.nodes and tip is not None and not tree.goes_through(tip, before):
            self.tell(BranchAdded(session.id, before, tip))
        self.tell(SessionChanged(session.view()))

    def refresh_status(self) -> None:
        """Sends each window its status: the engine's counters, and the last answer of its session."""
        for window in self:
            window.status = self._status(window.shown)
            window.tell(StatusChanged(window.status))

    def _status(self, session: OpenSession | None) -> StatusView:
        return replace(_status(self._supervisor, session), disk_note=self.disk_note, serving=self.serving)

    def holder(self, session_id: int, *, but: OpenWindow | None = None) -> OpenWindow | None:
        """The window other than `but` that shows or opens a session, if any."""
        return next((window for window in self if window is not but and window.holds(session_id)), None)

    def shown(self) -> list[OpenSession]:
        """The session of each window that has one."""
        return [window.shown for window in self if window.shown is not None]

    def follow(self, source_id: int, session: OpenSession) -> None:
        """Shows `session` in the windows that show the session `source_id`."""
        for window in self:
            if window.shown is not None and window.shown.id == source_id:
                window.shown = session


def _status(supervisor: Supervisor, session: OpenSession | None) -> StatusView:
    """The engine's state, and the counters of the last answer of the shown session."""
    status = StatusView(supervisor.state, supervisor.reason, load_share=supervisor.load_share)
    model = supervisor.running
    if model is not None:
        metrics = model.metrics()
        status = replace(status, kv_bytes=metrics.kv_bytes, kv_budget=metrics.kv_budget)
        status = replace(status, model=model.info.name, lacks=model.lacks)
    if session is None:
        return status
    writer = session.last_writer()
    other = writer if model is not None and writer != model.info.name else ""
    status = replace(status, tiers=session.tiers(), written_by=other)
    last = session.last_stats()
    if last is None:
        return status
    return replace(
        status,
        tokens_per_second=last.tokens_per_second,
        first_token_seconds=last.first_token_seconds,
        reused=last.reused,
        computed=last.computed,
    )
