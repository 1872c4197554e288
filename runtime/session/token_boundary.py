"""Where texts and token ids meet in a session: BOS, joint tokenisation at a boundary, text that two sequences share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.api.checks import RequestChecks
from runtime.errors import InvalidRequestError
from runtime.info import Message
from runtime.trie.tree import common_prefix

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

WINDOW = 64  # tokens before a boundary that are tokenised together with the suffix
TextOrIds = str | Sequence[int]
Int64 = npt.NDArray[np.int64]


class TokenBoundary:
    """Turns the texts and ids that callers give into ids. Used by one session and its forks."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._bos: list[int] | None = None  # what goes in front of a text; empty where nothing does

    async def ids(self, given: TextOrIds, *, first: bool, what: str) -> list[int]:
        """The ids of a text, or the ids themselves.

        Args:
            given: Special strings in a text stay plain text. Ids are taken as they are, but for a BOS in front: it is left
                out where it would stand in the middle, or twice.
            first: Nothing stands before them.
            what: For messages.

        Raises:
            InvalidRequestError: Empty, of another type, or an id outside the vocabulary.
        """
        bos = await self._front()
        if isinstance(given, str):
            ids = await self._model.tokenize_async(given)
        else:
            ids = self.check(given, what)
        if not first or ids[1:2] == bos:
            while bos and ids[:1] == bos and (not first or ids[1:2] == bos):
                ids = ids[1:]
        if not ids:
            raise InvalidRequestError(f"{what}: nothing to prefill: give a text or ids (truncate drops what is there)")
        return ids

    def check(self, ids: Sequence[int], what: str) -> list[int]:
        """The ids as a list of their own.

        Raises:
            InvalidRequestError: None, no whole numbers, or outside the vocabulary.
        """
        try:
            plain: list[int] = RequestChecks(self._model.info.vocab_size, 1 << 62).ids(ids).tolist()
        except InvalidRequestError as refused:
            raise InvalidRequestError(f"{what}: {refused}") from refused
        return plain

    async def differs(self, before: Sequence[int], suffix: str) -> bool:
        """Whether tokenising the text on both sides of the boundary together would give other tokens beside it.

        Looked at are the last 64 tokens before it. After a control token there is nothing to join.
        """
        own = await self._plain(suffix)
        tail = [self._model.decode_token(token) for token in before[-WINDOW:]]
        while tail and (text := _decoded(b"".join(tail))) is None and _continues(tail[0]):
            tail.pop(0)
        if not tail or not own:
            return False
        if text is None:  # cut inside a character: no text goes on from there
            return True
        if _decoded(tail[-1]) is not None and await self._plain(_decoded(tail[-1]) or "") != [before[-1]]:
            return False
        return await self._plain(text + suffix) != [*await self._plain(text), *own]

    async def _plain(self, text: str) -> list[int]:
        return await self._model.tokenize_async(text, add_special_tokens=False)

    async def _front(self) -> list[int]:
        if self._bos is None:
            self._bos = await self._model.tokenize_async("")
        return self._bos


def _continues(piece: bytes) -> bool:
    """Whether it begins in the middle of a character."""
    return bool(piece) and piece[0] & 0xC0 == 0x80


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Aligned:
    """The longest beginning that two sequences share as text, up to where a token ends in both."""

    held: int  # tokens of the first up to there
    full: int  # tokens of the second


def aligned(held: Sequence[int], full: Sequence[int], bytes_of: Callable[[int], bytes]) -> Aligned:
    """How far `full` repeats what `held` says.

    A generated answer may be cut into other tokens than a tokenizer cuts its text into: ``held[:a.held] + full[a.full:]``
    keeps it as it was made.

    Args:
        held: Ids that stand somewhere already.
        full: Ids of a text that may go on from them.
        bytes_of: The exact bytes of an id (`LanguageModel.decode_token`).
    """
    same = common_prefix(np.asarray(held, np.int32), np.asarray(full, np.int32))
    mine, theirs = [bytes_of(i) for i in held[same:]], [bytes_of(i) for i in full[same:]]
    text, other = (np.frombuffer(b"".join(pieces), np.uint8) for pieces in (mine, theirs))
    shared = common_prefix(text, other)
    ends, others = _ends(mine), _ends(theirs)
    borders = np.intersect1d(ends[ends <= shared], others[others <= shared])
    border = int(borders[-1]) if len(borders) else 0
    return Aligned(
        held=same + int(np.searchsorted(ends, border, side="right")),  # tokens without bytes stay with what was said
        full=same + (int(np.searchsorted(others, border, side="left")) + 1 if border else 0),
    )


def _ends(pieces: Sequence[bytes]) -> Int64:
    return np.cumsum([len(piece) for piece in pieces], dtype=np.int64)


def delta(model: LanguageModel, held: Sequence[int], full: Sequence[int]) -> list[int]:
    """What stands in a session as far as a rendered conversation repeats its text, and the rest of that.

    An end of turn is no text: an answer that spells ``<|im_end|>`` is not taken for one.
    """

    def bytes_of(token: int) -> bytes:
        return b"\xff%d" % token if model.is_eos(token) else model.decode_token(token)

    same = aligned(held, full, bytes_of)
    return [*held[: same.held], *full[same.full :]]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as they were given: (role, content) of each."""

    messages: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Conversation:
        """A copy that does not change with them."""
        return cls(tuple((str(m.get("role")), str(m.get("content"))) for m in messages))

    def why(self, before: Conversation | None, answered: str | None) -> str:
        """Why reuse ended although the session held more.

        Args:
            before: What was said when the session last took messages; None: never.
            answered: What it has said since then, where that is what could not be taken over.
        """
        if before is None:
            return "the session held something else than these messages"
        pairs = zip(before.messages, self.messages, strict=False)
        common = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(before.messages), len(self.messages)))
        if common < len(before.messages):
            role = before.messages[common][0]
            return f"message {common + 1} ({role}) {'was changed' if common < len(self.messages) else 'is not there any more'}"
        if answered is None:
            return "the messages are the same: the chat template itself writes something else there (a date, for example)"
        role, content = self.messages[common] if common < len(self.messages) else ("", "")
        if content.strip() == answered.strip():
            return "the chat template writes this answer differently once it is history (it leaves out thinking, for example)"
        return f"message {common + 1} ({role}) is not what was answered"
