"""What is being written: what it will cost, how surprising it is, what goes with it, how room is made for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ui.port.setup import TextFile


class PartKind(StrEnum):
    """What a part of the context is."""

    SYSTEM = "system"
    FILES = "files"
    HISTORY = "history"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class ContextPart:
    """A stretch of the context."""

    kind: PartKind
    tokens: int
    warm: int  # of them, those that need not be computed


@dataclass(frozen=True, slots=True)
class Composition:
    """What the typed text will cost."""

    tokens: int | None  # None until an engine runs that can count them
    bits: float | None  # None until scored
    context_used: int  # tokens of path and draft together
    context_length: int | None  # None while no model is known
    parts: tuple[ContextPart, ...] = ()  # in order; empty where they are not known
    can_grow: bool = False  # the model has a larger context than it was loaded with, and the KV of all of it has room
    whole_context: int | None = None  # tokens, where it was loaded with fewer
    whole_bytes: int = 0  # of KV that all of it takes
    kv_budget: int = 0  # bytes, that KV may take
    new_tokens: int | None = None  # to be computed before the first token of the answer
    takes_roles: bool = True  # False: the model has no chat format, and continues the text as it stands


class DraftCommands(Protocol):
    """The message before it is sent. Every coroutine may raise `Refusal`."""

    async def compose(self, session_id: int, text: str, replaces: int | None = None) -> Composition:
        """Tokens and context of a draft, or of another version of the user's turn `replaces`; no forward."""

    async def score_draft(self, session_id: int, text: str, replaces: int | None = None) -> float | None:
        """Bits of a draft, computed behind everything else; None where that is not to be had now. May be cancelled."""

    async def read_file(self, path: str) -> TextFile:
        """A text file to go with a message; a binary one or one that is too large is refused, with numbers."""

    async def grow_context(self) -> None:
        """Loads the model with all the context it has, from the next request on."""

    async def leave_out(self, session_id: int, text: str) -> int:
        """Makes room for a message: the latest turns alone go on, beside the whole conversation; how many are left out."""
