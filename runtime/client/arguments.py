"""What callers give, as plain values that cross the pipe."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.adapters.uses import Adapters, check_adapters
from runtime.errors import InvalidRequestError
from runtime.language_model import Message
from runtime.options.checking import TEXT_FOR_IDS, shown
from runtime.text.utf8 import clean_text


def plain_ids(ids: Sequence[int]) -> list[int]:
    """Token ids as a list of ints; an array of them is taken too.

    Raises:
        InvalidRequestError: Something that is no whole number; its place is named.
    """
    if isinstance(ids, str | bytes):
        raise InvalidRequestError(TEXT_FOR_IDS)
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InvalidRequestError(f"token ids are one row of whole numbers, not {ids.dtype} of shape {ids.shape}")
        numbers: list[int] = ids.tolist()
        return numbers
    try:
        if bool not in set(map(type, ids)):
            return list(map(operator.index, ids))
        bad: tuple[int, object] = next((place, value) for place, value in enumerate(ids) if isinstance(value, bool))
    except TypeError as mismatch:
        if not isinstance(ids, Iterable):
            raise InvalidRequestError(f"token ids are a sequence of whole numbers, not {ids!r:.60}") from mismatch
        bad = next((place, value) for place, value in enumerate(ids) if not hasattr(value, "__index__"))
    place, value = bad
    raise InvalidRequestError(f"token ids are whole numbers; at place {place:,} stands {value!r:.60} ({type(value).__name__})")


def plain_batch(batch: Sequence[Sequence[int]]) -> list[list[int]]:
    """Several token sequences.

    Raises:
        InvalidRequestError: Something else; its place is named where it is of one of them.
    """
    if not isinstance(batch, Iterable):
        raise InvalidRequestError(f"a batch is a list of sequences of token ids, not {shown(batch)}")
    return [plain_ids(ids) for ids in batch]


def plain_keys(keys: Sequence[bytes]) -> list[bytes]:
    """Names of blocks.

    Raises:
        InvalidRequestError: Something else.
    """
    if not isinstance(keys, Iterable):
        raise InvalidRequestError(f"keys are the names of blocks that block_keys gives, not {shown(keys)}")
    return list(keys)


def plain_adapters(adapters: Adapters) -> list[tuple[str, float]] | None:
    """A request's adapters as (name, scale) pairs; None stays None.

    Raises:
        AdapterError: Something that is no name and no pair, or a scale that is not finite.
    """
    return None if adapters is None else list(check_adapters(adapters))


def plain_query(ids: Sequence[int], adapters: Adapters) -> dict[str, Any]:
    """One token sequence, and the adapters it is asked under.

    Raises:
        InvalidRequestError, AdapterError: As of the two above.
    """
    return {"ids": plain_ids(ids), "adapters": plain_adapters(adapters)}


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages or tools as dictionaries of plain values.

    Raises:
        InvalidRequestError: Something that is no list, or no mapping in it.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequestError(f"messages (and tools) are a list of mappings, not {messages!r:.60}")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"message {place} is a mapping with role and content, not {message!r:.60}")
    return [_plain(message) for message in messages]


def _plain(value: Any) -> Any:
    match value:
        case str():
            return clean_text(value)
        case Mapping():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
