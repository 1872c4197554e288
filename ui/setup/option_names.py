"""Options of generation: their names in the window, and their values as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from ui.port import QT_TRANSLATE_NOOP

LABELS = {
    "temperature": (
        QT_TRANSLATE_NOOP("Options", "temperature"),
        QT_TRANSLATE_NOOP("Options", "0 always takes the likeliest token"),
    ),
    "top_k": (
        QT_TRANSLATE_NOOP("Options", "top-k"),
        QT_TRANSLATE_NOOP("Options", "only the k likeliest; 0 is off"),
    ),
    "top_p": (
        QT_TRANSLATE_NOOP("Options", "top-p"),
        QT_TRANSLATE_NOOP("Options", "the likeliest that together reach this probability; 1 is off"),
    ),
    "min_p": (
        QT_TRANSLATE_NOOP("Options", "min-p"),
        QT_TRANSLATE_NOOP("Options", "only those with this share of the likeliest one's probability; 0 is off"),
    ),
    "typical_p": (
        QT_TRANSLATE_NOOP("Options", "typical"),
        QT_TRANSLATE_NOOP("Options", "those whose surprise is nearest to the entropy; 1 is off"),
    ),
    "xtc_probability": (
        QT_TRANSLATE_NOOP("Options", "XTC"),
        QT_TRANSLATE_NOOP("Options", "how often all top choices but the last go; 0 is off"),
    ),
    "repetition_penalty": (
        QT_TRANSLATE_NOOP("Options", "repetition"),
        QT_TRANSLATE_NOOP("Options", "makes what occurred less likely; 1 is off"),
    ),
    "presence_penalty": (
        QT_TRANSLATE_NOOP("Options", "presence"),
        QT_TRANSLATE_NOOP("Options", "is subtracted from what occurred; 0 is off"),
    ),
    "frequency_penalty": (
        QT_TRANSLATE_NOOP("Options", "frequency"),
        QT_TRANSLATE_NOOP("Options", "is subtracted once for each occurrence; 0 is off"),
    ),
    "dry_multiplier": (
        QT_TRANSLATE_NOOP("Options", "DRY"),
        QT_TRANSLATE_NOOP("Options", "makes long repetitions less likely; 0 is off"),
    ),
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
            "the same seed draws the same answer, but where the model's page says otherwise; empty: a fresh one each time",
        ),
    ),
}
MORE = {  # folded away until they are wanted, or said by the session
    "order": (
        QT_TRANSLATE_NOOP("Options", "order of stages"),
        QT_TRANSLATE_NOOP("Options", "their names from the raw scores to the draw; a stage that is left out does nothing"),
    ),
    "logit_bias": (
        QT_TRANSLATE_NOOP("Options", "bias"),
        QT_TRANSLATE_NOOP(
            "Options", 'is added to the scores of tokens, such as " rain": -5, or by id, 36413: -5; spaces in front count'
        ),
    ),
    "banned_tokens": (
        QT_TRANSLATE_NOOP("Options", "never drawn"),
        QT_TRANSLATE_NOOP("Options", 'tokens, such as " rain", "Rain", or their ids, 36413; spaces in front count'),
    ),
    "xtc_threshold": (
        QT_TRANSLATE_NOOP("Options", "XTC from"),
        QT_TRANSLATE_NOOP("Options", "the probability from which XTC counts a token as a top choice"),
    ),
    "penalty_window": (
        QT_TRANSLATE_NOOP("Options", "penalties look at"),
        QT_TRANSLATE_NOOP("Options", "so many last tokens; 0 is all"),
    ),
    "dry_base": (
        QT_TRANSLATE_NOOP("Options", "DRY growth"),
        QT_TRANSLATE_NOOP("Options", "per token of what is repeated"),
    ),
    "dry_allowed_length": (
        QT_TRANSLATE_NOOP("Options", "DRY allows"),
        QT_TRANSLATE_NOOP("Options", "repetitions shorter than so many tokens cost nothing"),
    ),
    "dry_range": (
        QT_TRANSLATE_NOOP("Options", "DRY looks at"),
        QT_TRANSLATE_NOOP("Options", "so many last tokens; 0 is all"),
    ),
    "dry_breakers": (
        QT_TRANSLATE_NOOP("Options", "DRY breakers"),
        QT_TRANSLATE_NOOP("Options", 'no repetition goes across them: texts such as "\\n", ":", or token ids'),
    ),
}

ARROW = " → "
_TEXTS = ("stop", "dry_breakers")
_IDS = ("banned_tokens",)
_BIASES = ("logit_bias",)
_NAMES = ("order",)
_PIECE = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,:"]*?)\s*(?::\s*([^,]*?)\s*)?(?:,|$)')  # a token, and its bias behind a colon

Bytes = Callable[[int], bytes]


def unknown(_token: int) -> bytes:
    """The bytes of a token while no vocabulary is known."""
    return b""


def text_of(name: str, value: object, bytes_of: Bytes = unknown) -> str:
    """A value as it is written in a field; `bytes_of` gives those of tokens, empty where it does not know them."""
    if value is None:
        return ""
    if name in _BIASES and isinstance(value, Mapping):
        biases = [f"{_token(token, bytes_of)}: {_number(bias)}" for token, bias in value.items()]
        return ", ".join(dict.fromkeys(biases))  # two tokens may say the same
    if name in _IDS and isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(dict.fromkeys(_item("stop", t) if isinstance(t, str) else _token(t, bytes_of) for t in value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if name in _TEXTS else value
    if isinstance(value, Sequence):
        return (ARROW if name in _NAMES else ", ").join(_item(name, each) for each in value)
    return _number(value)


def value_of(name: str, text: str) -> object:
    """What was written, as a value; what cannot be read as one stays a text, for others to refuse."""
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


def _texts(text: str) -> list[str | int]:
    """JSON texts and token ids with commas between them; anything else is one text."""
    try:
        read = json.loads(f"[{text}]")
    except ValueError:
        return [text]
    return [each if isinstance(each, str | int) and not isinstance(each, bool) else str(each) for each in read]


def _pieces(text: str) -> list[tuple[str, str]]:
    """Tokens as they are written, each with what stands behind its colon; what cannot be read so is split at its commas."""
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
    """Whether a text in quotation marks can be read; what has none always can."""
    try:
        return not written.startswith('"') or isinstance(json.loads(written), str)
    except ValueError:
        return False


def _token(token: object, bytes_of: Bytes) -> str:
    """A token as its text, where that can be written on a line and read again."""
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
