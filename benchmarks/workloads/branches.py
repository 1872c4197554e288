"""W3: branches. A transcript is read, then other tokens are picked at places all over it, and each is streamed on from."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Subject, Workload


def branches(vocabulary: int, *, count: int, transcript: int, tokens: int) -> Workload:
    """Branches at random places of one transcript, in random order, all asked for at once.

    Args:
        vocabulary: Tokens are drawn below this.
        count: Branches.
        transcript: Tokens that are there before; any but the first may be replaced.
        tokens: Tokens generated on each branch, after the one that was picked.
    """

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(3)
        text = rng.integers(vocabulary, size=transcript).tolist()
        subject.logprobs([text])
        places = rng.permutation(np.arange(1, transcript))[:count].tolist()
        picked = [(text[at] + 1 + int(rng.integers(vocabulary - 1))) % vocabulary for at in places]  # never the same
        subject.answers([[*text[:at], token] for at, token in zip(places, picked, strict=True)], tokens)

    return Workload("W3 branches", play)
