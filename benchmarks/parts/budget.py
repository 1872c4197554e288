"""W7: more chats than fit into the byte budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Verdict
from benchmarks.measure import Float32, Ids, Subject, measure
from benchmarks.ours import Ours, our_subject
from benchmarks.sizes import Sizes
from benchmarks.workloads.lru import simulate
from benchmarks.workloads.visits import visits

RATIO_BAR = 1.05


def budget(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Elsewise with a budget for some of the chats, against a simulator of the same rule with what rows leave of it."""
    workload = visits(
        case.vocabulary, chats=sizes.chats, count=sizes.visits, message=sizes.message, answer=sizes.message_answer
    )
    tell(f"{workload.name}: loading")
    limit = sizes.budget_tokens * our_subject(case).kv_bytes_per_token
    with closing(Ours(case.folder, case.backend, kv_cache_bytes=limit)) as ours:
        tell(f"{workload.name}, elsewise")
        log = _Log(ours)
        result = measure(workload, log, backend=case.backend, model=case.model)
        peak = ours.metrics.kv_peak_bytes
    largest = max(len(prompt) + len(answer) for prompt, answer in log.requests)
    best = simulate(log.requests, sizes.budget_tokens - largest)
    what = f"tokens computed / simulator ({result.tokens:,} / {best:,})"
    verdicts = (
        Verdict(workload.name, case.backend, case.model, what, result.tokens / best, RATIO_BAR, at_least=False, timed=False),
        Verdict(workload.name, case.backend, case.model, "peak bytes / budget", peak / limit, 1.0, at_least=False, timed=False),
    )
    return Findings(results=(result,), verdicts=verdicts)


class _Log:
    """A subject that writes down what was asked and answered, for the simulator."""

    name = Ours.name

    def __init__(self, subject: Subject) -> None:
        self.requests: list[tuple[Ids, Ids]] = []
        self._subject = subject

    @property
    def tokens_computed(self) -> int:
        return self._subject.tokens_computed

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        return self._subject.logprobs(contexts)

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        answers = self._subject.answers(prompts, n)
        self.requests += [(list(prompt), answer) for prompt, answer in zip(prompts, answers, strict=True)]
        return answers

    def forget(self) -> None:
        self._subject.forget()

    def close(self) -> None:
        self._subject.close()
