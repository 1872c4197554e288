from __future__ import annotations

from itertools import pairwise

from benchmarks.measure import common_prefix
from benchmarks.sizes import FULL, QUICK
from benchmarks.workloads import branches, chat, particles
from tests.benchmarks.subjects import VOCABULARY, Scripted


def test_particles_grow_by_their_draws_and_copy_each_other() -> None:
    subject = Scripted()
    particles(VOCABULARY, count=6, steps=5, prompt=7, resample_every=2).play(subject)
    # then the prompt comes first, and each step requests all particles at once, one token longer
    prompt, *steps = subject.batches
    assert [len(step) for step in steps] == [6] * 5
    for i, step in enumerate(steps):
        assert {len(particle) for particle in step} == {7 + i}
        assert all(particle[:7] == prompt[0] for particle in step)
        assert all(b == (a + 1) % VOCABULARY for particle in step for a, b in pairwise(particle[6:]))


def test_chat_prompts_begin_with_all_earlier_turns() -> None:
    subject = Scripted()
    chat(VOCABULARY, turns=4, tokens=202).play(subject)
    prompts = [batch[0] for batch in subject.prompts]
    assert len(prompts) == 4
    for before, after in pairwise(prompts):
        assert common_prefix(before, after) == len(before)
        assert after[len(before)] == (before[-1] + 1) % VOCABULARY  # the answer follows its prompt
    assert len(prompts[-1]) + (202 - 202 * 3 // 4) // 5 == 202


def test_branches_start_at_different_tokens_of_one_transcript() -> None:
    subject = Scripted()
    branches(VOCABULARY, count=9, transcript=40, tokens=3).play(subject)
    [[text]], [prompts] = subject.batches, subject.prompts
    assert len(text) == 40
    assert len({len(prompt) for prompt in prompts}) == len(prompts) == 9
    for prompt in prompts:
        assert common_prefix(text, prompt) == len(prompt) - 1 < 40


def test_the_requests_are_the_same_every_time() -> None:
    for size in (QUICK, FULL):
        assert [w.name for w in size.workloads(VOCABULARY)] == ["W1 particles", "W2 chat", "W3 branches"]
    first, second = Scripted(), Scripted()
    for subject in (first, second):
        for workload in QUICK.workloads(VOCABULARY):
            workload.play(subject)
    assert first.batches == second.batches
    assert first.prompts == second.prompts
