"""How large the workloads are."""

from __future__ import annotations

from dataclasses import dataclass

from app.bench.measure import Workload
from app.bench.workloads.branches import branches
from app.bench.workloads.chat import chat
from app.bench.workloads.particles import particles


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens and counts; see the workloads' own modules."""

    particles: int = 32
    steps: int = 24
    particle_prompt: int = 256
    resample_every: int = 4
    turns: int = 12
    chat_tokens: int = 3000
    branches: int = 16
    transcript: int = 1500
    branch_tokens: int = 8

    def workloads(self, vocabulary: int) -> tuple[Workload, ...]:
        """All of them, in the order of their names."""
        return (
            particles(
                vocabulary,
                count=self.particles,
                steps=self.steps,
                prompt=self.particle_prompt,
                resample_every=self.resample_every,
            ),
            chat(vocabulary, turns=self.turns, tokens=self.chat_tokens),
            branches(vocabulary, count=self.branches, transcript=self.transcript, tokens=self.branch_tokens),
        )


FULL = Sizes()
QUICK = Sizes(particles=8, steps=8, particle_prompt=64, turns=6, chat_tokens=600, branches=6, transcript=300)
WARM_UP = Sizes(particles=2, steps=2, particle_prompt=8, resample_every=1, turns=2, chat_tokens=40, branches=2, transcript=16)
