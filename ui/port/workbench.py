"""The Protocol of the workbench: groups of use cases, each a Protocol in its own module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ui.port.comparison import ComparisonCommands, SimilarCommands
from ui.port.drawing import ContinuationCommands, DrawingCommands
from ui.port.engine import CacheCommands, ModelCommands, StatusView
from ui.port.events import Event
from ui.port.models import ShelfCommands
from ui.port.sessions import BranchCommands, SessionCommands
from ui.port.settings import ServerCommands, SettingsCommands, SetupCommands
from ui.port.transfers import TransferCommands
from ui.port.turns import AnswerCommands, DraftCommands


class Workbench(Protocol):
    """The use cases of the app, for one window. Every coroutine may raise `Refusal`.

    A command that would change the sample makes a copy of it, sends `SessionCopied`, and goes on there.
    """

    @property
    def sessions(self) -> SessionCommands: ...

    @property
    def answers(self) -> AnswerCommands: ...

    @property
    def drafts(self) -> DraftCommands: ...

    @property
    def branches(self) -> BranchCommands: ...

    @property
    def continuations(self) -> ContinuationCommands: ...

    @property
    def drawings(self) -> DrawingCommands: ...

    @property
    def cache(self) -> CacheCommands: ...

    @property
    def setup(self) -> SetupCommands: ...

    @property
    def settings(self) -> SettingsCommands: ...

    @property
    def server(self) -> ServerCommands: ...

    @property
    def models(self) -> ModelCommands: ...

    @property
    def shelf(self) -> ShelfCommands: ...

    @property
    def transfers(self) -> TransferCommands: ...

    @property
    def comparison(self) -> ComparisonCommands: ...

    @property
    def similar(self) -> SimilarCommands: ...

    @property
    def status(self) -> StatusView:
        """The status of the last `StatusChanged`."""

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Sends events to `listener` from now on."""

    async def close(self) -> bool:
        """Closes the window. For the last one, stops streams, saves everything and ends the engine, within 2 s: True.

        While other windows are open (False), running commands go on and are saved.
        """
