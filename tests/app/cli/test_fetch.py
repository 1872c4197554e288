"""`elsewise models fetch` against a hub on loopback."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.models.hub import fetch_bar, rate_text, time_left
from runtime import DownloadProgress, ModelShelf, list_shelf_adapters, unfinished_downloads
from tests.app.cli.conftest import Elsewise
from tests.runtime.adapters.toys import toy_adapter
from tests.runtime.hub.local_hub import Files, LocalHub, for_file, held, running, status
from tests.tiny_models import tiny_path

PATIENCE_SECONDS = 60


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def tiny() -> Files:
    return {path.name: path.read_bytes() for path in tiny_path("llama").iterdir() if path.is_file()} | {"README.md": b"# hi"}


@pytest.mark.slow
def test_fetch_reports_the_size_and_the_fetched_model_answers(elsewise: Elsewise, hub: LocalHub, tiny: Files) -> None:
    # given
    commit = hub.add("org/tiny", tiny)
    # when: a dry run first
    planned = elsewise("models", "fetch", "org/tiny", "--dry-run")
    assert planned.code == 0
    rows = dict(line.split(maxsplit=1) for line in planned.out.splitlines())
    assert rows["model.safetensors"].strip() == f"{len(tiny['model.safetensors']):,}"
    assert rows["commit"].strip() == commit
    assert f"{sum(map(len, tiny.values())) - 4:,} bytes in {len(tiny) - 1} files; 1 others are left" in planned.out
    assert ModelShelf().models() == []
    found = json.loads(elsewise("models", "fetch", "org/tiny", "--dry-run", "--json").out)
    assert [fit["backend"] for fit in found["fit"]] == ["hf", "mlx"]
    assert found["fit"][0]["context"] == 4096
    assert re.search(r"^fit \(hf\) +\[#\.+\] about 0\.\d\d GB of [\d.]+ GB, [\d.]+ GB free now *$", planned.out, re.MULTILINE)
    assert (found["commit"], found["name"], found["left"]) == (commit, f"org/tiny@{commit[:12]}", ["README.md"])
    # then
    done = elsewise("models", "fetch", "org/tiny@main")
    name = f"org/tiny@{commit[:12]}"
    use = f"use it with: elsewise ask --model {name}"
    assert (done.code, done.out) == (0, f"{name}: ready in {ModelShelf().folder('org/tiny')}; {use}\n")
    assert f"model.safetensors: {len(tiny['model.safetensors']):,} bytes" in done.err.splitlines()
    assert ModelShelf().open("org/tiny").chat_template == tiny["chat_template.jinja"].decode()


@pytest.mark.slow
def test_a_download_that_stopped_is_listed_and_can_be_removed(elsewise: Elsewise, hub: LocalHub, tiny: Files) -> None:
    # given
    commit = hub.add("org/tiny", tiny)
    hub.before = [for_file("model.safetensors", status(404))]
    failed = elsewise("models", "fetch", "org/tiny")
    assert (failed.code, failed.out) == (1, "")
    assert "model.safetensors: not there (HTTP 404)" in failed.err.splitlines()[-1]
    # then it is not listed as a model, and the list names the command that resumes it
    listed = elsewise("models", "list")
    assert listed.out == ""
    hub.add("org/tiny", tiny | {"config.json": tiny["config.json"] + b"\n"})  # its branch moves on
    assert f"resume with: elsewise models fetch org/tiny@{commit}\n" in listed.err
    hub.before = [for_file("model.safetensors", status(404))]
    assert elsewise("models", "fetch", f"org/tiny@{commit}").code == 1
    assert f"org/tiny@{commit}\n" in elsewise("models", "list").err
    removed = elsewise("models", "remove", "org/tiny", "--yes")
    assert removed.code == 0
    assert "bytes freed" in removed.out
    assert "resume with" not in elsewise("models", "list").err


def test_the_reason_for_waiting_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with fetch_bar() as show:
        for _ in range(2):
            show(DownloadProgress(state="wait", note="the hub cannot be reached"))
    assert capsys.readouterr().err == "the hub cannot be reached; waiting to ask again\n"


def test_an_invalid_repository_is_refused_in_one_line(elsewise: Elsewise) -> None:
    done = elsewise("models", "fetch", "../up")
    assert (done.code, done.out) == (1, "")
    assert done.err == "elsewise: '../up' is no repository: give org/name, or org/name@revision\n"
    assert elsewise("models", "fetch", "smollm2", "--dry-run").code == 2
    assert elsewise("models", "fetch", "org/tiny", "--json").code == 2
    assert elsewise("models", "fetch", "org/tiny", "--context", "9").code == 2


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "time unknown"), (0.2, "0 s left"), (75, "1 min 15 s left"), (7260, "2 h 1 min left")]
)
def test_the_remaining_time_is_formatted_for_people(seconds: float | None, said: str) -> None:
    assert time_left(seconds) == said
    assert rate_text(12_340_000) == "12.3 MB/s"


@pytest.mark.slow
def test_ctrl_c_pauses_a_download(elsewise: Elsewise, hub: LocalHub, tiny: Files) -> None:
    # given a download in the middle of its weights, in a terminal of its own
    hub.add("org/tiny", tiny)
    hub.before = [for_file("model.safetensors", held, times=1)]
    half = len(tiny["model.safetensors"]) // 2
    small = sum(len(data) for name, data in tiny.items() if name not in ("README.md", "model.safetensors"))
    command = [sys.executable, "-m", "app", "models", "fetch", "org/tiny"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fetching:
        until = time.monotonic() + PATIENCE_SECONDS
        while not any(note.kept >= small + half for note in unfinished_downloads()):
            assert time.monotonic() < until
            time.sleep(0.01)
        # when
        fetching.send_signal(signal.SIGINT)
        out, err = fetching.communicate(timeout=PATIENCE_SECONDS)
    # then the pause is reported, and a second run resumes there
    assert (fetching.returncode, out) == (1, "")
    assert err.splitlines()[-1] == "paused: run the same command again to resume"
    assert "Traceback" not in err
    assert elsewise("models", "fetch", "org/tiny").code == 0
    assert hub.ranges("model.safetensors") == [None, f"bytes={half}-"]


@pytest.mark.slow
def test_an_adapter_is_fetched_and_the_option_that_uses_it_is_named(elsewise: Elsewise, hub: LocalHub, tmp_path: Path) -> None:
    # given
    files = {path.name: path.read_bytes() for path in toy_adapter(tmp_path / "toy", 1).iterdir()}
    files["adapter_config.json"] = json.dumps(
        json.loads(files["adapter_config.json"]) | {"base_model_name_or_path": "org/tiny"}
    ).encode()
    commit = hub.add("org/mine", files)
    # when: a dry run first
    planned = elsewise("models", "fetch", "org/mine", "--dry-run")
    assert planned.code == 0
    assert re.search("^made for +org/tiny *$", planned.out, re.MULTILINE)
    assert json.loads(elsewise("models", "fetch", "org/mine", "--dry-run", "--json").out)["kind"] == "adapter"
    # then
    done = elsewise("models", "fetch", "org/mine")
    (adapter,) = list_shelf_adapters()
    name = f"org/mine@{commit[:12]}"
    assert (done.code, done.out) == (0, f"{name}: ready in {adapter.path}; use it with: elsewise ask --adapter {name}\n")
