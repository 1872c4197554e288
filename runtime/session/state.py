"""The state of a session: its tokens, their pin in the engine, its one user at a time, and what a fork takes along."""

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
from runtime.records import Float32
from runtime.session.manifest import Manifest
from runtime.session.snapshot import Generation
from runtime.session.status import Divergence, Mark, Segment, SegmentKind
from runtime.session.token_boundary import Conversation, TokenBoundary
from runtime.trie.tree import common_prefix

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

_counting = threading.Lock()  # of users: forks may live in other threads
STRIDE = 64  # tokens that a path grows by, token for token, before its pin follows


class Path:
    """Ids with their segments. Grows at its end and is cut there; a copy is independent."""

    __slots__ = ("_marks", "ids", "prefix", "version")

    def __init__(self, ids: Iterable[int] = (), marks: Iterable[Mark] = (), prefix: int = 0) -> None:
        self.ids: list[int] = list(ids)
        self._marks: list[Mark] = list(marks)
        self.prefix = prefix  # leading tokens that were ensured
        self.version = 0  # changes with the tokens

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, kind: SegmentKind, ids: Sequence[int], label: str = "") -> None:
        """Tokens at the end, as a segment of their own."""
        if ids:
            self._marks.append(Mark(kind, label, len(self.ids)))
            self.ids.extend(ids)
            self.version += 1

    def push(self, kind: SegmentKind, token: int) -> None:
        """One token at the end, in a segment with those of its kind before it."""
        if not self._marks or self._marks[-1].kind != kind:
            self._marks.append(Mark(kind, "", len(self.ids)))
        self.ids.append(token)
        self.version += 1

    def truncate(self, n: int) -> int:
        """The first `n` tokens stay; how many went."""
        dropped = len(self.ids) - n
        if dropped:
            del self.ids[n:]
            while self._marks and self._marks[-1].start >= n:
                self._marks.pop()
            self.prefix = min(self.prefix, n)
            self.version += 1
        return dropped

    def common(self, ids: Sequence[int]) -> int:
        """How many leading tokens `ids` shares with it."""
        return common_prefix(np.asarray(self.ids, np.int32), np.asarray(ids, np.int32))

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Where its segments begin."""
        return tuple(self._marks)

    def segments(self) -> tuple[Segment, ...]:
        """In order, without gaps."""
        marks, end = list(self._marks), len(self.ids)
        ends = [*(mark.start for mark in marks[1:]), end]
        return tuple(Segment(m.kind, m.label, m.start, e) for m, e in zip(marks, ends, strict=False))  # no marks: no end

    def copy(self) -> Path:
        """The same tokens, apart from here on."""
        marks, prefix = list(self._marks), self.prefix  # before the ids: a decode that runs adds those only at the end
        return Path(self.ids, marks, prefix)


class _Pin:
    """One pin of the engine, released when the last reference to it is gone."""

    def __init__(self, model: LanguageModel, ids: Sequence[int], adapters: Adapters) -> None:
        self.number = model.pin(ids, adapters=adapters)
        self.users = 1
        release = weakref.finalize(self, model.unpin, self.number)
        release.atexit = False  # the engine ends with the process
        self.release = release


class SessionPin:
    """Pins a session's path in the engine's memory; forks share the pin until one of them moves. Never blocks."""

    def __init__(self, model: LanguageModel, adapters: Adapters = None) -> None:
        self._model, self._adapters = model, adapters
        self._pin: _Pin | None = None
        self._length = 0

    def move(self, ids: Sequence[int]) -> None:
        """Holds this path from now on."""
        self._length = len(ids)
        if not ids:
            self.release()
        elif not self._model.has("kv"):
            return  # a server keeps what it keeps
        elif self._pin is not None and self._pin.users == 1:
            self._model.pin(ids, self._pin.number, adapters=self._adapters)
        else:
            fresh = _Pin(self._model, ids, self._adapters)  # before the old one goes: what both hold is not let go in between
            self.release()
            self._pin, self._length = fresh, len(ids)

    def follow(self, ids: Sequence[int]) -> None:
        """The path has grown token by token: moved along from time to time."""
        if len(ids) - self._length >= STRIDE:
            self.move(ids)

    def shared(self) -> SessionPin:
        """The same for a fork."""
        twin = SessionPin(self._model, self._adapters)
        twin._pin, twin._length = self._pin, self._length
        if self._pin is not None:
            with _counting:
                self._pin.users += 1
        return twin

    def release(self) -> None:
        """Lets the path go, where no fork holds it too."""
        pin, self._pin, self._length = self._pin, None, 0
        if pin is not None:
            with _counting:
                pin.users -= 1
            if not pin.users:
                pin.release()


class Guard:
    """Admits one call at a time to a session, from any thread, until its end or a fatal fault.

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
        """Holds the session for one call.

        Raises:
            SessionBusyError: Another call holds it.
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
        """Ends the session; a second call does nothing."""
        if not self.closed:
            self.closed = True
            self._let_go()


def is_fatal(error: BaseException) -> bool:
    """Whether a session cannot continue after it: the engine is gone, or an unforeseen failure.

    Errors that the runtime names (no room, no numbers, too long) and cancellation leave the session as it was.
    """
    if isinstance(error, RuntimeFault):
        return isinstance(error, EngineDiedError) or type(error) is RuntimeFault
    return isinstance(error, Exception) and not isinstance(error, CancelledError)


@dataclass(slots=True)
class SessionState:
    """Tokens, their pin, and what is known of how they came."""

    manifest: Manifest  # what they were made with
    path: Path  # the tokens
    pin: SessionPin  # keeps their KV in memory
    boundary: TokenBoundary  # turns texts into ids
    said: Conversation | None = None  # the messages of the last `ensure_messages`
    divergence: Divergence | None = None  # where the last prefix could not take over what was there
    generation: Generation | None = None  # the last answer, as long as its tokens, or the first of them, end the path
    # what follows: the version of `path` that it belongs to, and log-probabilities ``(vocab,)``
    row: tuple[int, Float32] | None = None

    @classmethod
    def empty(cls, model: LanguageModel, manifest: Manifest) -> SessionState:
        return cls(manifest, Path(), SessionPin(model, manifest.stack), TokenBoundary(model))

    def fork(self) -> SessionState:
        """The same, apart from here on."""
        return replace(self, path=self.path.copy(), pin=self.pin.shared(), row=None)
