"""Tokens by what they say: a bias or a ban may name a piece of text in place of an id."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from app.workbench.prompt.vocabulary import TokenBytes
from ui import Refusal, translate

QUOTED = 60  # characters of a text that a refusal quotes


def with_ids(name: str, value: object, vocabulary: TokenBytes) -> object:
    """The value of an option with ids in place of texts; other options, and what is not of that shape, as they are.

    In `logit_bias` a key is an id in digits, a text, or a text in quotation marks (as JSON writes it).

    Raises:
        Refusal: A text is no token of the model that was used last; says which one it begins with.
    """
    if name == "banned_tokens" and isinstance(value, Sequence) and not isinstance(value, str):
        ids = [token for each in value for token in (_ids(each, vocabulary) if isinstance(each, str) else (each,))]
        return list(dict.fromkeys(ids))
    if name == "logit_bias" and isinstance(value, Mapping):
        return {str(token): bias for key, bias in value.items() for token in _keyed(str(key), vocabulary)}
    return value


def _keyed(key: str, vocabulary: TokenBytes) -> Sequence[object]:
    if key.removeprefix("-").isdecimal():
        return (int(key),)
    try:
        text = json.loads(key) if key.startswith('"') else key
    except ValueError:
        text = key
    return _ids(str(text), vocabulary)


def _ids(text: str, vocabulary: TokenBytes) -> Sequence[int]:
    """The tokens that say just that; there may be several of the same bytes."""
    if not vocabulary.is_known:
        raise Refusal(
            translate(
                "Workbench",
                "no model was used here yet, so tokens are named by token ids alone; load a model, then write it again",
            )
        )
    found = vocabulary.saying(text)
    if found:
        return found
    quoted = json.dumps(text[:QUOTED], ensure_ascii=False)
    start = vocabulary.longest_start(text)
    if not start:
        raise Refusal(
            translate("Workbench", "no token of the model says {0}; click a token and take its text from the inspector").format(
                quoted
            )
        )
    begins = json.dumps(start.decode(errors="replace"), ensure_ascii=False)
    raise Refusal(
        translate(
            "Workbench", "{0} is more than one token: it begins with {1}. Name tokens one by one; spaces in front count"
        ).format(quoted, begins)
    )
