"""Workloads so small that a test has time for them."""

from __future__ import annotations

from benchmarks.sizes import Sizes

SMALL = Sizes(
    particles=6,
    steps=5,
    particle_prompt=24,
    resample_every=2,
    turns=3,
    chat_tokens=90,
    branches=4,
    transcript=60,
    rounds=2,
    decode_prompt=8,
    decode_tokens=6,
    contexts=(20, 70),
    overhead_tokens=5,
    score_tokens=90,
    chats=4,
    visits=24,
    message=10,
    message_answer=4,
    budget_tokens=300,
    sampler_tokens=2,
    sampler_rows=(1, 2),
    many_prompt=24,
    many_tokens=5,
    trie_path=3_000,
    trie_branches=200,
    shelf_turns=450,
    shelf_sessions=40,
    shelf_searched=10,
    shelf_blocks=2,
    file_words=2_000,
    file_verified=1 << 20,
)
