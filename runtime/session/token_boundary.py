"""Tokenisation for a session: BOS, joint tokenisation at a boundary, the common text of two token sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from runtime.api.checks import RequestChecks
from runtime.errors import InvalidRequestError
from runtime.info import Message
from runtime.kv.trie import common_prefix
from runtime.records import ends_of

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

WINDOW = 64  # tokens before a boundary that are tokenised together with the suffix
TextOrIds = str | Sequence[int]


class TokenBoundary:
    """Turns callers' texts and ids into ids. Shared by a session and its forks."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._bos: list[int] | None = None  # the ids before a text; empty for a model without BOS

    async def ids(self, given: TextOrIds, *, first: bool, what: str) -> list[int]:
        """The ids of a text, or a copy of given ids.

        Args:
            given: A text, in which special strings are plain text, or ids. A BOS in front is left out where it would come in
                the middle of the session, or twice.
            first: Whether the session is empty.
            what: The name of `given` in messages.

        Raises:
            InvalidRequestError: `given` is empty, of another type, or has an id outside the vocabulary.
        """
        if self._bos is None:
            self._bos = await self._model.tokenize_async("")
        bos = self._bos
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
        """A copy of the ids, checked.

        Raises:
            InvalidRequestError: No ids, not whole numbers, or ids outside the vocabulary.
        """
        try:
            plain: list[int] = RequestChecks(self._model.info.vocab_size, 1 << 62).ids(ids).tolist()
        except InvalidRequestError as refused:
            raise InvalidRequestError(f"{what}: {refused}") from refused
        return plain

    async def differs(self, before: Sequence[int], suffix: str) -> bool:
        """Whether tokenising the text on both sides of the boundary together gives other tokens at the boundary.

        Takes the text of the last 64 tokens before the boundary. False after a control token.
        """
        own = await self._plain(suffix)
        tail = [self._model.decode_token(token) for token in before[-WINDOW:]]
        while tail and (text := _decoded(b"".join(tail))) is None and _continues(tail[0]):
            tail.pop(0)
        if not tail or not own:
            return False
        if text is None:  # the tokens end inside a character, which no text can continue
            return True
        if _decoded(tail[-1]) is not None and await self._plain(_decoded(tail[-1]) or "") != [before[-1]]:
            return False
        return await self._plain(text + suffix) != [*await self._plain(text), *own]

    async def _plain(self, text: str) -> list[int]:
        return await self._model.tokenize_async(text, add_special_tokens=False)


def _continues(piece: bytes) -> bool:
    """Whether the bytes begin in the middle of a character."""
    return bool(piece) and piece[0] & 0xC0 == 0x80


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Aligned:
    """The longest common text of two sequences from their start, up to a place where a token ends in both."""

    held: int  # leading tokens of the first sequence with this text
    full: int  # leading tokens of the second


def aligned(held: Sequence[int], full: Sequence[int], bytes_of: Callable[[int], bytes]) -> Aligned:
    """Finds the beginning of the text of `held` that `full` repeats.

    Generated tokens may differ from those that the tokenizer makes of their text; ``held[:a.held] + full[a.full:]`` keeps the
    generated ones.

    Args:
        held: Existing ids.
        full: Ids of a text that may begin with the text of `held`.
        bytes_of: The exact bytes of an id (`LanguageModel.decode_token`).
    """
    same = common_prefix(np.asarray(held, np.int32), np.asarray(full, np.int32))
    mine, theirs = [bytes_of(i) for i in held[same:]], [bytes_of(i) for i in full[same:]]
    text, other = (np.frombuffer(b"".join(pieces), np.uint8) for pieces in (mine, theirs))
    shared = common_prefix(text, other)
    ends, others = ends_of(mine), ends_of(theirs)
    borders = np.intersect1d(ends[ends <= shared], others[others <= shared])
    border = int(borders[-1]) if len(borders) else 0
    return Aligned(
        held=same + int(np.searchsorted(ends, border, side="right")),  # includes tokens without bytes after the border
        full=same + (int(np.searchsorted(others, border, side="left")) + 1 if border else 0),
    )


def delta(model: LanguageModel, held: Sequence[int], full: Sequence[int]) -> list[int]:
    """The ids of a rendered conversation `full`, with the tokens of `held` where `full` repeats their text.

    An eos token has no text: an answer that spells ``<|im_end|>`` does not match the token.
    """

    def bytes_of(token: int) -> bytes:
        return b"\xff%d" % token if model.is_eos(token) else model.decode_token(token)

    same = aligned(held, full, bytes_of)
    return [*held[: same.held], *full[same.full :]]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The (role, content) pairs of messages."""

    messages: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Conversation:
        """A copy of the messages."""
        return cls(tuple((str(m.get("role")), str(m.get("content"))) for m in messages))

    def why(self, before: Conversation | None, answered: str | None) -> str:
        """The reason, in words, why reuse ended before the end of the session.

        Args:
            before: The messages of the last `ensure_messages`; None: there were none.
            answered: The text generated since, if the difference is in it; None: the difference comes earlier.
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
