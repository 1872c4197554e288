from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from app.bench.calibration import Calibration
from app.bench.measure import Result
from app.bench.report import BAR, WIDTH, Report
from app.bench.run import measure_all, run_bench
from app.bench.sizes import Sizes
from app.cli.bench import bench
from runtime import BackendUnavailableError, UnknownBackendError

SMALL = Sizes(particles=6, steps=5, particle_prompt=24, resample_every=2, turns=3, chat_tokens=90, branches=4, transcript=60)


@pytest.fixture(scope="module")
def report() -> Report:
    return measure_all(("hf", "mlx"), quick=True, sizes=SMALL, text=None)


def test_every_subject_plays_every_workload_on_every_model(report: Report) -> None:
    played = {(r.backend, r.model, r.subject, r.workload) for r in report.results}
    assert len(played) == len(report.results) == 2 * (3 + 2) * 3
    assert {r.subject for r in report.results if r.backend == "mlx"} == {"elsewise", "mlx_lm, prompt cache"}


def test_every_token_is_computed_once(report: Report) -> None:
    ours = [r for r in report.results if r.subject == "elsewise"]
    assert len(ours) == 2 * 2 * 3
    assert {(r.backend, r.model, r.workload): r.ratio for r in ours if not 1 <= r.ratio <= BAR} == {}


def test_nobody_stays_below_the_ideal_and_who_keeps_nothing_is_far_above(report: Report) -> None:
    assert all(r.tokens >= r.ideal for r in report.results)
    assert all(r.ratio > 1.5 for r in report.results if r.subject == "transformers, stateless")


def test_all_subjects_of_a_backend_draw_the_same_tokens(report: Report) -> None:
    for backend, model, workload in {(r.backend, r.model, r.workload) for r in report.results}:
        same = {r.outcome for r in report.results if (r.backend, r.model, r.workload) == (backend, model, workload)}
        assert len(same) == 1, (backend, model, workload)


def test_tables_fit_and_name_every_row(report: Report) -> None:
    out = io.StringIO()
    report.print(Console(file=out, width=WIDTH))
    text = out.getvalue()
    for result in report.results:
        assert result.subject in text
        assert f"{result.tokens:,}" in text
        assert f"{result.backend}, {result.model}" in text
    assert "…" not in text
    assert "calibration" in text


@pytest.mark.parametrize("width", [80, WIDTH])
def test_large_numbers_are_never_cut(width: int) -> None:
    rows = [Result(f"W{i}", "hf", "tiny-qwen3", "transformers, stateless", 205_696, 824, 123.45, 678.9, "x") for i in (1, 2)]
    out = io.StringIO()
    Report(True, SMALL, Calibration(1.0, 1.0), tuple(rows)).print(Console(file=out, width=width))
    for number in ("205,696", "824", "249.631", "123.45", "678.90"):
        assert out.getvalue().count(number) == 2


def test_json_holds_the_same_figures(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "figures.json")
    read = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert read["quick"] is True
    assert read["sizes"]["chat_tokens"] == 90
    assert [row["ratio"] for row in read["results"]] == [r.ratio for r in report.results]
    assert read["calibration"]["cpu_seconds"] > 0


def test_backends_that_cannot_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownBackendError, match=r"unknown backend 'hff'.*hf.*mlx"):
        run_bench(quick=True, backends=("hff",), json_path=None)
    with pytest.raises(BackendUnavailableError, match="vllm"):
        run_bench(quick=True, backends=("vllm",), json_path=None)


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    answer = CliRunner().invoke(bench, ["--quick", "--backend", "hf", "--json", str(tmp_path / "out.json")])
    assert answer.exit_code == 0, answer.output
    assert "W1 particles" in answer.stdout
    assert len(json.loads((tmp_path / "out.json").read_text("utf-8"))["results"]) == 2 * 3 * 3
