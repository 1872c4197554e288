"""Whether an answer that begins with a brace is a call in Llama 3's way, told from its first characters."""

from __future__ import annotations

import re

_MAX_NAME = 256  # characters
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALL = ("{", '"name"', ":", None, ",", ('"parameters"', '"arguments"'), ":")  # None: any string
_HEADS = (_CALL, ("{", '"type"', ":", '"function"', ",", *_CALL[1:]))


def is_call(text: str) -> bool | None:
    """Whether the text begins as ``{"name": ..., "parameters":``; None while more is needed to tell."""
    answers = [_follows(text, head) for head in _HEADS]
    if True in answers:
        return True
    return None if None in answers else False


def _follows(text: str, head: tuple[str | tuple[str, ...] | None, ...]) -> bool | None:
    at = 0
    for part in head:
        while at < len(text) and text[at].isspace():
            at += 1
        rest = text[at : at + _MAX_NAME]
        if part is None:
            string = _STRING.match(rest)
            if string is None:
                return None if rest[:1] in ("", '"') and len(rest) < _MAX_NAME else False
            at += string.end()
            continue
        options = (part,) if isinstance(part, str) else part
        found = next((option for option in options if rest.startswith(option)), None)
        if found is None:
            return None if any(option.startswith(rest) for option in options) else False
        at += len(found)
    return True
