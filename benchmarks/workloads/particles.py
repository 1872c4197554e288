"""W1: particles. Many continuations of one prompt grow by a token a step; now and then the unlikely ones are replaced."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Subject, Workload

SPREAD = 2.0  # of the made-up weights, in nats: about a third of the particles die at each resampling


def particles(vocabulary: int, *, count: int, steps: int, prompt: int, resample_every: int) -> Workload:
    """Sequential Monte Carlo as a steered generation does it: per step one batch query, a draw each, weights, survival.

    Args:
        vocabulary: Tokens are drawn below this.
        count: Particles.
        steps: Tokens each of them grows by.
        prompt: Tokens they all begin with.
        resample_every: Steps between two resamplings. Weights are random: only who copies whom matters here.
    """

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(1)
        stem = rng.integers(vocabulary, size=prompt).tolist()
        subject.logprobs([stem])  # once, before the particles: kinder to caches that know only what is finished
        population = [list(stem) for _ in range(count)]
        for step in range(1, steps + 1):
            logprobs = subject.logprobs(population)
            for particle, row in zip(population, logprobs, strict=True):
                # The largest log-probability plus Gumbel noise is a draw from the distribution. Unlike a search in the
                # cumulated probabilities, it hardly ever turns on the last bits, in which libraries differ.
                drawn = rng.standard_exponential(vocabulary, np.float32)  # now and then one of them rounds to 0
                noise = -np.log(np.maximum(drawn, np.finfo(np.float32).tiny))
                particle.append(int(np.argmax(row[:vocabulary] + noise)))
            if step % resample_every == 0:
                weights = np.exp(SPREAD * rng.standard_normal(count))
                chosen = rng.choice(count, size=count, p=weights / weights.sum())
                population = [list(population[i]) for i in chosen]

    return Workload("W1 particles", play)
