"""The windows that the workbench serves: what each shows, and who listens for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.workbench.tree.session import OpenSession
from ui import EngineState, Event, StatusView

Listener = Callable[[Event], None]


@dataclass(eq=False)
class Window:
    """One window, as the workbench knows it."""

    shown: OpenSession | None = None
    status: StatusView = field(default_factory=lambda: StatusView(EngineState.NONE))
    listeners: list[Listener] = field(default_factory=list)
    told: int = 0  # how many events: what was made before the last of them may be old
    _opening: int | None = None  # a session that it will show in a moment

    def tell(self, event: Event) -> None:
        """Takes an event to this window alone."""
        self.told += 1
        for listener in list(self.listeners):
            listener(event)

    def holds(self, session_id: int) -> bool:
        """Whether it shows that session, or is about to."""
        return session_id == self._opening or (self.shown is not None and self.shown.id == session_id)

    @contextmanager
    def opening(self, session_id: int) -> Iterator[None]:
        """Keeps a session for this window while it is being read."""
        self._opening = session_id
        try:
            yield
        finally:
            if self._opening == session_id:  # else another one was chosen meanwhile
                self._opening = None


class Windows:
    """All windows; a session is shown in one of them at most."""

    def __init__(self) -> None:
        self._all: list[Window] = []

    def __iter__(self) -> Iterator[Window]:
        """In the order in which they were opened."""
        return iter(tuple(self._all))

    def add(self) -> Window:
        """One more."""
        window = Window()
        self._all.append(window)
        return window

    def remove(self, window: Window) -> bool:
        """It shows nothing any more and hears nothing; whether it was the last."""
        window.shown, window.listeners = None, []
        if window in self._all:
            self._all.remove(window)
        return not self._all

    def tell(self, event: Event) -> None:
        """Takes an event to every window."""
        for window in self:
            window.tell(event)

    def holder(self, session_id: int, *, but: Window | None = None) -> Window | None:
        """The window that has that session, where it is another one than `but`."""
        return next((window for window in self if window is not but and window.holds(session_id)), None)

    def shown(self) -> list[OpenSession]:
        """The sessions that somebody looks at."""
        return [window.shown for window in self if window.shown is not None]

    def follow(self, source_id: int, session: OpenSession) -> None:
        """Whoever looked at that session looks at this one now."""
        for window in self:
            if window.shown is not None and window.shown.id == source_id:
                window.shown = session
