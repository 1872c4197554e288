"""Options as they are written in a field: numbers, texts in quotation marks, token ids, stages in their order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

ARROW = " → "
_TEXTS = ("stop", "dry_breakers")
_IDS = ("banned_tokens",)
_BIASES = ("logit_bias",)
_NAMES = ("order",)


def text_of(name: str, value: object) -> str:
    """A value as it is written in a field."""
    if value is None:
        return ""
    if name in _BIASES and isinstance(value, Mapping):
        return ", ".join(f"{token}: {_number(bias)}" for token, bias in value.items())
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
        return [_read(each) for each in _split(text)]
    if name in _BIASES:
        pairs = [each.partition(":") for each in _split(text)]
        return {token.strip(): _read(bias) for token, _, bias in pairs}
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
