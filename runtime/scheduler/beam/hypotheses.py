"""Conversion of a beam's nodes to columns: the scores to publish, and the run to answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.beams import Hypothesis
from runtime.records import Finish, Float32, Int32, Origin, Scores, TokenRun
from runtime.scheduler.beam.beam_rules import shown
from runtime.scheduler.beam.beam_search import BeamNode, Complete
from runtime.text.utf8 import texts_of


def ids_of(nodes: Sequence[BeamNode]) -> Int32:
    """The token ids."""
    return np.array([node.token for node in nodes], np.int32)


def scores_of(nodes: Sequence[BeamNode], k: int) -> Scores:
    """The scores of the tokens, with `k` alternatives each."""

    def gathered(column: str) -> list[Float32]:
        return [getattr(node.after, column)[node.parent] for node in nodes]

    n = len(nodes)
    top_ids = np.array([row[:k] for row in gathered("top_ids")], np.int32).reshape(n, -1)
    top_logprobs = np.array([row[:k] for row in gathered("top_logprobs")], np.float32).reshape(n, -1)
    covered = np.exp(top_logprobs).sum(axis=-1, dtype=np.float64)
    return Scores(
        logprob=np.array([node.logprob for node in nodes], np.float32),
        rank=np.array([node.rank for node in nodes], np.int32),
        entropy=np.array(gathered("entropy"), np.float32),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        covered_mass=np.minimum(covered, 1.0).astype(np.float32),
    )


def hypothesis(one: Complete, k: int, token_bytes: Sequence[bytes]) -> Hypothesis:
    """The answer for a complete beam."""
    nodes = one.last.chain()
    scores, n = scores_of(nodes, k), len(nodes)
    pieces = tuple(token_bytes[node.token] for node in nodes)
    texts = list(texts_of(pieces))
    if one.last.state is not None and one.last.state.cut:  # `cut` refers to the texts of the states
        texts = shown([node.state.text for node in nodes if node.state is not None], one.last.state.cut)
    finish = np.full(n, int(Finish.NONE), np.uint8)
    finish[-1] = int(one.last.finish)
    run = TokenRun(
        ids=ids_of(nodes),
        token_bytes=pieces,
        texts=tuple(texts),
        **scores.columns,
        origin=np.array([Origin.GRAMMAR if node.forced else Origin.SAMPLED for node in nodes], np.uint8),
        finish=finish,
        draw=np.full(n, np.nan, np.float32),
    )
    return Hypothesis(run, one.last.total, one.score)
