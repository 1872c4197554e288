"""Who may do what with a session, and when: one at a time, not after its end, not after a fatal fault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

from runtime.errors import EngineDiedError, RuntimeFault, SessionBusyError, SessionClosedError, SessionFatalError


class Guard:
    """The door of one session; any thread.

    Args:
        let_go: Called once when a fatal fault was met or the session is closed.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go = let_go
        self._lock = threading.Lock()
        self._doing = ""
        self._cause: BaseException | None = None
        self.closed = False

    def check(self) -> None:
        """Raises where nothing can be asked any more.

        Raises:
            SessionFatalError: A fatal fault came before; its `__cause__` is the first.
            SessionClosedError: It was closed.
        """
        if self._cause is not None:
            raise SessionFatalError(
                f"the session met a fault it cannot recover from ({type(self._cause).__name__}: {self._cause}); its ids are "
                "kept: open a new session, and give it those or the text"
            ) from self._cause
        if self.closed:
            raise SessionClosedError("the session is closed; open a new one")

    @contextmanager
    def entered(self, what: str) -> Iterator[None]:
        """Nobody else does anything meanwhile.

        Raises:
            SessionBusyError: Somebody does.
            SessionFatalError, SessionClosedError: As `check`.
        """
        self.check()
        if not self._lock.acquire(blocking=False):
            raise SessionBusyError(f"{what}: the session is busy with {self._doing}; wait for it, end it, or fork() a session")
        self._doing = what
        try:
            yield
            self.check()  # closed meanwhile: the answer would speak of something that is no more
        except BaseException as error:
            if self._cause is None and not self.closed and is_fatal(error):
                self._cause = error
                self._let_go()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """From now on nothing can be asked; a second call does nothing."""
        if not self.closed:
            self.closed = True
            self._let_go()


def is_fatal(error: BaseException) -> bool:
    """Whether a session cannot go on after it: the engine is gone, or something failed that nobody foresaw.

    What the runtime names (no room, no numbers, too long) leaves the session as it was; so does whoever stops waiting.
    """
    if isinstance(error, RuntimeFault):
        return isinstance(error, EngineDiedError) or type(error) is RuntimeFault
    return isinstance(error, Exception) and not isinstance(error, CancelledError)
