"""Text or ids on their way into a session: one BOS at the most, and what a seam does to the tokens beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.api.checks import check_ids
from runtime.errors import InvalidRequestError

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

WINDOW = 64  # tokens before a seam that are looked at
TextOrIds = str | Sequence[int]


class Seam:
    """Makes ids of what callers give. Used by one session and its forks.

    Args:
        model: Whose tokenizer.
    """

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
            plain: list[int] = check_ids(ids, vocab=self._model.info.vocab_size, context=1 << 62).tolist()
        except InvalidRequestError as refused:
            raise InvalidRequestError(f"{what}: {refused}") from refused
        return plain

    async def differs(self, before: Sequence[int], suffix: str) -> bool:
        """Whether tokenising the text on both sides of a seam together would give other tokens beside it.

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
        ids, bos = await self._model.tokenize_async(text), await self._front()
        return ids[1:] if bos and ids[:1] == bos else ids

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
