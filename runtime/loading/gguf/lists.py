"""The lists that a GGUF's vocabulary is made of."""

from __future__ import annotations

from collections import Counter

from runtime.loading.gguf.layout import GgufHeader
from runtime.loading.gguf.numbers import fault

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # of tokenizer.ggml.token_type


def tokens_and_kinds(header: GgufHeader) -> tuple[list[str], list[int]]:
    """Every token as the file spells it, and its kind.

    Raises:
        ModelLoadError: They do not fit the embedding or each other, or a token stands there twice.
    """
    tokens = texts(header, "tokenizer.ggml.tokens")
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    rows = header.tensors["token_embd.weight"].shape[0]
    if len(tokens) != rows:
        raise fault(header, f"{len(tokens):,} tokens for {rows:,} rows of the embedding")
    if not isinstance(kinds, list) or len(kinds) != len(tokens) or any(kind not in range(7) for kind in kinds):
        raise fault(header, "tokenizer.ggml.token_type does not give one known type to each token")
    check_unique(header, tokens)
    return tokens, kinds


def check_unique(header: GgufHeader, tokens: list[str]) -> None:
    """Each token stands there once.

    Raises:
        ModelLoadError: Names one that stands there twice.
    """
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise fault(header, f"the token {twice!r} stands in the vocabulary twice")


def texts(header: GgufHeader, key: str) -> list[str]:
    """A list of texts, not empty.

    Raises:
        ModelLoadError: It is missing or something else.
    """
    found = header.metadata.get(key)
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise fault(header, f"{key} is missing or no list of texts")
    return found


def token_id(header: GgufHeader, key: str, count: int) -> int | None:
    """A token's id, None where the file names none.

    Raises:
        ModelLoadError: It is no id of the vocabulary.
    """
    value = header.metadata.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count):
        raise fault(header, f"{key} is {value!r}; the vocabulary has {count:,} tokens")
    return value
