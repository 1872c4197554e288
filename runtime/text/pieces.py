"""Members that follow from the bytes of each id: the same in the model's process and over the pipe, and never blocking."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Protocol

from runtime.errors import ContextOverflowError, InvalidRequestError
from runtime.info import ModelInfo


class Reader(Protocol):
    """What of a model says how much text fits: `LanguageModel` has it."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def byte_vocab(self) -> list[bytes]: ...


def check_fits(model: Reader, *texts: str, stage: str = "prompt") -> None:
    """Refuses by their size texts that together cannot fit into the context: tokenising megabytes takes minutes.

    No token is longer than the longest of the vocabulary. What passes may still be too long.

    Args:
        model: Whose vocabulary and context.
        texts: What is to be tokenised.
        stage: What it is for, for the message.

    Raises:
        ContextOverflowError: They cannot fit.
    """
    limit = model.info.context_length
    if sum(map(len, texts)) <= limit:  # a character has at least a byte; most texts need no look at the vocabulary
        return
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    least = -(-size // max(1, *map(len, model.byte_vocab)))
    if least > limit:
        raise ContextOverflowError(stage, 0, least, limit, False)


class PieceMembers:
    """`byte_vocab`, `detokenize`, `decode_token` and `is_eos`; see `runtime.members.texts`.

    Whoever inherits them has the bytes of every id, and the ids that end a text.
    """

    _byte_vocab: list[bytes]
    _eos: frozenset[int]

    @property
    def byte_vocab(self) -> list[bytes]:
        """The exact bytes of every id."""
        return list(self._byte_vocab)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text."""
        if not isinstance(ids, Iterable):
            raise InvalidRequestError(f"token ids are a sequence of whole numbers, not {ids!r:.60}")
        return b"".join(self.decode_token(token) for token in ids).decode(errors="replace")

    async def detokenize_async(self, ids: Sequence[int]) -> str:
        """Text."""
        return self.detokenize(ids)

    def decode_token(self, token_id: int) -> bytes:
        """Bytes."""
        token = _whole(token_id)
        if not 0 <= token < len(self._byte_vocab):
            raise InvalidRequestError(f"token id {token} is outside the vocabulary of {len(self._byte_vocab):,}")
        return self._byte_vocab[token]

    def is_eos(self, token_id: int) -> bool:
        """Whether it ends a text."""
        return _whole(token_id) in self._eos


def _whole(token_id: int) -> int:
    """A token id, of numpy's kinds as well.

    Raises:
        InvalidRequestError: It is no whole number.
    """
    try:
        if not isinstance(token_id, bool):
            return operator.index(token_id)
    except TypeError:
        pass
    raise InvalidRequestError(f"a token id is a whole number, not {token_id!r:.60}")
