"""W1, W2, W3: tokens computed against tokens needed, beside other libraries; for W1 the cpu-seconds as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from app.bench.clock import Told
from app.bench.findings import Case, Findings, Verdict
from app.bench.measure import Result, Subject, Workload, measure, medians
from app.bench.ours import Ours
from app.bench.peers.bare import NAME as BARE
from app.bench.sizes import WARM_UP, Sizes

RATIO_BAR = 1.05  # tokens over ideal that Elsewise promises to stay within
CPU_BAR = 1.5  # times the cpu-seconds of bare forwards
ONCE = "transformers, stateless"  # minutes of work that no bar asks for: once is enough
ROW = "W1 cpu"

Maker = Callable[[Path], Subject]


def particles(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W1: counts, and cpu-seconds over several rounds in which all take turns."""
    results = _play(case, sizes, tell, index=0, rounds=sizes.rounds)
    found = [medians(laps) for laps in results.values()]
    verdicts = [_counted(found[0]), *_by_cpu(results)]
    return Findings(results=tuple(found), verdicts=tuple(verdicts))


def chat(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W2."""
    return _count(case, sizes, tell, index=1)


def branches(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """W3."""
    return _count(case, sizes, tell, index=2)


def _count(case: Case, sizes: Sizes, tell: Told, *, index: int) -> Findings:
    found = [medians(laps) for laps in _play(case, sizes, tell, index=index, rounds=1).values()]
    return Findings(results=tuple(found), verdicts=(_counted(found[0]),))


def _play(case: Case, sizes: Sizes, tell: Told, *, index: int, rounds: int) -> dict[str, list[Result]]:
    """Elsewise first and its peers after it, in turns."""
    workload: Workload = sizes.workloads(case.vocabulary)[index]
    results: dict[str, list[Result]] = {}
    with ExitStack() as stack:
        tell(f"{workload.name}: loading")
        subjects = [make(case.folder) for make in makers(case, particles=index == 0)]
        for subject in subjects:
            stack.callback(subject.close)
            WARM_UP.workloads(case.vocabulary)[index].play(subject)  # imports, first allocations
        for turn in range(rounds):
            for subject in subjects:
                if turn == 0 or subject.name != ONCE:
                    tell(f"{workload.name}, {subject.name}")
                    result = measure(workload, subject, backend=case.backend, model=case.model)
                    results.setdefault(subject.name, []).append(result)
    return results


def makers(case: Case, *, particles: bool) -> list[Maker]:
    """Elsewise on a backend, then the peers of that backend; their libraries are imported here.

    Args:
        case: The model.
        particles: Whether bare forwards are among them, which can do nothing else.
    """
    found: list[Maker] = [partial(Ours, backend=case.backend)]
    if case.backend == "hf":
        from app.bench.peers.bare_torch import BareTorch
        from app.bench.peers.one_cache import OneCache
        from app.bench.peers.stateless import Stateless

        found += [OneCache] + [Stateless] * case.tiny + [BareTorch] * particles
    elif case.backend == "mlx":
        from app.bench.peers.bare_mlx import BareMlx
        from app.bench.peers.mlx_prompt_cache import MlxPromptCache

        found += [MlxPromptCache] + [BareMlx] * particles
    return found


def _counted(ours: Result) -> Verdict:
    return Verdict(
        ours.workload, ours.backend, ours.model, "tokens computed / ideal", ours.ratio, RATIO_BAR, at_least=False, timed=False
    )


def _by_cpu(results: Mapping[str, Sequence[Result]]) -> list[Verdict]:
    """Ours against bare forwards, and against whoever keeps a cache."""
    ours, *_ = results.values()
    verdicts = []
    for name, peer in results.items():
        if name not in (Ours.name, ONCE):
            ratio = median(a.cpu_seconds / b.cpu_seconds for a, b in zip(ours, peer, strict=True))
            bar = CPU_BAR if name == BARE else 1.0
            what = f"cpu / {name}"
            verdicts.append(Verdict(ROW, ours[0].backend, ours[0].model, what, ratio, bar, at_least=False))
    return verdicts
