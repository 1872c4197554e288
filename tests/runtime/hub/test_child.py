"""Fetching through the child process, as the command line and the window do: killed, stopped, resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from runtime import DownloadError, DownloadProgress, ModelShelf, fetch_model, plan_download, unfinished_downloads
from runtime.hub.child_protocol import Order
from tests.exits import running
from tests.runtime.hub.local_hub import Files, LocalHub, Request, for_file, held, status, stop_after

WEIGHTS = "model.safetensors"
PATIENCE_SECONDS = 60
LIGHT = "import sys, runtime; runtime.fetch_model, runtime.plan_download; print('huggingface_hub' in sys.modules)"


class Stopped(Exception):
    pass


def arrived(count: int) -> bool:
    """Whether at least `count` bytes of a download are kept."""
    return any(note.kept >= count for note in unfinished_downloads())


def small(tiny: Files) -> int:
    """Bytes of the files that are fetched before the weights."""
    return sum(len(data) for name, data in tiny.items() if name.endswith((".json", ".jinja")))


@pytest.mark.slow
def test_a_model_is_planned_and_fetched_through_the_child(hub: LocalHub, tiny: Files) -> None:
    # given
    commit = hub.add("org/tiny", tiny)
    plan = plan_download("org/tiny")
    assert (plan.commit, plan.here, plan.config["model_type"]) == (commit, "", "llama")
    # when
    steps: list[DownloadProgress] = []
    folder = fetch_model("org/tiny@main", steps.append)
    # then
    assert folder.path == ModelShelf().folder("org/tiny")
    assert folder.path.name == f"org--tiny@{commit[:12]}"
    assert steps[-1].done == steps[-1].total == plan.bytes
    assert running("runtime.hub.child") == []


@pytest.mark.slow
def test_the_child_exits_cleanly_while_its_stdin_is_open(hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    command = [sys.executable, "-m", "runtime.hub.child"]
    pipe, environment = subprocess.PIPE, {**os.environ, "HF_HUB_OFFLINE": "0"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as child:
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(Order("plan", "org/tiny")) + b"\n")
        child.stdin.flush()  # and left open, as the parent process leaves it
        assert child.stdout is not None
        assert child.stderr is not None
        assert b'"commit"' in child.stdout.read()
        assert (child.stderr.read(), child.wait()) == (b"", 0)


@pytest.mark.slow
def test_an_error_in_the_child_arrives_with_its_type_message_and_kept_bytes(hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, status(403))]
    with pytest.raises(DownloadError, match=r"org/tiny@main: model.safetensors: the hub refuses \(HTTP 403\)") as refused:
        fetch_model("org/tiny")
    assert refused.value.reason == "denied"
    assert refused.value.kept == unfinished_downloads()[0].kept > 0


@pytest.mark.slow
def test_an_exception_in_the_progress_callback_stops_the_download_which_can_be_resumed(hub: LocalHub, tiny: Files) -> None:
    # given a download in the middle of its weights
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, held, times=1)]
    half = len(tiny[WEIGHTS]) // 2
    here = small(tiny) + half

    def stop(step: DownloadProgress) -> None:
        assert step.state != "wait"
        if arrived(here):
            raise Stopped

    # when
    with pytest.raises(Stopped):
        fetch_model("org/tiny", stop)
    # then no child process remains, and the next fetch requests only the rest
    assert running("runtime.hub.child") == []
    assert ModelShelf().models() == []
    fetch_model("org/tiny")
    assert hub.ranges(WEIGHTS) == [None, f"bytes={half}-"]


@pytest.mark.slow
def test_a_paused_download_keeps_its_bytes_and_resumes_at_its_commit(hub: LocalHub, tiny: Files) -> None:
    # given a download in the middle of its weights
    commit = hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, held, times=1)]
    half, pause = len(tiny[WEIGHTS]) // 2, threading.Event()
    here = small(tiny) + half

    def look(step: DownloadProgress) -> None:
        assert step.state != "wait"
        if arrived(here):
            pause.set()

    # when
    with pytest.raises(DownloadError, match=rf"org/tiny@main: paused \({here:,} bytes are kept") as paused:
        fetch_model("org/tiny", look, pause=pause)
    # then
    assert (paused.value.reason, paused.value.kept) == ("paused", here)
    assert running("runtime.hub.child") == []
    assert ModelShelf().models() == []
    # when it is resumed after a restart, and the branch has moved meanwhile
    hub.add("org/tiny", {**tiny, WEIGHTS: b"another"})
    [note] = unfinished_downloads()
    folder = fetch_model(note.source)
    assert folder.path.name == f"org--tiny@{commit[:12]}"
    assert hub.ranges(WEIGHTS) == [None, f"bytes={half}-"]


@pytest.mark.slow
def test_a_download_paused_before_it_begins_requests_no_weights(hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    pause = threading.Event()
    pause.set()
    with pytest.raises(DownloadError, match="paused") as paused:
        fetch_model("org/tiny", pause=pause)
    assert paused.value.reason == "paused"
    assert WEIGHTS not in hub.fetched()


@pytest.mark.slow
def test_kill_9_of_both_processes_keeps_the_downloaded_bytes(hub: LocalHub, tiny: Files, shelf: Path) -> None:
    # given another process that fetches, killed during the weights
    hub.add("org/tiny", tiny)
    hub.before = [for_file(WEIGHTS, held, times=1)]
    count = small(tiny) + len(tiny[WEIGHTS]) // 2
    with subprocess.Popen([sys.executable, "-c", "from runtime import fetch_model; fetch_model('org/tiny')"]) as other:
        until = time.monotonic() + PATIENCE_SECONDS
        while not arrived(count):
            assert time.monotonic() < until
            time.sleep(0.01)
        grandchildren = psutil.Process(other.pid).children()
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    gone, alive = psutil.wait_procs(grandchildren, PATIENCE_SECONDS)  # the child ends with its parent
    assert (len(gone), alive) == (1, [])
    # when
    fetch_model("org/tiny")
    # then
    assert hub.ranges(WEIGHTS) == [None, f"bytes={len(tiny[WEIGHTS]) // 2}-"]
    assert sorted(path.name for path in shelf.iterdir() if path.name.startswith(".fetching")) == [".fetching"]


@pytest.mark.slow
def test_a_second_process_that_fetches_the_same_repository_is_refused(hub: LocalHub, tiny: Files) -> None:
    # given a fetch in the middle of the weights
    hub.add("org/tiny", tiny)
    go_on = threading.Event()

    def waits(request: Request) -> bool:
        go_on.wait(PATIENCE_SECONDS)
        return False

    hub.before = [for_file(WEIGHTS, waits, times=1)]
    script = "from runtime import fetch_model; print(fetch_model('org/tiny').path.name)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        until = time.monotonic() + PATIENCE_SECONDS
        while WEIGHTS not in hub.fetched():
            assert time.monotonic() < until
            time.sleep(0.01)
        # when another begins
        with pytest.raises(DownloadError, match="is being fetched by another process; wait for it") as taken:
            fetch_model("org/tiny")
        # then the first one is not disturbed
        assert taken.value.reason == "taken"
        go_on.set()
        name = other.communicate()[0].strip()
    assert fetch_model("org/tiny").path.name == name  # it is installed now
    assert [entry.complete for entry in ModelShelf().models()] == [True]
    assert hub.fetched().count(WEIGHTS) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_stops_at_any_moment_lose_no_downloaded_bytes(seed: int, hub: LocalHub, tiny: Files) -> None:
    draw = random.Random(seed)
    hub.add("org/tiny", tiny)
    size = len(tiny[WEIGHTS])
    kept = 0
    for _ in range(5):
        # given a server that ends at some byte, and a caller that pauses or stops at some report
        hub.before = [for_file(WEIGHTS, stop_after(draw.randrange(size // 3)), times=1)]
        pause, left, gives_up = threading.Event(), draw.randrange(1, 25), draw.random() < 0.5

        def look(_step: DownloadProgress, pause: threading.Event = pause, gives_up: bool = gives_up) -> None:
            nonlocal left
            left -= 1
            if not left and gives_up:
                raise Stopped
            if not left:
                pause.set()

        # when
        stopped = ""
        try:
            fetch_model("org/tiny", look, pause=pause)
        except Stopped:
            stopped = "given up"
        except DownloadError as fault:
            stopped = fault.reason
        if not stopped:
            break
        # then the downloaded bytes stay, and nothing is listed before it is complete
        assert stopped in ("given up", "paused")
        assert ModelShelf().models() == []
        here = sum(note.kept for note in unfinished_downloads())
        assert here >= kept
        kept = here
    hub.before = []
    assert fetch_model("org/tiny").path.is_dir()
    assert (ModelShelf().folder("org/tiny") / WEIGHTS).read_bytes() == tiny[WEIGHTS]
    assert unfinished_downloads() == []


def test_importing_the_hub_functions_loads_no_network_library() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stdout == "False\n"
