"""Whether a text can fit into a model's context, by its size alone."""

from __future__ import annotations

from typing import Protocol

from runtime.errors import ContextOverflowError
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
    if model.info.options.get("tokenizer") == "server":  # the longest token is not known here
        return
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    least = -(-size // max(1, *map(len, model.byte_vocab)))
    if least > limit:
        raise ContextOverflowError(stage, 0, least, limit, False)
