"""The words on the card: what stood before a token, and what its alternatives are called."""

from __future__ import annotations

from collections.abc import Sequence

from runtime import TokenRecord
from ui.transcript.compose import is_hidden
from ui.transcript.turn import Turn
from ui.transcript.visible import visible_bytes

_BEFORE_CHARACTERS = 14


def words_of(record: TokenRecord, resolved: Sequence[bytes]) -> list[str]:
    """What to call each alternative of a token; `#36413` where its bytes are not known.

    Args:
        record: The token; its own bytes are known without a vocabulary.
        resolved: The bytes of its alternatives; may be shorter, or empty where unknown.
    """
    words = []
    for place, token in enumerate(record.top_ids):
        data = resolved[place] if place < len(resolved) else b""
        if token == record.token_id:
            data = record.token_bytes
        words.append(visible_bytes(data) if data else f"#{token}")
    return words


def words_before(turns: Sequence[Turn], turn: int, index: int) -> str:
    """The last words in front of a token on one line, with an ellipsis where more stood before."""
    text = ""
    while turn >= 0 and len(text) <= _BEFORE_CHARACTERS:
        tokens = turns[turn].tokens
        for position in range(index - 1, -1, -1):
            if not is_hidden(tokens.marks[position], template=False):
                text = tokens.texts[position][-2 * _BEFORE_CHARACTERS :] + text
            if len(text) > _BEFORE_CHARACTERS:
                break
        turn -= 1
        if turn >= 0 and len(text) <= _BEFORE_CHARACTERS:
            index = len(turns[turn].tokens)
            text = "\n" + text
    stripped = text.strip()
    return _shortened(visible_bytes(stripped.encode(errors="replace"))) if stripped else ""


def _shortened(text: str) -> str:
    """Whole words from the end."""
    if len(text) <= _BEFORE_CHARACTERS:
        return text
    tail = text[-_BEFORE_CHARACTERS:]
    space = tail.find(" ")
    return "…" + (tail[space + 1 :] if 0 <= space < len(tail) - 1 else tail)
