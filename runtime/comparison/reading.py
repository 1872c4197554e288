"""Tokenizes the bytes of one model's tokens with another model's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runtime.errors import InvalidRequestError

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel


async def read_again(left: LanguageModel, right: LanguageModel, ids: Sequence[int], pieces: Sequence[bytes]) -> list[int]:
    """The ids of the same bytes in the second model's vocabulary, after the tokens that its tokenizer puts first (BOS).

    Its tokenizer splits the text. Bytes that are not UTF-8, which a model may generate, become tokens of one byte each; an
    unfinished character at the end is left out.

    Raises:
        InvalidRequestError: The second vocabulary has no token for a byte.
    """
    controls = await _controls(left, right, dict(zip(ids, pieces, strict=True)))
    found: list[int] = []
    held: list[bytes] = []
    for token, piece in zip([*ids, None], [*pieces, b""], strict=True):
        if token is not None and (token not in controls or not piece):
            held.append(piece)
            continue
        found += await _tokens(right, b"".join(held), last=token is None)
        held.clear()
        if token is not None:
            found.append(controls[token])
    before = await right.tokenize_async("")
    return found if not found or found[: len(before)] == before else before + found


def unfinished(data: bytes) -> bool:
    """Whether `data` is the beginning of one character, or empty."""
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        return fault.start == 0 and fault.reason == "unexpected end of data"
    return not data


async def _tokens(model: LanguageModel, data: bytes, *, last: bool) -> list[int]:
    found: list[int] = []
    for text, others in _stretches(data, last=last):
        if text:
            found += await model.tokenize_async(text, add_special_tokens=False)
        if others:
            found += _single(model, others)
    return found


def _stretches(data: bytes, *, last: bool) -> Iterator[tuple[str, bytes]]:
    """Pairs of a text and the invalid bytes after it; at the end, an unfinished character is left out."""
    while data:
        try:
            yield data.decode(), b""
            return
        except UnicodeDecodeError as fault:
            text, rest = data[: fault.start].decode(), data[fault.start :]
            if last and unfinished(rest):
                yield text, b""
                return
            broken = fault.end - fault.start
            yield text, rest[:broken]
            data = rest[broken:]


def _single(model: LanguageModel, data: bytes) -> list[int]:
    """`data` as tokens of one byte each."""
    wanted = {data[i : i + 1] for i in range(len(data))}
    known: dict[bytes, int] = {}
    for token, spelled in enumerate(model.byte_vocab):
        if spelled in wanted:
            known.setdefault(spelled, token)
    missing = sorted(wanted - known.keys())
    if missing:
        raise InvalidRequestError(
            f"the tokens' bytes are not UTF-8, and {model.info.name}, which is to read them, has no token for byte "
            f"{missing[0][0]:#04x}"
        )
    return [known[data[i : i + 1]] for i in range(len(data))]


async def _controls(left: LanguageModel, right: LanguageModel, pieces: dict[int, bytes]) -> dict[int, int]:
    """Control tokens of `left`, which no text is tokenized to, and the tokens of `right` with the same bytes."""
    alike = {token: data for token, data in pieces.items() if data.startswith(b"<") and data.endswith(b">")}
    if not alike:
        return {}
    wanted = set(alike.values())
    theirs = {data: token for token, data in enumerate(right.byte_vocab) if data in wanted}
    found: dict[int, int] = {}
    for token, data in alike.items():
        text, other = data.decode(errors="replace"), theirs.get(data)
        if other is not None and await left.tokenize_async(text, add_special_tokens=False) != [token]:
            found[token] = other
    return found
