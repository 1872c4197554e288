"""Adds `logit_bias` to scores and bans `banned_tokens`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from runtime.errors import InvalidRequestError
from runtime.options.checking import FEW, as_tuple, check_token, check_value, many, shown
from runtime.sampling.spec import CHANGE, QT_TRANSLATE_NOOP, Chosen, Parameter, StageKind, StageSpec

if TYPE_CHECKING:
    from runtime.sampling.history import History
    from runtime.sampling.pool import CandidatePool

BANNING: Final = -1e9  # a bias from here down bans: in float32 no digit of a model's score survives the addition


class Bias:
    """Adds `logit_bias`, bans `banned_tokens`."""

    def __init__(self, bias: dict[int, float], banned: Collection[int]) -> None:
        amounts = {**bias, **dict.fromkeys(banned, -np.inf)}
        self._ids = np.array(list(amounts), np.int64)
        self._amounts = np.array(list(amounts.values()), np.float32)

    def apply(self, pool: CandidatePool, _history: History, _u: float = 0.0) -> None:
        pool.add(self._ids, self._amounts)


def _biases(value: Any) -> str | None:
    return None if isinstance(value, dict) else "{option} is a dictionary of token ids and numbers, not {value}"


def _read_biases(name: str, value: Any) -> Any:
    """Converts keys that are texts, as in JSON, to token ids."""
    if not isinstance(value, Mapping):
        return value
    try:
        return {int(token) if isinstance(token, str) else token: bias for token, bias in value.items()}
    except ValueError:
        raise InvalidRequestError(f"{name}: its keys are token ids, not {shown(list(value))}") from None


def _read_ids(name: str, value: Any) -> Any:
    """Token ids; of Hugging Face's `bad_words_ids`, lists of ids, only those of one token can be banned."""
    if name != "bad_words_ids" or not isinstance(value, list | tuple):
        return as_tuple(value)
    for word in value:
        if not isinstance(word, list | tuple) or len(word) != 1:
            raise InvalidRequestError(f"bad_words_ids: only words of one token can be banned, not {shown(word)}")
    return tuple(word[0] for word in value)


def _check(chosen: Chosen, vocab: int | None) -> None:
    """Refuses ids beyond the vocabulary, banned tokens with a positive bias, and a ban of all tokens."""
    biases, banned = chosen.get("logit_bias", {}), chosen.get("banned_tokens", ())
    for token, bias in biases.items():
        check_token("logit_bias", token, vocab)
        check_value(f"logit_bias of token {token}", bias, CHANGE)
    for token in banned:
        check_token("banned_tokens", token, vocab)
    banned = set(banned)
    both = sorted(token for token in banned.intersection(biases) if biases[token] > 0)
    if both:
        ids = ", ".join(map(str, both[:FEW])) + (f" and {len(both) - FEW:,} more" if len(both) > FEW else "")
        raise InvalidRequestError(
            f"banned_tokens bans what logit_bias makes likelier (token id {ids}): take each out of one of the two"
        )
    if vocab is None or len(banned) + len(biases) < vocab:
        return
    away = {token for token, bias in biases.items() if bias <= BANNING} - banned
    if len(banned) + len(away) >= vocab:
        names = " and ".join(name for name, some in (("banned_tokens", banned), ("logit_bias", away)) if some)
        how = f" (a bias of {BANNING:g} or less bans)" if away else ""
        verb = "ban" if banned and away else "bans"
        raise InvalidRequestError(f"{names} {verb} all {vocab:,} tokens of the vocabulary{how}: nothing is left to draw")


SPEC = StageSpec(
    name="bias",
    number=3,
    kind=StageKind.EDIT,
    kernel=lambda chosen: Bias(chosen["logit_bias"], chosen["banned_tokens"]).apply,
    check=_check,
    parameters=(
        Parameter(
            "logit_bias", {}, _biases,
            QT_TRANSLATE_NOOP("Options", "bias"),
            QT_TRANSLATE_NOOP(
                "Options",
                'added to the scores of tokens, such as " rain": -5, or by id, 36413: -5; spaces in front count',
            ),
            folded=True,
            read=_read_biases,
        ),
        Parameter(
            "banned_tokens", (), many("token ids"),
            QT_TRANSLATE_NOOP("Options", "never drawn"),
            QT_TRANSLATE_NOOP("Options", 'tokens, such as " rain", "Rain", or their ids, 36413; spaces in front count'),
            folded=True,
            aliases=("suppress_tokens", "bad_words_ids"),
            read=_read_ids,
        ),
    ),
)  # fmt: skip
