"""The one Protocol that the window knows, in parts of their own modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ui.port.cache import CacheCommands, SimilarCommands
from ui.port.drawing import DrawingUses
from ui.port.engine import EngineCommands, LoadCommands
from ui.port.events import Event
from ui.port.models import ModelCommands
from ui.port.second import SecondCommands
from ui.port.sessions import SessionCommands, ShelfCommands
from ui.port.settings import SettingsCommands, SetupCommands
from ui.port.transfers import TransferCommands
from ui.port.turns import AnswerCommands, DraftCommands


class Workbench(
    SessionCommands,
    ShelfCommands,
    AnswerCommands,
    DraftCommands,
    DrawingUses,
    CacheCommands,
    SetupCommands,
    SettingsCommands,
    TransferCommands,
    ModelCommands,
    LoadCommands,
    SecondCommands,
    SimilarCommands,
    EngineCommands,
    Protocol,
):
    """The use cases of the app, for one window. Every coroutine may raise `Refusal`.

    A command that would change the sample makes a copy of it, says `SessionCopied`, and goes on there.
    """

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Events go to `listener` from now on."""

    async def close(self) -> bool:
        """The window ends. With the last one streams are stopped, everything is saved, the engine ends, within 2 s: True.

        While others stand (False) what was asked for goes on, and is saved.
        """
