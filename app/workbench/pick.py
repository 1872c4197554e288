"""The token that stands in for another one, and where an answer's own tokens begin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from runtime import Finish, Origin, TokenRun, texts_of


def pick(run: TokenRun, offset: int, token_id: int, token_bytes: bytes) -> TokenRun:
    """The token that replaces row `offset`: same distribution, its own logprob and rank from the top-k. No forward."""
    row = run[offset : offset + 1]
    place = np.flatnonzero(row.top_ids[0] == token_id)
    known = bool(place.size)
    logprob = row.top_logprobs[0, place[0]] if known else np.float32(np.nan)
    rank = 1 + int((row.top_logprobs[0] > logprob).sum()) if known else 0
    return replace(
        row,
        ids=np.array([token_id], np.int32),
        token_bytes=(token_bytes,),
        texts=texts_of([token_bytes]),
        logprob=np.array([logprob], np.float32),
        rank=np.array([rank], np.int32),
        origin=np.array([int(Origin.PICKED)], np.uint8),
        finish=np.zeros(1, np.uint8),
        draw=np.full(1, np.nan, np.float32),
    )


def as_eos(picked: TokenRun) -> TokenRun:
    """The same token as the end of its answer."""
    return replace(picked, finish=np.array([int(Finish.EOS)], np.uint8))


def without_numbers(run: TokenRun) -> TokenRun:
    """The same tokens, to be scored anew: another model thought those numbers."""
    plain = TokenRun.unscored(run.ids.tolist(), run.token_bytes, run.texts, Origin.TEMPLATE)
    return replace(plain, origin=run.origin, finish=run.finish)


def leading_template(run: TokenRun) -> int:
    """How many tokens at the beginning are the template's."""
    own = np.flatnonzero(run.origin != int(Origin.TEMPLATE))
    return int(own[0]) if own.size else len(run)


def began(run: TokenRun) -> bool:
    """Whether an answer has a token of its own, beyond the template's header."""
    return leading_template(run) < len(run)
