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
    def sessions(self) -> SessionCommands:
        """The list of sessions, and the one that is open."""

    @property
    def answers(self) -> AnswerCommands:
        """Messages and answers."""

    @property
    def drafts(self) -> DraftCommands:
        """The message before it is sent."""

    @property
    def branches(self) -> BranchCommands:
        """The branches of the open session."""

    @property
    def continuations(self) -> ContinuationCommands:
        """Several continuations of one place."""

    @property
    def drawings(self) -> DrawingCommands:
        """How tokens were drawn."""

    @property
    def cache(self) -> CacheCommands:
        """The KV cache of the model that runs."""

    @property
    def setup(self) -> SetupCommands:
        """What a session is set to."""

    @property
    def settings(self) -> SettingsCommands:
        """What holds for the whole app."""

    @property
    def server(self) -> ServerCommands:
        """The model for other programs."""

    @property
    def models(self) -> ModelCommands:
        """Which model answers."""

    @property
    def shelf(self) -> ShelfCommands:
        """Models on this machine and on the hub."""

    @property
    def transfers(self) -> TransferCommands:
        """Files."""

    @property
    def comparison(self) -> ComparisonCommands:
        """A second model beside the one in use."""

    @property
    def similar(self) -> SimilarCommands:
        """Turns that are alike."""

    @property
    def status(self) -> StatusView:
        """Of the engine, as last told by `StatusChanged`."""

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Events go to `listener` from now on."""

    async def close(self) -> bool:
        """The window ends. With the last one streams are stopped, everything is saved, the engine ends, within 2 s: True.

        While others stand (False) what was asked for goes on, and is saved.
        """
