"""W1, W2, W3, W7: tokens computed over tokens needed, with other libraries; CPU seconds of W1, wall seconds of W2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clock import Told, cpu, share, wall
from benchmarks.findings import BarVerdict, Case, Findings, Limit
from benchmarks.forwards import FORWARDS, LIMIT, forwards_alone
from benchmarks.measure import Ids, Subject, Workload, WorkloadResult, measure, medians
from benchmarks.ours import Ours, our_subject
from benchmarks.peers.bare import NAME as BARE
from benchmarks.sizes import WARM_UP, Sizes
from benchmarks.workloads import simulate, visits

RATIO_BAR = 1.05  # tokens computed by Elsewise over ideal
CPU_BAR = 1.5  # CPU seconds over those of bare forwards
ONCE = "transformers, stateless"  # played once: it takes minutes and has no bar
ROW, CHAT_ROW = "W1 cpu", "W2 wall"


def particles(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W1: token counts and CPU seconds over several rounds."""
    results = _play(case, sizes, tell, index=0, rounds=sizes.rounds)
    found = [medians(laps) for laps in results.values()]
    verdicts = [_counted(case, found[0]), *_by_cpu(case, results)]
    return Findings(results=tuple(found), verdicts=tuple(verdicts))


def chat(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W2: token counts and wall seconds over several rounds."""
    results = _play(case, sizes, tell, index=1, rounds=sizes.rounds)
    found = [medians(laps) for laps in results.values()]
    verdicts = [_counted(case, found[0])]
    for name, peer in results.items():
        if name not in (Ours.name, ONCE, FORWARDS):
            limit = Limit(share(results[FORWARDS], peer, wall), LIMIT)
            verdicts.append(case.verdict(CHAT_ROW, f"wall / {name}", share(results[Ours.name], peer, wall), 1.0, limit=limit))
    return Findings(results=tuple(found), verdicts=tuple(verdicts))


def branches(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W3: token counts."""
    found = [medians(laps) for laps in _play(case, sizes, tell, index=2, rounds=1).values()]
    return Findings(results=tuple(found), verdicts=(_counted(case, found[0]),))


def _play(case: Case, sizes: Sizes, tell: Told, *, index: int, rounds: int) -> dict[str, list[WorkloadResult]]:
    """Plays a workload with Elsewise, its peers and, in W1 and W2, Elsewise's forwards alone, in turns; results by name."""
    workload = sizes.workloads(case.vocabulary)[index]
    results: dict[str, list[WorkloadResult]] = {}
    tell(f"{workload.name}: loading")
    ours, others = our_subject(case), peers(case, particles=index == 0, records=index == 1)
    for subject in (ours, *others):
        WARM_UP.workloads(case.vocabulary)[index].play(subject)  # imports, first allocations

    def play(name: str, lap: Callable[[], WorkloadResult]) -> None:
        tell(f"{workload.name}, {name}")
        results.setdefault(name, []).append(lap())

    run = partial(_lap, workload, ours, case)
    for turn in range(rounds):
        play(ours.name, run)
        for subject in others:
            if turn == 0 or subject.name != ONCE:
                play(subject.name, partial(_lap, workload, subject, case))
        if index < 2:  # W1, W2
            play(FORWARDS, lambda: replace(forwards_alone(ours.model, run), subject=FORWARDS))
    return results


def _lap(workload: Workload, subject: Subject, case: Case) -> WorkloadResult:
    return measure(workload, subject, backend=case.backend, model=case.model)


def peers(case: Case, *, particles: bool, records: bool = False) -> list[Subject]:
    """The peers of a case's backend; their libraries are imported here.

    Args:
        case: The model, which each peer loads once.
        particles: Whether to include bare forwards, which can play only particles.
        records: Whether to include peers that make a record of each generated token like Elsewise's.
    """
    kinds: list[Callable[[Path], Subject]] = []
    if case.backend == "hf":
        from benchmarks.peers.torch_peers import BareTorch, OneCache, OneCacheRecords, Stateless

        kinds += [OneCache] + [OneCacheRecords] * records + [Stateless] * case.tiny + [BareTorch] * particles
    elif case.backend == "mlx":
        from benchmarks.peers.mlx_peers import BareMlx, MlxPromptCache, MlxPromptCacheRecords

        kinds += [MlxPromptCache] + [MlxPromptCacheRecords] * records + [BareMlx] * particles
    return [case.loaded.get(kind, partial(kind, case.folder)) for kind in kinds]


def _counted(case: Case, ours: WorkloadResult) -> BarVerdict:
    return case.verdict(ours.workload, "tokens computed / ideal", ours.ratio, RATIO_BAR, timed=False)


def _by_cpu(case: Case, results: Mapping[str, Sequence[WorkloadResult]]) -> list[BarVerdict]:
    """CPU seconds over those of bare forwards, and over those of peers with a cache."""
    ours = results[Ours.name]
    verdicts = []
    for name, peer in results.items():
        if name not in (Ours.name, ONCE, FORWARDS):
            bar = CPU_BAR if name == BARE else 1.0
            limit = Limit(share(results[FORWARDS], peer, cpu), LIMIT)
            verdicts.append(case.verdict(ROW, f"cpu / {name}", share(ours, peer, cpu), bar, limit=limit))
    return verdicts


def budget(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W7: Elsewise with a KV budget for some of the chats, compared with a simulated cache of the same eviction rule.

    The simulated cache has the capacity that the longest request leaves of the budget.
    """
    workload = visits(
        case.vocabulary, chats=sizes.chats, count=sizes.visits, message=sizes.message, answer=sizes.message_answer
    )
    tell(f"{workload.name}: loading")
    limit = sizes.budget_tokens * our_subject(case).kv_bytes_per_token
    with closing(_Log(case.folder, case.backend, kv_cache_bytes=limit)) as ours:
        tell(f"{workload.name}, elsewise")
        result = measure(workload, ours, backend=case.backend, model=case.model)
        peak = ours.metrics.kv_peak_bytes
    largest = max(len(prompt) + len(answer) for prompt, answer in ours.requests)
    best = simulate(ours.requests, sizes.budget_tokens - largest)
    what = f"tokens computed / simulator ({result.tokens:,} / {best:,})"
    verdicts = (
        case.verdict(workload.name, what, result.tokens / best, RATIO_BAR, timed=False),
        case.verdict(workload.name, "peak bytes / budget", peak / limit, 1.0, timed=False),
    )
    return Findings(results=(result,), verdicts=verdicts)


class _Log(Ours):
    """Elsewise with its prompts and answers, for the simulated cache."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.requests: list[tuple[Ids, Ids]] = []

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        answers = super().answers(prompts, n)
        self.requests += [(list(prompt), answer) for prompt, answer in zip(prompts, answers, strict=True)]
        return answers
