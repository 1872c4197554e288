r"""The visible form of texts: invisible characters are replaced by their names.

A terminal escape, a bidi override, a tag character or a zero-width space in a model's output must be visible and have no
effect. Names stand for them (the symbols of U+2400 are too small to read at text size). Only `\n` and `\t` keep their
meaning. U+200C, U+200D and the variation selectors up to U+FE0F stay: they join emoji and letters.
"""

from __future__ import annotations

import re

from msgspec import Struct
from PySide6.QtCore import QUrl

_CONTROLS = (
    "NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "HT", "LF", "VT", "FF", "CR", "SO", "SI",
    "DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US",
)  # fmt: skip
_NAMED = {
    0x7F: "DEL",
    0x061C: "ALM", 0x200B: "ZWSP", 0x200E: "LRM", 0x200F: "RLM", 0x2028: "LSEP", 0x2029: "PSEP",
    0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF", 0x202D: "LRO", 0x202E: "RLO", 0x2060: "WJ",
    0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xFEFF: "BOM", 0x00AD: "SHY", 0x180E: "MVS",
}  # fmt: skip

# C0 but tab and newline, DEL, C1, invisible format characters, interlinear annotations, surrogates, private use, tags
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ue000-\uf8ff\U000e0000-\U000e01ff\U000f0000-\U0010ffff]"
)
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff]")


class Visible(Struct, frozen=True):
    """A text to draw, and its character ranges that are names of invisible characters (drawn small)."""

    text: str
    codes: tuple[tuple[int, int], ...] = ()


def is_plain(text: str) -> bool:
    """Whether the text has no invisible characters."""
    return (text.isascii() and text.isprintable()) or _HIDDEN.search(text) is None


def visible(text: str) -> Visible:
    """The text with invisible characters replaced by their names."""
    if is_plain(text):
        return Visible(text)
    parts: list[str] = []
    codes: list[tuple[int, int]] = []
    length = position = 0
    for match in _HIDDEN.finditer(text):
        before, code = text[position : match.start()], _code(ord(match.group()))
        length += len(before)
        codes.append((length, length + len(code)))
        parts += (before, code)
        length += len(code)
        position = match.end()
    parts.append(text[position:])
    return Visible("".join(parts), tuple(codes))


def visible_bytes(data: bytes) -> str:
    """The bytes of a token in one line: `Paris`, `↵`, `e2 82`; leading spaces are dropped if text follows."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex(" ")
    shown = visible(text.replace("\n", "↵").replace("\t", "⇥")).text
    return shown.lstrip(" ") or "␣" * len(shown)


def seen(text: str) -> str:
    """The visible form of several lines; CRLF becomes LF."""
    return visible(text.replace("\r\n", "\n")).text


def one_line(text: str) -> str:
    """The visible form of a title or a name, with white space as single spaces."""
    return " ".join(visible(text).text.split())


def is_right_to_left(text: str) -> bool:
    """Whether any character belongs to a right-to-left script."""
    return not text.isascii() and _RIGHT_TO_LEFT.search(text) is not None


def utf16_length(text: str) -> int:
    """The length of the text in QChars (UTF-16 code units)."""
    return len(text) if text.isascii() or max(text) <= "\uffff" else len(text) + sum(c > "\uffff" for c in text)


def _code(point: int) -> str:
    if point < len(_CONTROLS):
        return _CONTROLS[point]
    if 0xE0020 <= point < 0xE007F:
        return f"tag {chr(point - 0xE0000)}"
    return _NAMED.get(point, f"U+{point:04X}")


SCHEMES = ("https", "http", "mailto")
MOST_CHARACTERS = 8_192  # of an address; browsers do not accept longer ones either


def safe_url(address: str) -> QUrl | None:
    """The URL of an address; None if it is invalid, too long, or of another scheme than `SCHEMES`."""
    url = QUrl(address, QUrl.ParsingMode.TolerantMode)
    if len(address) > MOST_CHARACTERS or not url.isValid() or url.scheme() not in SCHEMES:
        return None
    if url.scheme() == "mailto":
        return url if "@" in url.path() else None
    return url if url.host() else None


def spelled(url: QUrl) -> str:
    """A URL in ASCII as it is sent, which exposes lookalike letters of other alphabets."""
    return bytes(url.toEncoded().data()).decode("ascii", "replace")


def place_of(url: QUrl) -> str:
    """The target of a URL: the host in ASCII, or the whole mail address."""
    return url.path() if url.scheme() == "mailto" else url.host(QUrl.ComponentFormattingOption.FullyEncoded)
