"""Bans and biases that contradict each other, in one layer of options or in two."""

from __future__ import annotations

import pytest

from runtime.errors import InvalidRequestError
from runtime.options.generation import resolve_options


def test_between_a_ban_and_a_positive_bias_the_higher_layer_decides() -> None:
    bans, biases = "sampling.banned_tokens", "sampling.logit_bias"
    # given: a model that bans a token with a positive bias in the call
    resolved = resolve_options({"logit_bias": {3: 2.0, 4: -1.0}}, model={"banned_tokens": (3, 4, 5)})
    # then this token is allowed, and the others stay banned
    assert resolved.options.sampling.banned_tokens == (4, 5)
    assert (resolved.sources[bans], resolved.sources[biases]) == ("call and model", "call")
    # and vice versa
    resolved = resolve_options({"banned_tokens": (3,)}, session={"logit_bias": {3: 2.0, 4: 1.0}})
    assert resolved.options.sampling.logit_bias == {4: 1.0}
    assert (resolved.sources[bans], resolved.sources[biases]) == ("call", "call and session")
    # and a lower layer of which nothing is left is not named as a source
    resolved = resolve_options(session={"logit_bias": {3: 2.0}}, preset={"banned_tokens": (3,)})
    assert resolved.options.sampling.banned_tokens == ()
    assert resolved.sources[bans] == "session"
    # but a contradiction within one layer is refused
    with pytest.raises(InvalidRequestError, match="token id 3"):
        resolve_options(session={"banned_tokens": (3,), "logit_bias": {3: 2.0}})
