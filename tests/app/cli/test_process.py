"""The command line as a process with two output streams and an exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa  # the library with which the command writes
import pyarrow.ipc as ipc  # as above
import pyarrow.parquet as pq  # as above
import pytest

from runtime import __version__
from tests.app.cli.conftest import Elsewise
from tests.tiny_models import tiny_path

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 60


def run(*arguments: str | bytes, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_python_m_app_is_elsewise(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["elsewise,", "version", __version__]


@pytest.mark.slow
def test_streams_and_exit_codes(tmp_path: Path) -> None:
    good = run("--data-dir", str(tmp_path), "ask", "hi", "--backend", "fake", "--max-tokens", "3", "--seed", "1", "--json")
    assert good.returncode == 0
    assert [json.loads(line)["type"] for line in good.stdout.splitlines()] == ["token"] * 3 + ["end"]
    bad = run("ask", "hi", "--backend", "nope")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert len(bad.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_window_is_not_opened_for_an_unknown_engine(tmp_path: Path) -> None:
    done = run("--data-dir", str(tmp_path / "data"), "--backend", "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("elsewise: unknown backend 'nope': known: ")
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_arguments_that_are_not_utf_8_are_refused(tmp_path: Path, elsewise: Elsewise) -> None:
    arguments = ("ask", b"caf\xe9", "--session", "A", "--backend", "fake", "--max-tokens", "2")
    done = run("--data-dir", str(tmp_path), *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "it is not UTF-8" in done.stderr
    assert "no sessions yet" in elsewise("--data-dir", str(tmp_path), "sessions", "list").err


@pytest.mark.slow
def test_a_closed_pipe_prints_no_traceback(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("word " * 500)
    command = f"{sys.executable} -m app score {text} --backend mock --json | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert json.loads(done.stdout)["text"] == "w"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_answer_of_a_session_is_kept(tmp_path: Path, elsewise: Elsewise) -> None:
    command = [sys.executable, "-m", "app", "--data-dir", str(tmp_path), "ask", "hi", "--session", "Trip", "--backend", "fake"]
    process = subprocess.Popen(
        [*command, "--max-tokens", "100000", "--option", "ignore_eos=true", "--temperature", "0", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert "Trip" in elsewise("--data-dir", str(tmp_path), "sessions", "list").out
    shown = elsewise("--data-dir", str(tmp_path), "sessions", "show", "1").out
    assert "user: hi" in shown
    assert len(shown.split("assistant: ")[1]) >= 3
    go_on = ("ask", "go on", "--session", "Trip", "--backend", "fake", "--max-tokens", "2")
    assert elsewise("--data-dir", str(tmp_path), *go_on).code == 0
    assert len(elsewise("--data-dir", str(tmp_path), "sessions", "list").out.splitlines()) == 2


SLOW = """
import sys, time
from app.cli import main
from runtime import register_backend
def load(source, options):
    print("loading", file=sys.stderr, flush=True)
    time.sleep(3600)
register_backend("slow", load)
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("command", ["ask hi --session Trip", "ask --batch FILE", "score FILE"])
def test_ctrl_c_during_a_load_ends_the_command(command: str, tmp_path: Path) -> None:
    # given a model that takes an hour to load
    (tmp_path / "lines").write_text('{"prompt": "hi"}')
    words = [str(tmp_path / "lines") if word == "FILE" else word for word in command.split()]
    arguments = ["--data-dir", str(tmp_path / "data"), *words, "--model", str(tiny_path("llama")), "--backend", "slow"]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *arguments], cwd=ROOT, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline() == b"loading\n"
    # when it is interrupted
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    # then it ends at once, as a shell expects it
    assert (process.returncode, err.decode().split()[-1]) == (130, "stopped")
    assert b"Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "neither WAYLAND_DISPLAY nor DISPLAY is set"),
        ({"DISPLAY": ":7"}, "could not connect to display :7"),
        ({"QT_QPA_PLATFORM": "nonsense"}, "nonsense"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_a_missing_display_is_reported_in_one_sentence(environment: dict[str, str], said: str, tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")}
    done = subprocess.run(
        [sys.executable, "-m", "app", "--data-dir", str(tmp_path)],
        cwd=ROOT,
        env=plain | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("elsewise: no window can be opened here: ")
    assert said in sentence
    assert "elsewise --help" in sentence


def questions(path: Path, longest: int, **more: str) -> list[str]:
    """A command that answers two short questions and six long ones."""
    entries = [{"prompt": str(i), "max_tokens": 3 if i < 2 else longest, "ignore_eos": i >= 2, **more} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, entries)))
    return [sys.executable, "-m", "app", "ask", "--batch", str(path), "--backend", "fake"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_batch_keeps_its_written_answers(tmp_path: Path) -> None:
    command = questions(tmp_path / "questions.jsonl", 100_000)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    first = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [answer["id"] for answer in first] == [1, 2]
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, rest) == (130, b"")
    told = "2 of 8 answers were written to stdout; the same command with --out FILE --resume goes on where this one stopped"
    assert err.decode().split("\n") == [told, "", "stopped", ""]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_slow_first_line_does_not_delay_finished_answers(tmp_path: Path) -> None:
    # given a first line that takes until the end, and 300 that are done at once
    (tmp_path / "questions.jsonl").write_text(
        "\n".join(json.dumps({"prompt": "a", "max_tokens": 3 if i else 10_000, "ignore_eos": True}) for i in range(301))
    )
    out = tmp_path / "answers.jsonl"
    command = [sys.executable, "-m", "app", "ask", "--batch", str(tmp_path / "questions.jsonl"), "--backend", "fake"]
    process = subprocess.Popen([*command, "--out", str(out)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # when it is interrupted after they were written
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and not (out.exists() and out.read_bytes().count(b"\n") >= 300):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    # then all of them are kept, and the message names the way to resume
    assert (process.returncode, b"Traceback" in err) == (130, False)
    assert sorted(json.loads(line)["line"] for line in out.read_text().splitlines()) == list(range(2, 302))
    told = f"300 of 301 answers were written to {out}; the same command with --resume goes on where this one stopped"
    assert err.decode().split("\n") == [told, "", "stopped", ""]


def has_a_batch(path: Path) -> bool:
    """Whether a complete one can be read from a stream."""
    try:
        return bool(ipc.open_stream(path.read_bytes()).read_next_batch().num_rows)
    except (OSError, pa.ArrowInvalid):  # not there, or cut off
        return False


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_table_of_scores_can_be_resumed(tmp_path: Path) -> None:
    texts, out, part = tmp_path / "texts.jsonl", tmp_path / "out.parquet", tmp_path / ".out.parquet.part"
    texts.write_text("\n".join(json.dumps(f"{i} {'x' * 90}") for i in range(600)))
    command = ["score", str(texts), "--backend", "fake", "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "app", *command], cwd=ROOT, stderr=subprocess.PIPE)
    # when it is interrupted after the first write
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and not has_a_batch(part):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    # then it names the way to resume, and no file has the final name yet
    assert (process.returncode, out.exists()) == (130, False)
    assert err.decode().split("\n") == [f"stopped; the results so far are in {part}: go on with --resume", "", "stopped", ""]
    done = run(*command, "--resume")
    assert done.returncode == 0
    before, scored = map(int, re.findall(r"([\d,]+) texts", done.stderr.replace(",", "")))
    assert (0 < before < 600, before + scored) == (True, 600)
    assert not part.exists()
    assert pq.ParquetFile(out).metadata.num_rows == sum(len(f"{i} {'x' * 90}") for i in range(600))


@pytest.mark.slow
def test_a_batch_with_a_closed_pipe_ends(tmp_path: Path) -> None:
    command = questions(tmp_path / "questions.jsonl", 400, id="x" * 300_000)  # the answers exceed the buffer of any pipe
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert b"Traceback" not in err


def test_the_window_limits_its_openblas_threads_without_affecting_children() -> None:
    # given the window in a process of its own, in which opening it only reports the number of threads
    code = """
import os, sys, types
import psutil
def open_window(*_arguments, **_named):
    import numpy
    print(psutil.Process().num_threads(), os.environ.get("OPENBLAS_NUM_THREADS"))
    return 0
sys.modules["app.window"] = types.SimpleNamespace(open_window=open_window)
from app.cli import main
sys.argv = ["elsewise", "--demo"]
main()
"""
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    for asked, threads in (("", 1), ("2", min(2, os.cpu_count() or 1))):
        # when it opens
        environment = free | ({"OPENBLAS_NUM_THREADS": asked} if asked else {})
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        # then the user's own number stays
        assert done.stdout.split() == [str(threads), asked or "None"], done.stderr
