"""What all parts of the fake workbench stand on: the calls it noted, and the sessions it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.ui.spoken import Vocabulary
from ui import Event, Refusal, SessionSummary, SessionView


class FakeBase:
    """`calls` records every command; `refusal` is raised by the next one; `gate` (if set) is waited for before each word."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.refusal = ""
        self.gate: asyncio.Semaphore | None = None
        self.vocabulary = Vocabulary()
        self.views: dict[int, SessionView] = {}
        self.summaries: dict[int, SessionSummary] = {}
        self._listeners: list[Callable[[Event], None]] = []
        self._next = 100

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def new_id(self) -> int:
        self._next += 1
        return self._next

    def emit(self, event: Event) -> None:
        """News, as the app would tell it."""
        for listener in self._listeners:
            listener(event)

    def asked(self, name: str) -> list[tuple[object, ...]]:
        """The arguments of every call of that name."""
        return [call[1:] for call in self.calls if call[0] == name]

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.refusal and call[0] not in ("sessions", "models"):
            words, self.refusal = self.refusal, ""
            raise Refusal(words)

    async def _pass(self) -> None:
        """Waits for the gate, where there is one."""
        if self.gate is not None:
            await self.gate.acquire()
