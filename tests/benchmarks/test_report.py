"""The whole report of tiny models on both backends, in parts that share their measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.catalogue import NAMES, chosen_parts
from benchmarks.children.child import resident_bytes
from benchmarks.findings import Case, Findings, Timing
from benchmarks.measure import WorkloadResult
from benchmarks.parts.sampler import PLAIN, SETTINGS
from benchmarks.parts.token_counts import RATIO_BAR
from benchmarks.run import measure_all
from tests.benchmarks.small import SMALL

pytestmark = pytest.mark.slow
# with processes, models or tests of their own
OTHERS = ("W4", "W8", "cpu", "start", "view", "window", "shelf", "files", "quantised", "speculative", "remote")
COUNTED = ("W1", "W2", "W3", "W7")
DRAWN = ("sampler", "grammar")
PRESSED = ("pressure",)
TIMED = tuple(name for name in NAMES if name not in (*OTHERS, *COUNTED, *DRAWN, *PRESSED))
ALONE = {"W1 particles": {"bare forwards", "elsewise, its forwards alone"}, "W2 chat": {"elsewise, its forwards alone"}}
PEERS = {"hf": {"transformers, one cache", "transformers, stateless"}, "mlx": {"mlx_lm, prompt cache"}}
RECORDS = {"hf": "transformers, one cache, records", "mlx": "mlx_lm, prompt cache, records"}  # of W2 alone


@pytest.fixture(scope="module")
def counted(cases: list[Case]) -> Findings:
    return measure_all(cases, chosen_parts(COUNTED), SMALL, quick=False).findings


@pytest.fixture(scope="module")
def timed(cases: list[Case]) -> Findings:
    return measure_all(cases, chosen_parts(TIMED), SMALL, quick=True).findings


@pytest.fixture(scope="module")
def drawn(cases: list[Case]) -> Findings:
    return measure_all(cases, chosen_parts(DRAWN), SMALL, quick=True).findings


@pytest.fixture(scope="module")
def pressed(cases: list[Case]) -> Findings:
    small = replace(SMALL, rounds=1, reopen_embedded=False)
    return measure_all(cases, chosen_parts(PRESSED), small, quick=False).findings


def test_every_subject_plays_every_workload_on_every_model(counted: Findings) -> None:
    played = {(r.backend, r.model, r.workload, r.subject) for r in counted.results}
    wanted = {
        (backend, f"tiny-{name}", workload, subject)
        for backend, peers in PEERS.items()
        for name in ("llama", "qwen3")
        for workload in ("W1 particles", "W2 chat", "W3 branches")
        for subject in {"elsewise"} | peers | ALONE.get(workload, set())
    } | {(backend, f"tiny-{name}", "W2 chat", peer) for backend, peer in RECORDS.items() for name in ("llama", "qwen3")}
    assert {p for p in played if p[2] != "W7 budget"} == wanted
    assert len(played) == len(counted.results) == len(wanted) + 4


def test_every_token_is_computed_once(counted: Findings) -> None:
    ours = [r for r in counted.results if r.subject == "elsewise" and r.workload != "W7 budget"]
    assert len(ours) == 2 * 2 * 3
    assert {(r.backend, r.model, r.workload): r.ratio for r in ours if not 1 <= r.ratio <= RATIO_BAR} == {}


def test_no_subject_is_below_the_ideal_and_one_without_a_cache_is_far_above(counted: Findings) -> None:
    assert all(r.tokens >= r.ideal for r in counted.results)
    assert all(r.ratio > 1.5 for r in counted.results if r.subject == "transformers, stateless")


def test_workloads_have_figures_and_bars(counted: Findings) -> None:
    assert bars(counted) == {
        "W1 particles": [(1.05, False)] * 4,
        "W1 cpu": [(1.0, False)] * 4 + [(1.5, False)] * 4,
        "W2 chat": [(1.05, False)] * 4,
        "W2 wall": [(1.0, False)] * 8,
        "W3 branches": [(1.05, False)] * 4,
        "W7 budget": [(1.0, False)] * 4 + [(1.05, False)] * 4,
    }
    assert exact(counted) == {"W1 particles", "W2 chat", "W3 branches", "W7 budget"}  # of W7 budget, the peak within the budget
    assert say_the_same(counted.results)


def test_speeds_have_figures_and_bars(timed: Findings) -> None:
    assert bars(timed) == {
        "W5 one stream": [(0.95, True), (1.0, True), (1.15, True)],
        "W5 eight streams": [(0.9, True)] * 2,
        "W5 eight streams, recurrent": [(2.5, True)],
        "W3 eight branches, recurrent": [(1.3, True)],
        "W1 particles, recurrent": [(1.5, True)],
        "overhead": [(0.1, False)] * 2 + [(0.3, False)] * 2,
        "W6 score": [(1.0, False)] * 2 + [(1.2, False)] * 2,
        "adapter swap": [(0.0, False)],
        "kv": [(1.0, False), (1.0, True), (1.05, False), (1.1, False)],
        "many tokens": [(1.0, False)],
        "many branches": [(1.0, False)],
        "many beams": [(1.0, False)],
        "trie": [(1.0, False), (50.0, False)],
        "bulk unrelated": [(1.0, False)] * 2 + [(1.0, True)] * 2,
        "bulk shared": [(1.0, False)] * 2 + [(3.0, True)] * 2,
    }
    assert exact(timed) == {"W6 score", "many tokens", "adapter swap", "trie", "kv", "bulk unrelated", "bulk shared"}
    assert say_the_same(timed.timings)


def test_draws_have_figures_and_bars(drawn: Findings) -> None:
    assert bars(drawn) == {
        "grammar": [(0.5, False)] * 2,
        **{f"sampler, {name}": [(1.5, False)] * 4 for name in SETTINGS},
    }
    assert say_the_same(drawn.timings)


def test_grammars_have_the_time_of_the_library_alone_beside_both_figures(drawn: Findings) -> None:
    work, wait = (verdict for verdict in drawn.verdicts if verdict.row == "grammar")
    assert work.limit is not None
    assert wait.limit is not None
    assert work.limit.figure > 0
    free = next(row.wall_ms for row in drawn.timings if row.who == PLAIN)
    assert wait.limit.figure == max(work.limit.figure - free, 0.0)
    assert work.limit.what != wait.limit.what


def test_pressure_has_figures_and_bars(pressed: Findings) -> None:
    memory = [1.1, 1.1, 300.0, 300.0] if resident_bytes() else []  # if the system reports the memory of a process
    assert bars(pressed) == {
        "two chats": [(0.1, False)] * 2 + [(1.3, False)] * 2 + [(1.5, False)] * 2,
        "streams": [(0.6, False), (1.0, False)],
        "branches read": [(1.2, False)] * 2,
        "edges": [(bar, False) for bar in sorted([1.3, 1.3, 1.5, 1.5, *memory])],
        "host bytes": [(2048.0, False)] * 4,
        "texts": [(1.0, False)] * 2,
    }
    assert exact(pressed) == {"two chats", "branches read", "host bytes"}
    assert {v.row for v in pressed.verdicts if v.limit is not None and v.limit.figure > 0} == {"streams", "texts"}
    assert say_the_same(pressed.timings)


def test_pressure_measures_process_memory_and_transferred_bytes(pressed: Findings) -> None:
    # given edges in a process that has freed nothing before: its memory is the counted one, and a little more
    held = [v.figure for v in pressed.verdicts if v.what.startswith("bytes that the process holds")]
    assert all(0.95 < figure < 1.3 for figure in held)
    # and at least ten alternatives of each scored token are transferred
    assert min(v.figure for v in pressed.verdicts if v.row == "host bytes") > 10 * 8


def bars(findings: Findings) -> dict[str, list[tuple[float, bool]]]:
    """The bars of each row, and whether the figure must be at least the bar."""
    found: dict[str, list[tuple[float, bool]]] = {}
    for verdict in findings.verdicts:
        found.setdefault(verdict.row, []).append((verdict.bar, verdict.at_least))
    return {row: sorted(each) for row, each in found.items()}


def exact(findings: Findings) -> set[str]:
    """The rows whose figures are counts; all of them are met, except those that small models and few chats cannot meet."""
    # the second is missed by models of few layers, since a growing buffer exists twice for a moment
    open_bars = {("W7 budget", RATIO_BAR), ("kv", 1.10)}
    counts = [v for v in findings.verdicts if not v.timed and (v.row, v.bar) not in open_bars]
    assert [v for v in counts if not v.met] == []
    return {v.row for v in counts}


def say_the_same(rows: Sequence[WorkloadResult | Timing]) -> bool:
    """Whether all subjects drew the same tokens for the same requests."""
    outcomes: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        part = row.workload if isinstance(row, WorkloadResult) else row.part
        outcomes.setdefault((row.backend, row.model, part), set()).add(row.outcome)
    return all(len(found) == 1 for found in outcomes.values())
