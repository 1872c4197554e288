"""Results in a notebook: tokens coloured by surprise with their numbers as hover text, tables of values.

The pieces are self-contained (no script, no file, no address), escaped, and follow the light or dark scheme of the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from resources import ramp
from runtime.text.utf8 import clean_text

SPELLED: Final = 40  # characters of a token in a hover text
LISTED: Final = 5  # alternatives in a hover text
MOST_TOKENS: Final = 2000  # shown of a run or a grid; pages with more tokens are slow
LIGHT_COLOURS: Final = ("#1d1d1b", "#fcfcfa", "#6b6b65")  # text, ground and soft text of the window's palettes
DARK_COLOURS: Final = ("#ecece7", "#1c1d1c", "#a2a29b")
ON_STRONGEST: Final = "#ffffff"
# Control characters, characters that change the direction of the text, and invisible characters: shown by their code points.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def visible(text: str) -> str:
    """Text for HTML, also in attributes: escaped, lone surrogates replaced, control characters written as [U+202E]."""
    return escape(_UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", clean_text(text)))


def tokens(texts: Sequence[str], bits: Iterable[float], titles: Iterable[str]) -> str:
    """A span per token, coloured by its surprisal in bits (NaN: not coloured), with its hover text."""
    spans = [
        f'<span class="s{ramp.step_of(b)}" title="{visible_lines(title)}">{visible(text)}</span>'
        for text, b, title in zip(texts[:MOST_TOKENS], bits, titles, strict=False)  # generators stop at the last shown token
    ]
    left = len(texts) - MOST_TOKENS
    if left > 0:
        spans.append(f"<em> ... and {left:,} more tokens</em>")
    return f'<div class="tokens" dir="auto">{"".join(spans)}</div>'


def spelled(token: int, piece: bytes) -> str:
    """A token for a hover text: its text (or the bytes of a part of a character) and its id; without bytes, only the id."""
    if not piece:
        return f"id {token}"
    try:
        text = repr(piece.decode())
    except UnicodeDecodeError:
        text = f"bytes {piece.hex(' ').upper()}"
    return f"{text if len(text) <= SPELLED else text[:SPELLED] + '...'} (id {token})"


def likeliest(ids: Iterable[int], logprobs: Iterable[float], vocabulary: Sequence[bytes], most: int = LISTED) -> list[str]:
    """The alternatives at a place, a line each: rank, token, probability."""
    known = [(token, logprob) for token, logprob in zip(ids, logprobs, strict=False) if token >= 0][:most]
    pieces = [vocabulary[token] if token < len(vocabulary) else b"" for token, _ in known]
    each = enumerate(zip(known, pieces, strict=True), 1)
    return [f"{rank}. {spelled(token, piece)}: {chance(logprob)}" for rank, ((token, logprob), piece) in each]


def chance(logprob: float) -> str:
    """A log-probability, shown both as a probability and as a logarithm."""
    return f"{math.exp(logprob):.2%}, log-probability {logprob:.3f}"


def visible_lines(text: str) -> str:
    """As `visible`, with line ends escaped so that an attribute keeps them."""
    return "&#10;".join(visible(line) for line in text.split("\n"))


def table(rows: Iterable[tuple[str, object]]) -> str:
    """A table of names and values."""
    lines = [f"<tr><th>{visible(name)}</th><td>{visible(str(value))}</td></tr>" for name, value in rows]
    return f"<table>{''.join(lines)}</table>"


@dataclass(frozen=True, slots=True)
class GridCell:
    """A cell of a grid: a text coloured by its surprisal in bits (NaN: not coloured), with its hover text; framed if marked."""

    text: str
    bits: float
    title: str
    marked: bool = False

    @property
    def html(self) -> str:
        kind = f"s{ramp.step_of(self.bits)}{' marked' if self.marked else ''}"
        return f'<td class="{kind}" title="{visible_lines(self.title)}">{visible(self.text)}</td>'


def grid(head: Sequence[str], rows: Iterable[tuple[str, Sequence[GridCell]]], left: str) -> str:
    """A table of cells with column and row names; `left`: a note about cells left out, or ""."""
    names = "".join(f"<th>{visible(name)}</th>" for name in ("", *head))
    lines = [f"<tr><th>{visible(name)}</th>{''.join(cell.html for cell in cells)}</tr>" for name, cells in rows]
    more = f"<em>{visible(left)}</em>" if left else ""
    return f'<div class="grid"><table><tr>{names}</tr>{"".join(lines)}</table>{more}</div>'


def outline(lines: Iterable[str]) -> str:
    """Preformatted lines."""
    return f"<pre>{visible(chr(10).join(lines))}</pre>"


def page(*parts: str, caption: str = "") -> str:
    """The parts in one box with their style.

    Args:
        *parts: HTML of `tokens`, `table`, `grid` and `outline`.
        caption: Text above them.
    """
    head = f'<div class="caption">{visible(caption)}</div>' if caption else ""
    return f'<div class="elsewise"><style>{_STYLE}</style>{head}{"".join(parts)}</div>'


def _scheme(colours: tuple[str, str, str], steps: ramp.Ramp) -> str:
    text, ground, soft = colours
    rules = [f".elsewise{{color:{text};background:{ground}}}.elsewise .caption,.elsewise th{{color:{soft}}}"]
    rules += [f".elsewise .s{step}{{background:{colour}}}" for step, colour in enumerate(steps) if colour]
    return "".join(rules)


_STYLE: Final = (
    ".elsewise{padding:.5em .75em;line-height:1.6}.elsewise .tokens{white-space:pre-wrap;overflow-wrap:anywhere}"
    ".elsewise pre{margin:0;background:none;color:inherit;white-space:pre-wrap}"
    ".elsewise th{text-align:left;font-weight:normal;padding-right:1em}.elsewise td{text-align:left}"
    ".elsewise .grid{overflow-x:auto}.elsewise .grid td{white-space:pre}"
    ".elsewise .marked{outline:1px solid;outline-offset:-1px}"
    f"{_scheme(LIGHT_COLOURS, ramp.LIGHT)}.elsewise .s5{{color:{ON_STRONGEST}}}"
    f"@media (prefers-color-scheme:dark){{{_scheme(DARK_COLOURS, ramp.DARK)}}}"
)
