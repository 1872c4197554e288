"""`elsewise doctor --deep`: every part, deviating models, dying processes, interruptions."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from app.cli.group import cli
from app.doctor import parity
from app.doctor.finding import Finding, Report, markdown
from app.doctor.memory import memory
from app.doctor.reference import SMOLLM2, Reference, references
from app.doctor.run import Doing, check_machine
from app.doctor.sleep import LEAST, seconds_asleep, through_sleep
from runtime import models_dir, spawn

ROOT = Path(__file__).parents[3]
SHELF = models_dir()  # before a test's own data folder replaces that of the machine


def small() -> list[Reference]:
    """All parts except the model of the shelf."""
    return [reference for reference in references() if reference.name != SMOLLM2]


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("hf", ["llama"]),
        pytest.param("hf", [each.name for each in small()[1:]], marks=pytest.mark.slow),
        pytest.param("mlx", [each.name for each in small()], marks=pytest.mark.slow),
    ],
)
def test_all_execution_paths_give_the_stored_answers(backend: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "references", lambda: [each for each in small() if each.name in names])
    rows = list(parity.parity(backend))
    assert [row.verdict for row in rows] == ["ok"] * len(names), rows
    ways = ("cached from uncached", "batched from alone", "restored from fresh", "scored from alone", "drawn from alone")
    assert all(way in row.figure for row in rows for way in ("reference", *ways))
    assert {row.bar for row in rows} == {"<= 0.0001 nats"}


def test_a_deviating_model_fails_and_its_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # given one whose rotary positions differ from those of the stored answers
    [llama] = [each for each in small() if each.name == "llama"]
    ropes = {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    monkeypatch.setattr(parity, "references", lambda: [msgspec.structs.replace(llama, config=llama.config | ropes)])
    # when
    [row] = parity.parity("hf")
    # then
    assert row.verdict == "missed"
    assert "layer 1 departs first: full attention" in row.advice


def test_beyond_the_bar_a_model_may_deviate_twice_as_far_as_the_bare_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "references", lambda: [each for each in small() if each.name == "llama"])
    monkeypatch.setattr(parity, "BAR", 1e-12)  # as on a device that sums in another order
    monkeypatch.setattr(parity, "CALIBRATED", 100.0)
    [row] = parity.parity("hf")
    assert row.verdict == "ok"
    assert 1e-12 < float(row.bar.split()[1]) < 1e-3


def test_a_model_that_cannot_be_loaded_is_reported_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    [llama] = [each for each in small() if each.name == "llama"]
    changed = llama.config | {"num_hidden_layers": 5}  # three are stored
    monkeypatch.setattr(parity, "references", lambda: [msgspec.structs.replace(llama, config=changed)])
    [row] = parity.parity("hf")
    assert (row.verdict, row.figure) == ("failed", "ModelLoadError")


@pytest.mark.slow
def test_a_part_whose_process_dies_is_reported_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":nonsense")  # Qt ends the process
    monkeypatch.delenv("QT_QPA_PLATFORM", raising=False)
    told: list[Doing] = []
    report = check_machine(["window"], told.append)
    [row] = report.findings["window"]
    assert (row.verdict, report.is_sound) == ("failed", False)
    assert row.figure == "its process ended: SIGABRT"
    assert (told[0].part, told[0].total) == ("window", 1)


def test_a_part_that_takes_too_long_is_ended() -> None:
    report = check_machine(["window"], lambda _: None, factor=0.005)
    [row] = report.findings["window"]
    assert row.verdict == "failed"
    assert row.figure.startswith("not done in")
    assert "--patience" in row.advice


@pytest.mark.slow
def test_all_parts_together_end_after_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.doctor.run.TEN_MINUTES", 0.5)
    report = check_machine(["window", "disk"], lambda _: None)
    [late], [never] = report.findings["window"], report.findings["disk"]
    assert (late.verdict, late.figure.startswith("not done in")) == ("failed", True)
    assert (never.verdict, never.figure, never.advice.endswith("--only disk")) == ("failed", "not started", True)


@pytest.mark.slow
def test_killed_writers_and_a_full_disk_lose_nothing() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--deep", "--only", "disk", "--json", "--patience", "5"])
    report = msgspec.json.decode(done.stdout, type=Report)
    verdicts = {row.name: row.verdict for row in report.findings["disk"]}
    assert done.exit_code == 0, report
    assert verdicts["20 killed writers"] == "ok"
    assert set(verdicts.values()) <= {"ok", "skipped"}


@pytest.mark.slow
def test_the_window_part_reports_its_measurements() -> None:
    report = check_machine(["window"], lambda _: None, factor=5)
    assert [row.name for row in report.findings["window"]] == ["start of the window", "gaps while an answer streams"]
    assert {row.verdict for row in report.findings["window"]} <= {"ok", "missed"}  # a busy machine may miss a bar


PAGES_OF_THE_LIBRARY = """
import sys
from app.doctor import speed

lap = "import json, os, sys; next(sys.stdin); print(json.dumps({'pages': 1 + int(os.environ.get('THP_MEM_ALLOC_ENABLE', 0))}))"
speed.LAPS, speed.child_command = 1, lambda *_: [sys.executable, "-c", lap]
speed.lap = lambda *_: {"pages": 2.0}
rows = speed.speed("hf")
print(next(rows).name, next(rows).figure)
rows.close()
"""


def test_the_bare_library_is_measured_with_huge_pages_as_ours_is(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    environment["ELSEWISE_MODELS"] = str(tmp_path)
    run = [sys.executable, "-c", PAGES_OF_THE_LIBRARY]
    said = subprocess.run(run, env=environment, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout == "model 2 tokens/s, 1.00 of the bare library's 2\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_risk_of_memory_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(SHELF))
    report = check_machine(["memory"], lambda _: None, factor=10)
    for backend in ("hf", "mlx"):
        rows = {row.name: row for row in report.findings[f"memory on {backend}"]}
        assert rows["estimated against measured memory"].verdict == "ok", rows
        assert rows["a model larger than memory"].verdict == "ok", rows
        assert rows["buffers with 10,000 cached edges"].verdict == "ok", rows
        for name in (
            "answers to 4 threads at once",
            "an answer larger than its memory",
            "a process that ends with a model open",
        ):
            assert rows[name].verdict == "ok", rows
        assert not [row for row in rows.values() if row.verdict == "failed"]
        assert all(row.bar for row in rows.values() if row.verdict != "skipped")
    assert rows["freed buffers that are kept"].verdict == "ok", rows


@pytest.mark.slow
def test_speeds_are_reported_beside_those_of_the_bare_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path))  # without a model a small one is created
    report = check_machine(["speed"], lambda _: None, factor=5)
    for backend in ("hf", "mlx"):
        rows = {row.name: row for row in report.findings[f"speed on {backend}"]}
        assert {"decode, one stream", "decode, eight streams", "prefill"} <= set(rows), rows
        assert all("of the bare library's" in rows[name].figure for name in ("decode, one stream", "prefill"))
        assert rows["tokens computed"].figure == "220 of 220 needed"
        assert all(row.bar for row in rows.values()), rows
        assert not [row for row in rows.values() if row.verdict == "failed"]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting a small disk needs root on Linux")
def test_a_child_that_is_killed_leaves_no_disk_and_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def mount_and_stop(_: Doing) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "none", str(next(tmp_path.iterdir()))], check=True)
        raise KeyboardInterrupt

    assert check_machine(["disk"], mount_and_stop).interrupted
    assert not list(tmp_path.iterdir())
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_ctrl_c_keeps_the_finished_rows() -> None:
    def stop(doing: Doing) -> None:
        if doing.last:
            raise KeyboardInterrupt

    report = check_machine(["memory"], stop)
    [row] = report.findings["memory on hf"]  # of the first part, its first
    assert row.name == "estimated against measured memory"
    text = markdown(report)
    assert f"| {row.name} | {row.figure} |" in text
    assert text.endswith("Interrupted: the parts after this were not run.\n")


@pytest.mark.parametrize(("folder", "verdict"), [("lib", "ok"), ("share", "missed")])
def test_the_metallib_counts_only_beside_libmlx(
    folder: str, verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given the package as on a Mac
    for file in ("lib/libmlx.dylib", f"{folder}/mlx.metallib"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    import mlx.core

    monkeypatch.setattr("mlx.__path__", [str(tmp_path)])
    monkeypatch.setattr(mlx.core.metal, "is_available", lambda: True)
    facts = {"max_recommended_working_set_size": 2, "memory_size": 3}
    monkeypatch.setattr(mlx.core, "device_info", lambda: facts)
    # then
    rows = {row.name: row.verdict for row in itertools.islice(memory("mlx"), 3)}
    assert rows == {"one libmlx": "ok", "mlx.metallib": verdict, "wired limit": "ok"}


@pytest.mark.slow
def test_ctrl_c_prints_the_finished_rows() -> None:
    command = [sys.executable, "-m", "app", "doctor", "--deep", "--only", "disk", "--only", "parity", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(8)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in error) == (130, False), error
    report = json.loads(out)
    assert report["interrupted"] is True
    assert "system" in report["machine"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "verdict", "figure"),
    [
        (signal.SIGSTOP, "ok", "0 of 256 tokens differ, during and after 60 s of sleep"),
        (signal.SIGKILL, "missed", "the engine ended"),
    ],
)
def test_an_answer_continues_after_sleep(sent: signal.Signals, verdict: str, figure: str) -> None:
    async def check() -> Finding:
        asked = itertools.count()
        async with await spawn("mock", backend="mock") as model:

            def asleep() -> float:
                """Halts or ends the engine before the second answer, and lets a minute pass after it."""
                time = next(asked)
                if time == 1:
                    os.kill(model.pid, sent)
                    if sent == signal.SIGSTOP:
                        asyncio.get_running_loop().call_later(0.5, os.kill, model.pid, signal.SIGCONT)
                return 60.0 * (time > 1)

            return await through_sleep(model, [1, 2, 3], asleep)

    row = asyncio.run(check())
    assert (row.verdict, row.figure) == (verdict, figure), row


@pytest.mark.slow
def test_a_machine_that_stays_awake_is_asked_to_sleep() -> None:
    async def check() -> Finding:
        async with await spawn("mock", backend="mock") as model:
            return await through_sleep(model, [1, 2, 3], lambda: 0.0, patience=0.0)

    row = asyncio.run(check())
    assert (row.verdict, "close the lid" in row.advice) == ("skipped", True)
    assert abs(seconds_asleep() - seconds_asleep()) < LEAST  # this machine does not sleep during the test


def test_the_part_that_needs_a_person_runs_only_if_it_is_requested_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Doing] = []

    def stop(doing: Doing) -> None:
        begun.append(doing)
        raise KeyboardInterrupt

    check_machine([], stop)
    check_machine(["sleep"], stop)
    check_machine(["disk", "sleep"], stop)
    assert [(doing.part, doing.total) for doing in begun] == [("parity", 8), ("sleep", 1), ("disk", 2)]  # of two backends

    # and the instructions are printed
    def begin(_: object, tell: Callable[[Doing], None], **__: float) -> Report:
        tell(Doing(0, 1, "sleep", ""))
        return Report({}, {})

    monkeypatch.setattr("app.cli.doctor.check_machine", begin)
    assert "close the lid, or choose Sleep" in CliRunner().invoke(cli, ["doctor", "--deep", "--only", "sleep"]).output


@pytest.mark.parametrize("option", ["--only disk", "--json", "--markdown", "--patience 2"])
def test_the_options_of_deep_are_refused_without_it(option: str) -> None:
    done = CliRunner().invoke(cli, ["doctor", *option.split()])
    assert done.exit_code == 2
    assert "need --deep" in done.output


def test_the_result_is_printed_in_one_form() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--deep", "--only", "disk", "--json", "--markdown"])
    assert done.exit_code == 2
    assert "choose one of --json and --markdown" in done.output


def test_the_markdown_is_a_table_without_names_and_paths() -> None:
    report = check_machine(["disk"], lambda _: None, factor=0.001)
    report.findings["disk"] += [Finding("a | b", "two\nlines", "", "missed", "do | this")]
    fault = f"mount: {Path.home() / 'of Ann' / 'small'}: must be root; 3 tokens/s on hf/mlx"
    report.findings["disk"] += [Finding("fault", "", "", "failed", fault)]
    text = markdown(report)
    assert "mount: (a path): must be root; 3 tokens/s on hf/mlx" in text
    assert "| a \\| b | two lines |  | missed | do \\| this |" in text
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
