"""The state of a session: its tokens, their pin in the engine, and the guard that admits one call at a time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from runtime.adapters.uses import Adapters
from runtime.errors import EngineDiedError, RuntimeFault, SessionBusyError, SessionClosedError, SessionFatalError
from runtime.kv.trie import common_prefix
from runtime.records import Float32
from runtime.session.manifest import Manifest
from runtime.session.snapshot import Generation
from runtime.session.status import Divergence, Mark, Segment, SegmentKind
from runtime.session.token_boundary import Conversation, TokenBoundary

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

_users_lock = threading.Lock()  # of `_Pin.users`: forks may live in other threads
STRIDE = 64  # single tokens that a path gains before its pin is moved


class SessionPath:
    """Ids with their segments; tokens are added and removed only at the end."""

    __slots__ = ("_marks", "ids", "prefix", "version")

    def __init__(self, ids: Iterable[int] = (), marks: Iterable[Mark] = (), prefix: int = 0) -> None:
        self.ids: list[int] = list(ids)
        self._marks: list[Mark] = list(marks)
        self.prefix = prefix  # leading tokens set by `ensure_prefix` or `ensure_messages`
        self.version = 0  # a counter that every change of the tokens increments

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, kind: SegmentKind, ids: Sequence[int], label: str = "") -> None:
        """Adds tokens at the end, as a segment of their own."""
        if ids:
            self._marks.append(Mark(kind, label, len(self.ids)))
            self.ids.extend(ids)
            self.version += 1

    def push(self, kind: SegmentKind, token: int) -> None:
        """Adds a token at the end, to the last segment if that is of the same kind."""
        if not self._marks or self._marks[-1].kind != kind:
            self._marks.append(Mark(kind, "", len(self.ids)))
        self.ids.append(token)
        self.version += 1

    def truncate(self, n: int) -> int:
        """Cuts the path to its first `n` tokens; returns the number of dropped ones."""
        dropped = len(self.ids) - n
        if dropped:
            del self.ids[n:]
            while self._marks and self._marks[-1].start >= n:
                self._marks.pop()
            self.prefix = min(self.prefix, n)
            self.version += 1
        return dropped

    def common(self, ids: Sequence[int]) -> int:
        """The number of leading tokens shared with `ids`."""
        return common_prefix(np.asarray(self.ids, np.int32), np.asarray(ids, np.int32))

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The beginnings of its segments."""
        return tuple(self._marks)

    def segments(self) -> tuple[Segment, ...]:
        """The segments in order, without gaps."""
        marks, end = list(self._marks), len(self.ids)
        ends = [*(mark.start for mark in marks[1:]), end]
        return tuple(Segment(m.kind, m.label, m.start, e) for m, e in zip(marks, ends, strict=False))  # no marks: no end

    def copy(self) -> SessionPath:
        """An independent copy."""
        marks, prefix = list(self._marks), self.prefix  # read before the ids, to which a running decode may append
        return SessionPath(self.ids, marks, prefix)


class _Pin:
    """One pin of the engine, removed with the last reference to this object."""

    def __init__(self, model: LanguageModel, ids: Sequence[int], adapters: Adapters) -> None:
        self.number = model.pin(ids, adapters=adapters)
        self.users = 1
        self.release = weakref.finalize(self, model.unpin, self.number)
        self.release.atexit = False  # the engine ends with the process


class SessionPin:
    """Pins a session's path in the engine's memory; forks share the pin until one of them moves. Never blocks."""

    def __init__(self, model: LanguageModel, adapters: Adapters = None) -> None:
        self._model, self._adapters = model, adapters
        self._pin: _Pin | None = None
        self._length = 0

    def move(self, ids: Sequence[int]) -> None:
        self._length = len(ids)
        if not ids:
            self.release()
        elif not self._model.has("kv"):
            return  # a server has no pins
        elif self._pin is not None and self._pin.users == 1:
            self._model.pin(ids, self._pin.number, adapters=self._adapters)
        else:
            fresh = _Pin(
                self._model, ids, self._adapters
            )  # before the release of the old pin, so that the common KV stays pinned
            self.release()
            self._pin, self._length = fresh, len(ids)

    def follow(self, ids: Sequence[int]) -> None:
        """Moves the pin along a path that grows token by token, every `STRIDE` tokens."""
        if len(ids) - self._length >= STRIDE:
            self.move(ids)

    def share(self) -> SessionPin:
        """A pin object for a fork, on the same pin."""
        twin = SessionPin(self._model, self._adapters)
        twin._pin, twin._length = self._pin, self._length
        if self._pin is not None:
            with _users_lock:
                self._pin.users += 1
        return twin

    def release(self) -> None:
        """Removes the pin, unless a fork shares it."""
        pin, self._pin, self._length = self._pin, None, 0
        if pin is not None:
            with _users_lock:
                pin.users -= 1
            if not pin.users:
                pin.release()


class Guard:
    """Admits one call at a time to a session, from any thread, until the session is closed or meets a fatal fault.

    Args:
        on_end: Called once when a fatal fault was met or the session is closed.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._lock = threading.Lock()
        self._doing = ""
        self._cause: BaseException | None = None
        self.closed = False

    def check(self) -> None:
        """Raises an error if the session is unusable.

        Raises:
            SessionFatalError: After a fatal fault; `__cause__` is the first one.
            SessionClosedError: After `close`.
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
        """Holds the session for one call.

        Raises:
            SessionBusyError: Another call holds it.
            SessionFatalError, SessionClosedError: As for `check`.
        """
        self.check()
        if not self._lock.acquire(blocking=False):
            raise SessionBusyError(f"{what}: the session is busy with {self._doing}; wait for it, end it, or fork() a session")
        self._doing = what
        try:
            yield
            self.check()  # the session may have been closed meanwhile
        except BaseException as error:
            if self._cause is None and not self.closed and is_fatal(error):
                self._cause = error
                self._on_end()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the session; idempotent."""
        if not self.closed:
            self.closed = True
            self._on_end()


def is_fatal(error: BaseException) -> bool:
    """Whether a session cannot continue after an error: the engine died, or the error was unforeseen.

    The runtime's own errors (no room, no numbers, too long) and cancellation leave the session unchanged.
    """
    if isinstance(error, RuntimeFault):
        return isinstance(error, EngineDiedError) or type(error) is RuntimeFault
    return isinstance(error, Exception) and not isinstance(error, CancelledError)


@dataclass(slots=True)
class SessionState:
    """Tokens, their pin and their history."""

    manifest: Manifest  # of the tokens
    path: SessionPath
    pin: SessionPin  # keeps their KV in memory
    boundary: TokenBoundary  # turns texts into ids
    conversation: Conversation | None = None  # the messages of the last `ensure_messages`
    divergence: Divergence | None = None  # where the last prefix differed from the session's tokens
    generation: Generation | None = None  # the last answer, while the path ends with all or the first of its tokens
    # next token: the version of `path` that it belongs to, and log-probabilities ``(vocab,)``
    row: tuple[int, Float32] | None = None

    @classmethod
    def empty(cls, model: LanguageModel, manifest: Manifest) -> SessionState:
        return cls(manifest, SessionPath(), SessionPin(model, manifest.stack), TokenBoundary(model))

    def fork(self) -> SessionState:
        """An independent copy that shares the pin."""
        return replace(self, path=self.path.copy(), pin=self.pin.share(), row=None)
