"""Converts a server's lists to columns of numbers. Known values are exact; unknown values stay empty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.numerics.scoring import empty_scores, summarise, top_k
from runtime.records import NO_TOKEN, Float32, Int32, Scores, TopLogprobs
from runtime.remote.dialect import AnswerToken, Scored, TokenAlternatives, malformed


def checked_ids(found: TokenAlternatives, vocab: int) -> tuple[Int32, Float32]:
    """Ids and log-probabilities, likeliest first, ties by id; each id once.

    Raises:
        RemoteError: An id outside the vocabulary, an id twice, or a total probability above 1.
    """
    try:
        ids, values = np.asarray(found.keys, np.int64), np.asarray(found.logprobs, np.float64)
    except OverflowError:
        raise malformed(f"a token id outside its vocabulary of {vocab:,}") from None
    if len(ids) and not (ids.min() >= 0 and ids.max() < vocab):
        raise malformed(f"a token id outside its vocabulary of {vocab:,}")
    order = np.lexsort((ids, -values))
    values = values[order]
    if len(np.unique(ids)) != len(ids):
        raise malformed("a token id twice among the alternatives")
    mass = float(np.exp(values).sum())
    if mass > 1.01:
        raise malformed(f"alternatives with a probability of {mass:.3f} together")
    return ids[order].astype(np.int32), values.astype(np.float32)


def dense(found: TokenAlternatives, vocab: int) -> Float32:
    """``(vocab,)`` log-probabilities of all ids.

    Raises:
        RemoteError: Some ids are missing, or the values are no probability distribution.
    """
    row = truncated(found, vocab)
    ids, mass = found.keys, float(np.exp(row.astype(np.float64)).sum())
    if len(ids) != vocab or abs(mass - 1.0) > 0.01:
        raise malformed(f"{len(ids):,} of {vocab:,} log-probabilities with a probability of {mass:.3f} together")
    return row


def truncated(found: TokenAlternatives, vocab: int) -> Float32:
    """``(vocab,)`` log-probabilities of the given ids, minus infinity for all others."""
    ids, values = checked_ids(found, vocab)
    row = np.full(vocab, -np.inf, np.float32)
    row[ids] = values
    return row


def top_of(found: TokenAlternatives, count: int, vocab: int, chosen: Mapping[int, float | None]) -> TopLogprobs:
    """The `count` likeliest ids, the exact probability of all others together, and the values of the chosen ids.

    A server may add the sampled token to its list; alternatives beyond `count` are left out.
    """
    ids, values = checked_ids(found, vocab)
    named: dict[int, float] = {}
    for token, value in chosen.items():
        if value is None:
            raise malformed(f"no value of token {token}, which was asked for")
        named[token] = value
    return TopLogprobs.of(ids[:count], values[:count], vocab, named)


def top_of_row(row: Float32, count: int, chosen: Sequence[int]) -> TopLogprobs:
    """`top_of` for a whole row, ``(vocab,)``."""
    ids, values = top_k(row[None], count)
    return TopLogprobs.of(ids[0], values[0], len(row), {token: float(row[token]) for token in chosen})


def answer_scores(piece: AnswerToken, token: int, k: int, asked: int, vocab: int) -> Scores:
    """One row for a token of an answer; numbers that the server does not return are NaN, 0 or `NO_TOKEN`.

    The rank is known where the token is among the `asked` likeliest tokens and the server returned all of these. The entropy
    is known where the alternatives are the whole vocabulary.
    """
    row = empty_scores(1, k)
    row.logprob[0], row.rank[0], row.entropy[0], row.covered_mass[0] = np.nan, 0, np.nan, np.nan
    row.top_ids[0], row.top_logprobs[0] = NO_TOKEN, -np.inf
    if piece.alternatives is None:
        if piece.logprob is not None:
            row.logprob[0] = piece.logprob
        return row
    ids, values = checked_ids(piece.alternatives, vocab)
    if len(ids) == vocab:
        return summarise(dense(piece.alternatives, vocab)[None], np.array([token], np.int32), k)
    own = values[ids == token]
    if len(own):
        row.logprob[0] = own[0]
        above = int((values > own[0]).sum())
        whole = len(ids) >= min(asked, vocab)  # a list with gaps has no ranks
        row.rank[0] = above + 1 if whole and above < asked else 0
    elif piece.logprob is not None:
        row.logprob[0] = piece.logprob
    _alternatives_into(row, 0, ids[:asked], values[:asked])
    return row


def prompt_scores(scored: Sequence[Scored | None], ids: Int32, k: int, asked: int, vocab: int) -> Scores:
    """``(n,)`` rows for the tokens of a prompt; an entry of None (nothing precedes the token) leaves its row empty.

    Raises:
        RemoteError: A token's own value is missing, or a rank is out of range.
    """
    n = len(ids)
    rows = empty_scores(n, k)
    rows.logprob[:], rows.rank[:], rows.entropy[:], rows.covered_mass[:] = np.nan, 0, np.nan, np.nan
    rows.top_ids[:], rows.top_logprobs[:] = NO_TOKEN, -np.inf
    for i, (entry, token) in enumerate(zip(scored, ids.tolist(), strict=True)):
        if entry is None:
            continue
        if token not in entry.ids:
            raise malformed(f"no score of token {token} at place {i:,}")
        place = entry.ids.index(token)
        if not 0 <= entry.ranks[place] <= vocab:
            raise malformed(f"rank {entry.ranks[place]:,} in a vocabulary of {vocab:,}")
        rows.logprob[i], rows.rank[i] = entry.logprobs[place], entry.ranks[place]
        found, values = checked_ids(TokenAlternatives(entry.ids, entry.logprobs), vocab)
        if rows.rank[i] == 0:
            above = int((values > rows.logprob[i]).sum())
            rows.rank[i] = above + 1 if above < asked else 0
        _alternatives_into(rows, i, found[:asked], values[:asked])
    return rows


def _alternatives_into(rows: Scores, i: int, ids: Int32, values: Float32) -> None:
    count = min(len(ids), rows.top_ids.shape[1])
    rows.top_ids[i, :count], rows.top_logprobs[i, :count] = ids[:count], values[:count]
    rows.covered_mass[i] = min(math.fsum(np.exp(values[:count].astype(np.float64)).tolist()), 1.0)
