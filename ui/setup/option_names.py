"""Generation options: their names in the window, and their values as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from ui.port import QT_TRANSLATE_NOOP, SAMPLER_STAGES

_PARAMETERS = [each for spec in SAMPLER_STAGES for each in spec.parameters]
LABELS = {
    **{each.name: (each.label, each.hint) for each in _PARAMETERS if not each.folded},
    "max_tokens": (
        QT_TRANSLATE_NOOP("Options", "longest answer"),
        QT_TRANSLATE_NOOP("Options", "tokens"),
    ),
    "stop": (
        QT_TRANSLATE_NOOP("Options", "stop at"),
        QT_TRANSLATE_NOOP("Options", 'texts that end an answer, such as "\\n\\n", "User:"'),
    ),
    "seed": (
        QT_TRANSLATE_NOOP("Options", "seed"),
        QT_TRANSLATE_NOOP(
            "Options",
            "the same seed gives the same answer, unless the model's page says otherwise; empty: a new seed each time",
        ),
    ),
}
MORE = {  # hidden until they are unfolded or the session sets them
    "order": (
        QT_TRANSLATE_NOOP("Options", "order of stages"),
        QT_TRANSLATE_NOOP("Options", "their names from the raw scores to the draw; a stage that is left out does nothing"),
    ),
    **{each.name: (each.label, each.hint) for each in _PARAMETERS if each.folded},
}

ARROW = " → "
_TEXTS = ("stop", "dry_breakers")
_IDS = ("banned_tokens",)
_BIASES = ("logit_bias",)
_NAMES = ("order",)
_PIECE = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,:"]*?)\s*(?::\s*([^,]*?)\s*)?(?:,|$)')  # a token, and its bias behind a colon

Bytes = Callable[[int], bytes]


def unknown(_token: int) -> bytes:
    """The bytes of a token without a vocabulary: none."""
    return b""


def text_of(name: str, value: object, bytes_of: Bytes = unknown) -> str:
    """A value as text for a field; `bytes_of` returns the bytes of a token, or b"" if they are unknown."""
    if value is None:
        return ""
    if name in _BIASES and isinstance(value, Mapping):
        biases = [f"{_token(token, bytes_of)}: {_number(bias)}" for token, bias in value.items()]
        return ", ".join(dict.fromkeys(biases))  # two tokens may have the same text
    if name in _IDS and isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(dict.fromkeys(_item("stop", t) if isinstance(t, str) else _token(t, bytes_of) for t in value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if name in _TEXTS else value
    if isinstance(value, Sequence):
        return (ARROW if name in _NAMES else ", ").join(_item(name, each) for each in value)
    return _number(value)


def value_of(name: str, text: str) -> object:
    """The value of a field's text; a text that cannot be parsed is returned, to be refused later."""
    text = text.strip()
    if not text:
        return None
    if name in _TEXTS:
        texts = _texts(text)
        return [str(each) for each in texts] if name == "stop" else texts
    if name in _IDS:
        return [json.loads(token) if token.startswith('"') else _read(token) for token, _ in _pieces(text)]
    if name in _BIASES:
        return {token: _read(bias) for token, bias in _pieces(text)}
    if name in _NAMES:
        return _split(text.replace("→", ",").replace(">", ","))
    return _read(text)


def is_no_number(name: str, value: object) -> bool:
    """Whether an option takes a number, and `value` is not one."""
    return isinstance(value, str) and name not in (*_TEXTS, *_IDS, *_BIASES, *_NAMES)


def _texts(text: str) -> list[str | int]:
    """Parses JSON strings and token ids separated by commas; anything else is one text."""
    try:
        read = json.loads(f"[{text}]")
    except ValueError:
        return [text]
    return [each if isinstance(each, str | int) and not isinstance(each, bool) else str(each) for each in read]


def _pieces(text: str) -> list[tuple[str, str]]:
    """Splits a text into (token, bias after the colon); a text that cannot be parsed is split at its commas."""
    found, at = list[tuple[str, str]](), 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or not _is_text(piece[1]):
            return [(token.strip().strip('"'), bias) for token, _, bias in (each.partition(":") for each in _split(text))]
        if piece[1]:
            found.append((piece[1], piece[2] or ""))
        at = piece.end()
    return found


def _is_text(written: str) -> bool:
    """Whether a text is valid JSON, if it starts with a quotation mark."""
    try:
        return not written.startswith('"') or isinstance(json.loads(written), str)
    except ValueError:
        return False


def _token(token: object, bytes_of: Bytes) -> str:
    """A token as its text in quotation marks if that is printable, else as its id."""
    number = str(token)
    try:
        text = bytes_of(int(number)).decode()
    except ValueError:  # no id, or bytes that are no whole characters
        return number
    return json.dumps(text, ensure_ascii=False) if text and all(c.isprintable() or c in "\n\t" for c in text) else number


def _split(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _read(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text.strip().replace("\N{MINUS SIGN}", "-"))
        except ValueError:
            continue
    return text.strip()


def _item(name: str, value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if name in _TEXTS else str(value)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
