"""Bans and biases that contradict each other, in one layer of options and in two."""

from __future__ import annotations

import pytest

from runtime.errors import InvalidRequestError
from runtime.options.generation import resolve_options


def test_of_a_ban_and_a_favour_in_two_layers_the_lower_one_is_dropped() -> None:
    bans, biases = "sampling.banned_tokens", "sampling.logit_bias"
    # given: a model that bans what a call makes likelier
    resolved = resolve_options({"logit_bias": {3: 2.0, 4: -1.0}}, model={"banned_tokens": (3, 4, 5)})
    # then that one token may come, and the others may not
    assert resolved.options.sampling.banned_tokens == (4, 5)
    assert (resolved.sources[bans], resolved.sources[biases]) == ("call and model", "call")
    # and the other way round
    resolved = resolve_options({"banned_tokens": (3,)}, session={"logit_bias": {3: 2.0, 4: 1.0}})
    assert resolved.options.sampling.logit_bias == {4: 1.0}
    assert (resolved.sources[bans], resolved.sources[biases]) == ("call", "call and session")
    # and where nothing is left of the lower one, it has no part in it
    resolved = resolve_options(session={"logit_bias": {3: 2.0}}, preset={"banned_tokens": (3,)})
    assert resolved.options.sampling.banned_tokens == ()
    assert resolved.sources[bans] == "session"
    # but one layer that says both contradicts itself
    with pytest.raises(InvalidRequestError, match="token id 3"):
        resolve_options(session={"banned_tokens": (3,), "logit_bias": {3: 2.0}})
