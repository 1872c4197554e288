from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from app.cli import bench as command
from benchmarks.catalogue import NAMES, PARTS, On, chosen_parts
from benchmarks.findings import BarVerdict, Case, Findings, Limit
from benchmarks.measure import WorkloadResult
from benchmarks.parts.decode import speculative
from benchmarks.report import WIDTH, BenchReport, verdict_table
from benchmarks.run import MODELS, measure_all, run_bench
from runtime import BackendUnavailableError, UnknownBackendError, models_dir
from tests.benchmarks.small import SMALL

SHELF = models_dir()  # before a test's own data folder replaces that of the machine
FEW = ("W1", "W6", "trie")


@pytest.fixture(scope="module")
def short(cases: list[Case]) -> BenchReport:
    return measure_all(cases[:1], chosen_parts(FEW), SMALL, quick=True)


@pytest.mark.slow
def test_a_long_session_reads_only_its_shown_part_and_lists_have_their_bars(cases: list[Case]) -> None:
    found = measure_all(cases[:1], chosen_parts(("shelf",)), SMALL, quick=True).findings.verdicts
    bars = [(0.02, False), (1.05 * 100 / 450, False), (1.5, False), (50.0, False), (200.0, False), (300.0, False)]
    assert sorted((verdict.bar, verdict.at_least) for verdict in found) == bars
    assert [verdict for verdict in found if not verdict.timed and not verdict.met] == []


@pytest.mark.slow
def test_tables_fit_and_name_every_row(short: BenchReport) -> None:
    out = io.StringIO()
    short.print(Console(file=out, width=WIDTH))
    text = out.getvalue()
    for result in short.findings.results:
        assert result.subject in text
        assert f"{result.tokens:,}" in text
        assert f"{result.backend}, {result.model}: tokens" in text
    for timing in short.findings.timings:
        assert f"{timing.wall_ms:.3f}" in text
    for verdict in short.findings.verdicts:
        assert f"{verdict.figure:.3f}" in text
    for took in short.took:
        assert f"{took.seconds:.1f}" in text
    assert "…" not in text
    assert text.count(" met ") >= sum(v.met for v in short.findings.verdicts)


@pytest.mark.parametrize("width", [80, WIDTH])
def test_large_numbers_are_never_truncated(width: int) -> None:
    rows = [
        WorkloadResult(f"W{i}", "hf", "tiny-qwen3", "transformers, stateless", 205_696, 824, 123.45, 678.9, "x") for i in (1, 2)
    ]
    out = io.StringIO()
    BenchReport(True, SMALL, ("W1",), (), Findings(results=tuple(rows))).print(Console(file=out, width=width))
    for number in ("205,696", "824", "249.631", "123.45", "678.90"):
        assert out.getvalue().count(number) == 2


def test_json_holds_the_same_figures(short: BenchReport, tmp_path: Path) -> None:
    short.save(tmp_path / "figures.json")
    read = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert read["quick"] is True
    assert read["parts"] == list(FEW)
    assert read["sizes"]["chat_tokens"] == 90
    assert [row["ratio"] for row in read["results"]] == [r.ratio for r in short.findings.results]
    assert [row["wall_ms"] for row in read["timings"]] == [t.wall_ms for t in short.findings.timings]
    assert [row["met"] for row in read["bars"]] == [v.met for v in short.findings.verdicts]
    assert [row["when"] for row in read["calibrations"]] == ["hf, tiny-llama"]  # once, of a quick run
    assert [(row["part"], row["model"]) for row in read["took"]] == [("W1", "tiny-llama"), ("W6", "tiny-llama"), ("trie", "")]
    assert [row["limit"] for row in read["bars"]] == [v.limit and asdict(v.limit) for v in short.findings.verdicts]


def test_a_short_report_is_exact(short: BenchReport) -> None:
    assert {v.row for v in short.findings.verdicts if not v.timed} == {"W1 particles", "W6 score", "trie"}
    assert [v for v in short.findings.verdicts if not v.timed and not v.met] == []


def test_every_timed_figure_has_a_lower_limit_of_the_same_run(short: BenchReport) -> None:
    # then each timed figure of these parts has a limit of the same run
    timed = [v for v in short.findings.verdicts if v.timed]
    assert {v.row for v in timed} == {"W1 cpu", "W6 score", "trie"}
    assert all(v.limit is not None and v.limit.figure > 0 for v in timed)


def test_a_bar_is_met_on_its_side() -> None:
    least = BarVerdict("W5 one stream", "hf", "tiny-llama", "speed", 1.15, 1.15, at_least=True)
    assert least.met
    assert not replace(least, figure=1.149).met
    assert replace(least, at_least=False).met
    assert not replace(least, at_least=False, figure=1.151).met


def test_quick_runs_take_one_model_of_each_backend_or_one_in_all(cases: list[Case]) -> None:
    def meant(quick: bool) -> dict[str, int]:
        return {part.name: sum(part.meant_for(case, cases, quick=quick) for case in cases) for part in PARTS}

    nowhere = dict.fromkeys(("sampler", "gpu", "trie", "shelf", "files", "quantised", "view", "start"), 0)
    usual = ("W4", "cpu", "rows", "pressure", "W8", "swap", "grammar", "speculative", "remote", "window")
    once = dict.fromkeys((*usual, "kv", "many"), 1)
    assert meant(quick=True) == {
        **nowhere,
        **once,
        **dict.fromkeys(("W1", "W2", "W3", "W5", "overhead", "W6", "bulk", "W7"), 2),
    }
    both = dict.fromkeys(usual, 2)
    assert meant(quick=False) == {
        **nowhere,
        **both,
        **dict.fromkeys(("W1", "W2", "W3", "W5", "overhead", "W6", "bulk", "W7", "kv", "many"), 4),
    }
    large = Case("hf", "smollm2", Path(), 10)
    left = {part.name for part in PARTS if part.meant_for(large, [large], quick=False)}
    assert left == {part.name for part in PARTS if part.on in (On.ALL, On.BACKENDS)}


def test_the_command_offers_all_parts() -> None:
    assert command.PARTS == NAMES
    assert command.MODELS == MODELS
    assert [part.name for part in chosen_parts(("trie", "W1"))] == ["W1", "trie"]
    assert chosen_parts(()) == PARTS


def test_backends_that_cannot_run_are_named() -> None:
    for name, error, words in (
        ("hff", UnknownBackendError, r"unknown backend 'hff'.*hf.*mlx"),
        ("vllm", BackendUnavailableError, "vllm"),
        ("mock", UnknownBackendError, "backend 'mock' has no peers"),
    ):
        with pytest.raises(error, match=words):
            run_bench(quick=True, model="tiny", backends=(name,), only=(), json_path=None)


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    answer = CliRunner().invoke(command.bench, ["--quick", "--only", "TRIE", "--json", str(tmp_path / "out.json")])
    assert answer.exit_code == 0, answer.output
    assert "10,000 branches" in answer.stdout
    assert [bar["row"] for bar in json.loads((tmp_path / "out.json").read_text("utf-8"))["bars"]] == ["trie", "trie"]


@pytest.mark.slow
def test_latency_is_measured_beside_both_kinds_of_model(cases: list[Case]) -> None:
    found = measure_all(cases[:1], chosen_parts(("W8",)), replace(SMALL, latency_seconds=0.2), quick=True).findings
    assert [gaps.who for gaps in found.gaps] == ["nothing runs", "engine process", "in process"]
    assert [verdict.bar for verdict in found.verdicts] == [16.0, 50.0, 40.0]
    for gaps in found.gaps:
        assert gaps.p50 <= gaps.p99 <= gaps.max
        assert "0" not in gaps.work.split()  # every kind of work was done


@pytest.fixture
def real_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own models folder, in place of the test's empty one."""
    monkeypatch.setenv("ELSEWISE_MODELS", str(SHELF))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("real_models")
def test_quick_prints_every_workload() -> None:
    workloads = [f"--only=W{number}" for number in range(1, 9)]  # the other parts have tests of their own
    answer = CliRunner().invoke(command.bench, ["--quick", "--backend", "hf", "--model", "llama", *workloads])
    assert answer.exit_code == 0, answer.output
    for row in (
        "W1 particles",
        "W2 chat",
        "W3 branches",
        "W4 reopen",
        "W5 one stream",
        "W6 score",
        "W7 budget",
        "W8 event loop",
    ):
        assert row in answer.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("real_models")
def test_prompt_lookup_gives_the_same_answers_in_fewer_forwards() -> None:
    case = Case("hf", "tiny-llama", Path(), 10)  # the part uses the real model, whatever the model of the case
    findings = speculative(case, replace(SMALL, speculative_tokens=16, rounds=1), lambda _: None)
    plain, guessed = findings.timings
    assert plain.outcome == guessed.outcome
    assert [v.met for v in findings.verdicts if not v.timed] == [True]


def test_the_limit_of_a_figure_is_shown_only_if_its_bar_is_missed() -> None:
    # given a figure with its limit, on each side of the bar
    limit = Limit(1.12, "the bare loop")
    missed = BarVerdict("W5 one stream", "hf", "tiny-llama", "speed", 0.9, 1.15, at_least=True, limit=limit)
    for verdict, told in ((missed, True), (replace(missed, figure=1.2), False)):
        console = Console(width=160, record=True, file=io.StringIO())
        console.print(verdict_table("bars", [verdict]))
        # then the limit is shown only below the missed one
        assert ("limit: the bare loop" in (text := console.export_text())) is told
        assert ("1.120" in text) is told
