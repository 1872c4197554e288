"""W2: chat. A conversation grows turn by turn; each prompt is everything that was said before and a new message."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Subject, Workload

ANSWER_SHARE = 5  # every fifth token of a turn is the model's


def chat(vocabulary: int, *, turns: int, tokens: int) -> Workload:
    """A chat of `turns` turns, `tokens` tokens long at its end; a fifth of each turn is the answer."""

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(2)
        transcript: list[int] = []
        for turn in range(1, turns + 1):
            room = tokens * turn // turns - len(transcript)
            answer = room // ANSWER_SHARE
            transcript += rng.integers(vocabulary, size=room - answer).tolist()
            transcript += subject.answers([transcript], answer)[0]

    return Workload("W2 chat", play)
