"""W7: more chats than fit. Somebody goes from one to another, says a little, reads the answer, and comes back later."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Subject, Workload

STAY = 0.4  # chance that the next visit is to the chat that was just open


def visits(vocabulary: int, *, chats: int, count: int, message: int, answer: int) -> Workload:
    """Visits to `chats` chats: at each, a message of `message` tokens and an answer of `answer`.

    The chats begin with the same few tokens, as those of one program do.
    """

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(7)
        system = rng.integers(vocabulary, size=message).tolist()
        transcripts = [list(system) for _ in range(chats)]
        at = 0
        for _ in range(count):
            at = at if rng.random() < STAY else int(rng.integers(chats))
            transcripts[at] += rng.integers(vocabulary, size=message).tolist()
            transcripts[at] += subject.answers([transcripts[at]], answer)[0]

    return Workload("W7 budget", play)
