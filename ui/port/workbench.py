"""The one Protocol that the window knows: groups of use cases, each a Protocol of its own module."""

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

    A command that would change the sample makes a copy of it, says `SessionCopied`, and goes on there.
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
        """Of the engine, as last told by `StatusChanged`."""

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Events go to `listener` from now on."""

    async def close(self) -> bool:
        """The window ends. With the last one streams are stopped, everything is saved, the engine ends, within 2 s: True.

        While others stand (False) what was asked for goes on, and is saved.
        """
