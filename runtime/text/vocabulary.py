"""The exact bytes of every token, read from what a tokenizer says of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, cast

import tokenizers

from runtime.errors import ModelLoadError

Spelling = Literal["byte-level", "sentencepiece", "wordpiece", "plain"]

MAX_VOCABULARY = 1 << 22  # ids; the largest known vocabularies hold 262,144
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE = "▁"  # U+2581, SentencePiece's space


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    """How the tokenizer writes bytes as token strings."""
    decoder, before = _state(backend.decoder), _state(backend.pre_tokenizer)
    if "ByteLevel" in _types(decoder) or "ByteLevel" in _types(before):
        return "byte-level"
    if "WordPiece" in _types(decoder):
        return "wordpiece"
    if (
        {"ByteFallback", "Metaspace"} & _types(decoder)
        or "Metaspace" in _types(before)
        or _SPACE in json.dumps(decoder, ensure_ascii=False)
    ):
        return "sentencepiece"
    return "plain"


def bytes_by_id(backend: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of every token, indexed by id; empty where an id is not used. Added tokens are their text's bytes.

    Raises:
        ModelLoadError: Ids too large to be real.
    """
    spelling = spelling_of(backend)
    vocab = backend.get_vocab(with_added_tokens=True)
    top = max(vocab.values(), default=-1)
    if not 0 <= top < MAX_VOCABULARY:
        raise ModelLoadError(f"tokenizer.json: the largest token id is {top:,}; 0 to {MAX_VOCABULARY - 1:,} is possible")
    table = [b""] * (top + 1)
    for text, token_id in vocab.items():
        table[token_id] = token_text_bytes(text, spelling)
    for token_id, added in backend.get_added_tokens_decoder().items():
        if token_id <= top:
            spaced = (
                spelling == "sentencepiece" and not added.special
            )  # Gemma's runs of spaces: the decoder knows no difference
            table[token_id] = (added.content.replace(_SPACE, " ") if spaced else added.content).encode()
    return table


def token_text_bytes(text: str, spelling: Spelling) -> bytes:
    """The bytes that a token string of the vocabulary stands for."""
    if spelling == "byte-level":
        table = _byte_characters()
        try:
            return bytes(table[char] for char in text)
        except KeyError:  # not spelled in bytes: stands for itself, as the library's decoder does
            return text.encode()
    if spelling == "sentencepiece":
        byte = _BYTE_TOKEN.match(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode()
    if spelling == "wordpiece":
        return text[2:].encode() if text.startswith("##") else b" " + text.encode()
    return text.encode()


@cache
def _byte_characters() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (Radford et al. 2019): visible Latin-1 stays, the rest moves up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _state(part: object) -> Any:
    """A tokenizer part as plain JSON; None where there is none."""
    return None if part is None else json.loads(cast("bytes", part.__getstate__()))  # the library pickles as JSON


def _types(state: Any) -> set[str]:
    if isinstance(state, Mapping):
        own = {state["type"]} if isinstance(state.get("type"), str) else set()
        return own.union(*(_types(value) for value in state.values()))
    if isinstance(state, list):
        return set().union(*(_types(value) for value in state))
    return set()
