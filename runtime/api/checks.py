"""Checks of callers' arguments before they reach a transport, the same for every kind of engine."""

from __future__ import annotations

from array import array as packed_ints
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from runtime.adapters.uses import Adapters, check_adapters
from runtime.errors import ContextOverflowError, InvalidRequestError
from runtime.options.checking import TEXT_FOR_IDS, is_whole, plain_number, shown
from runtime.options.priority import Priority
from runtime.records import Int32
from runtime.text.utf8 import clean_text

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

MOST_NESTED: Final = 128  # levels of a message or a tool definition; templates and pickles recurse over them


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """Checks token ids against a vocabulary and a context."""

    vocab_size: int
    context_length: int

    def ids(self, ids: Sequence[int] | np.ndarray[Any, Any], stage: str = "prompt") -> Int32:
        """A copy of token ids, ``(n,) int32``.

        Raises:
            InvalidRequestError: No ids, not whole numbers, or ids outside the vocabulary (the first bad id is named).
            ContextOverflowError: More ids than the context holds.
        """
        if isinstance(ids, str | bytes):
            raise InvalidRequestError(TEXT_FOR_IDS)
        kinds = set(map(type, ids)) if isinstance(ids, list | tuple) else set()
        if bool in kinds:
            raise InvalidRequestError(f"token ids must be whole numbers, not bool{_first_bad(ids)}")
        try:
            # takes half of numpy's time for plain ints
            array = np.frombuffer(packed_ints("q", ids), np.int64) if kinds == {int} else np.asarray(ids)
        except OverflowError:
            array = np.asarray(ids)
        except ValueError as error:  # lists of different lengths
            raise InvalidRequestError(f"token ids must be one flat sequence: {error}") from error
        if array.ndim != 1 or array.size == 0:
            raise InvalidRequestError(
                "no tokens: give at least one token id (an empty prompt has nothing to predict from)"
                if array.size == 0
                else f"token ids must be one flat sequence, not {f'of shape {array.shape}' if array.ndim else shown(ids)}"
            )
        if array.dtype.kind not in "iu":
            raise InvalidRequestError(f"token ids must be whole numbers, not {array.dtype}{_first_bad(ids)}")
        if array.min() < 0 or array.max() >= self.vocab_size:
            at = int(np.flatnonzero((array < 0) | (array >= self.vocab_size))[0])
            raise InvalidRequestError(
                f"token id {int(array[at])} at position {at} is outside the vocabulary of {self.vocab_size:,}"
            )
        if array.size > self.context_length:
            raise ContextOverflowError(stage, 0, int(array.size), self.context_length)
        return array.astype(np.int32)

    def optional_ids(self, ids: Sequence[int], stage: str) -> Int32:
        """As `ids`, but the list may be empty, and has at most as many ids as the vocabulary."""
        if isinstance(ids, Sized) and not isinstance(ids, str | bytes) and not len(ids):
            return np.empty(0, np.int32)
        return RequestChecks(self.vocab_size, self.vocab_size).ids(ids, stage)

    def batch(self, batch: Sequence[Sequence[int]]) -> list[Int32]:
        """Several sequences of token ids.

        Raises:
            InvalidRequestError: Not iterable, empty, or as for `ids`.
        """
        if not isinstance(batch, Iterable):
            raise InvalidRequestError(f"a batch is a list of sequences of token ids, not {type(batch).__name__}")
        checked = list(map(self.ids, batch))
        if not checked:
            raise InvalidRequestError("an empty batch: give at least one sequence of token ids")
        return checked


def adapter_pairs(adapters: Adapters) -> tuple[tuple[str, float], ...] | None:
    """A request's adapters as (name, scale) pairs; None stays None.

    Raises:
        AdapterError: An item that is neither a name nor a pair, or a scale that is not finite.
    """
    return None if adapters is None else check_adapters(adapters)


def request_terms(adapters: Adapters, priority: object, cache_salt: object) -> dict[str, Any]:
    """The keywords of operations for a request's adapters, priority and cache salt (empty: none).

    Raises:
        AdapterError: As for `adapter_pairs`.
        InvalidRequestError: An unknown priority, or a salt that is not a text.
    """
    if not isinstance(priority, Priority):
        known = ", ".join(f"Priority.{each.name}" for each in Priority)
        raise InvalidRequestError(f"unknown priority {priority!r:.60}: use one of {known}")
    if not isinstance(cache_salt, str):
        raise InvalidRequestError(f"cache_salt is a text, not {shown(cache_salt)}")
    pairs = None if adapters is None else adapter_pairs(adapters)
    return {"adapters": pairs, "priority": priority, "cache_salt": clean_text(cache_salt) if cache_salt else ""}


def block_names(keys: Sequence[bytes]) -> list[bytes]:
    """Names of blocks as a list.

    Raises:
        InvalidRequestError: Not iterable.
    """
    if not isinstance(keys, Iterable):
        raise InvalidRequestError(f"keys are the names of blocks that block_keys gives, not {shown(keys)}")
    return list(keys)


def plain_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Definitions of tools as dictionaries of plain values; None stays None.

    Raises:
        InvalidRequestError: Not a list, or an item that is not a mapping.
    """
    if tools is None:
        return None
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools is a list of definitions, not {type(tools).__name__}")
    return plain_messages(tools)


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as dictionaries of plain values.

    Raises:
        InvalidRequestError: Not a list, or an item that is not a mapping.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequestError(f"messages (and tools) are a list of mappings, not {messages!r:.60}")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"message {place} is a mapping with role and content, not {message!r:.60}")
    return [_plain(message) for message in messages]


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > MOST_NESTED:
        raise InvalidRequestError(f"messages and tools are nested at most {MOST_NESTED} levels deep")
    match value:
        case str():
            return clean_text(value)
        case Mapping():
            return {_plain(key, depth + 1): _plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, depth + 1) for item in value]
        case _:
            return value


def _first_bad(ids: Sequence[Any] | np.ndarray[Any, Any]) -> str:
    """The place and value of the first item of a list or tuple that is not a whole number, for a message."""
    if not isinstance(ids, list | tuple):
        return ""
    bad = ((at, value) for at, value in enumerate(ids) if not is_whole(plain_number(value), 1 - (1 << 63)))
    at, value = next(bad, (0, None))
    return f"; at place {at:,} stands {value!r:.60}"


def check_fits(model: LanguageModel, *texts: str, stage: str = "prompt") -> None:
    """Refuses texts that together cannot fit into the context by their size alone, since tokenising megabytes takes minutes.

    The bound uses the longest token of the vocabulary. Texts that pass may still be too long.

    Args:
        model: The model with the vocabulary and the context.
        texts: The texts to tokenise.
        stage: The purpose of the texts, for the message.

    Raises:
        ContextOverflowError: The texts cannot fit.
    """
    limit = model.info.context_length
    if sum(map(len, texts)) <= limit:  # a character has at least one byte: most texts pass without the vocabulary
        return
    if model.info.options.get("tokenizer") == "server":  # the longest token is not known here
        return
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    least = -(-size // max(1, *map(len, model.byte_vocab)))
    if least > limit:
        raise ContextOverflowError(stage, 0, least, limit, False)
