"""Sizes of the workloads and numbers of their laps."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.measure import Workload
from benchmarks.workloads import branches, chat, particles


@dataclass(frozen=True, slots=True)
class Sizes:
    """Token counts, numbers of laps and durations; the workloads and parts that use them say more."""

    particles: int = 32  # W1
    steps: int = 24
    particle_prompt: int = 256
    resample_every: int = 4
    turns: int = 12  # W2
    chat_tokens: int = 3000
    branches: int = 16  # W3
    transcript: int = 1500
    branch_tokens: int = 8
    stem: int = 1500  # shared by eight rows of a recurrent model
    rounds: int = 5  # laps of most timed contenders
    reopen_tokens: int = 3000  # W4
    reopen_embedded: bool = True  # on the embedded model instead of the case's; so do the cpu part and the texts of pressure
    reopen_processes: int = 5  # each opens the session once; 1 if only counts are needed
    disk_stem: int = 2000
    decode_prompt: int = 32  # W5
    decode_tokens: int = 96
    cpu_tokens: int = 16  # per contender and lap, on the embedded model
    cpu_rounds: int = 3
    contexts: tuple[int, ...] = (300, 1000, 3000)  # per-token overhead
    overhead_tokens: int = 48
    score_tokens: int = 1000  # W6
    bulk_texts: int = 96
    chats: int = 8  # W7
    visits: int = 120
    message: int = 40
    message_answer: int = 10
    budget_tokens: int = 4000
    many_prompt: int = 256  # branches and beams
    many_tokens: int = 32
    latency_seconds: float = 2.0  # W8, per window of time
    latency_windows: int = 5
    sampler_tokens: int = 256  # per vocabulary, number of rows and setting; shorter laps (10 ms) varied by 5 %
    sampler_rows: tuple[int, ...] = (1, 8, 32)
    speculative_tokens: int = 64
    serve_tokens: int = 200  # per stream
    serve_clients: int = 256
    serve_queries: int = 256  # of all clients together
    pressed_chat: int = 1000  # tokens of each of two chats that exceed the KV budget together
    pressed_answer: int = 200
    pressed_laps: int = 3
    texts: int = 100  # unrelated texts, for the embedded model
    edges: int = 120_000  # of the KV store's trie
    edge_queries: int = 16_384  # in one batch
    trie_path: int = 100_000
    trie_branches: int = 10_000
    shelf_turns: int = 5000  # of one saved session
    shelf_sessions: int = 10_000  # in the list
    shelf_searched: int = 1000  # of them with text to search
    shelf_blocks: int = 46  # 138 MB
    file_layers: int = 39  # of a GGUF file with 8 bits per weight: 10 GB
    words: int = 128_256  # tokens of a large vocabulary
    file_verified: int = 256 << 20  # bytes of weights that are verified
    view_tokens: int = 100_000  # in the transcript
    view_sessions: int = 10_000  # in the session list
    view_turns: int = 5_000  # in the tree
    window_turns: int = 5000  # of the session that the whole window opens and exports
    window_prompt: int = 2800  # tokens
    window_seconds: float = 5.0  # of an idle window, and of streaming
    window_laps: int = 4  # each of opening a session, prefilling a prompt and branching
    starts: int = 5  # counted starts of the app

    def workloads(self, vocabulary: int) -> tuple[Workload, ...]:
        """W1, W2 and W3."""
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
QUICK = Sizes(
    particles=8,
    steps=4,
    particle_prompt=64,
    turns=4,
    chat_tokens=320,
    branches=6,
    transcript=200,
    stem=600,
    rounds=2,
    reopen_tokens=600,
    reopen_embedded=False,
    reopen_processes=1,
    disk_stem=600,
    decode_tokens=14,
    cpu_tokens=8,
    cpu_rounds=2,
    contexts=(100, 600),
    overhead_tokens=12,
    score_tokens=150,
    bulk_texts=24,
    visits=32,
    budget_tokens=1200,
    many_prompt=96,
    many_tokens=16,
    latency_seconds=0.4,
    latency_windows=2,
    sampler_tokens=16,
    sampler_rows=(8,),
    speculative_tokens=16,
    serve_tokens=60,
    serve_clients=64,
    serve_queries=64,
    pressed_answer=100,
    texts=24,
    edges=15_000,
    edge_queries=2048,
    shelf_turns=500,  # paths of up to 400 turns are shown whole
    shelf_sessions=200,
    shelf_searched=60,
    shelf_blocks=6,
    view_tokens=6_000,
    view_sessions=3_000,
    view_turns=1_000,
    window_turns=500,
    window_prompt=600,
    window_seconds=0.5,
    window_laps=2,
    words=32_000,
    file_verified=32 << 20,
    starts=1,
)
LARGE_MODEL = Sizes(  # SmolLM2: a token takes twenty times as long as on a tiny model
    particles=8,
    steps=12,
    particle_prompt=64,
    turns=6,
    chat_tokens=600,
    branches=6,
    transcript=300,
    rounds=3,
    decode_tokens=24,
    many_prompt=96,
    many_tokens=12,
    latency_seconds=3.0,
)
LARGE_QUICK = Sizes(
    particles=4,
    steps=6,
    particle_prompt=32,
    turns=3,
    chat_tokens=120,
    branches=4,
    transcript=100,
    branch_tokens=4,
    rounds=1,
    reopen_tokens=600,
    decode_tokens=8,
    cpu_tokens=8,
    cpu_rounds=1,
    score_tokens=200,
    many_prompt=32,
    many_tokens=5,
    latency_seconds=1.0,
    speculative_tokens=16,
)
WARM_UP = Sizes(particles=2, steps=2, particle_prompt=8, resample_every=1, turns=2, chat_tokens=40, branches=2, transcript=16)


def sizes_for(*, tiny: bool, quick: bool) -> Sizes:
    """The sizes for tiny models or for the embedded one."""
    if tiny:
        return QUICK if quick else FULL
    return LARGE_QUICK if quick else LARGE_MODEL
