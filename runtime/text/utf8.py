"""Incremental decoding of token bytes to text, with U+FFFD for bytes that are not UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from contextlib import suppress

from runtime.errors import InvalidRequestError
from runtime.options.checking import shown

_PRIVATE = range(0xF0000, 0xFFFFE)  # private-use characters of Unicode plane 15


class Utf8Stream:
    """Incremental UTF-8 decoder. Its joined results equal ``all_bytes.decode(errors="replace")``. Not thread-safe."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """The code points that `data` completes; may be empty."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """U+FFFD for an unfinished code point at the end; resets the stream."""
        left = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return left

    def fork(self) -> Utf8Stream:
        other = Utf8Stream()
        other._decoder.setstate(self._decoder.getstate())
        return other

    @property
    def pending(self) -> bytes:
        """Bytes of a code point that is not complete yet (at most three)."""
        return self._decoder.getstate()[0]


def texts_of(pieces: Sequence[bytes], stream: Utf8Stream | None = None) -> tuple[str, ...]:
    """The text that each piece completes, for `TokenRun.texts`.

    Args:
        pieces: The bytes of consecutive tokens.
        stream: Continues earlier tokens and keeps unfinished bytes. Without it the pieces are the whole text, and
            an unfinished end becomes U+FFFD in the last text.
    """
    if stream is not None:
        return tuple(stream.feed(piece) for piece in pieces)
    with suppress(UnicodeDecodeError):  # usual case: no token ends within a character
        return tuple(map(bytes.decode, pieces))
    whole = Utf8Stream()
    texts = [whole.feed(piece) for piece in pieces]
    if texts:
        texts[-1] += whole.flush()
    return tuple(texts)


def clean_text(text: str) -> str:
    """Joins surrogate pairs and replaces lone surrogates by U+FFFD; NUL and control characters are kept.

    Raises:
        InvalidRequestError: `text` is not a string.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"a text is needed, not {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def spare_characters(text: str) -> Iterator[str]:
    """Private-use characters that are not in the text, for use as placeholders."""
    used = set(text)
    return (char for char in map(chr, _PRIVATE) if char not in used)
