"""Imports that are refused, cancelled, killed or run out of space: nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import filelock
import psutil
import pytest

from runtime.errors import ModelLoadError
from runtime.loading.gguf.convert import check_gguf, convert
from runtime.loading.progress import Progress
from runtime.shelf.importing import import_model
from runtime.shelf.model_shelf import list_models
from runtime.shelf.source import resolve
from tests.runtime.conftest import left_behind
from tests.runtime.loading.gguf_files import (
    bad_files,
    unsuitable_files,
)
from tests.runtime.loading.test_gguf_header import SEEN_WHILE_CONVERTING
from tests.tiny_models import tiny_path

UNSUITABLE = unsuitable_files()


@pytest.mark.parametrize("name", ["../up", "a/../b", "a b", "x/y/z", ".hidden", "a--b", "@rev"])
def test_an_invalid_name_is_refused(name: str, shelf: Path, gguf: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be a model's name"):
        import_model(gguf, name)


def test_a_missing_source_is_refused(shelf: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file or folder"):
        import_model("/nowhere/at/all.gguf")


@pytest.mark.parametrize("what", ["text", "truncated in the weights", "key twice", "empty"])
def test_a_damaged_file_changes_nothing(what: str, shelf: Path, tmp_path: Path) -> None:
    # given
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bad_files()[what])
    # when, then
    with pytest.raises(ModelLoadError, match=r"damaged\.gguf"):
        import_model(path)
    assert not shelf.exists()


@pytest.mark.parametrize("what", sorted(SEEN_WHILE_CONVERTING))
def test_a_file_with_inconsistent_contents_is_refused(what: str, tmp_path: Path) -> None:
    # given
    path = UNSUITABLE[what].write(tmp_path / "refused.gguf")
    # when
    with pytest.raises(ModelLoadError) as refused:
        convert(check_gguf(path), tmp_path, lambda done, total: None)
    # then
    assert "refused.gguf" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_refused_conversion_leaves_nothing(shelf: Path, tmp_path: Path) -> None:
    # given
    path = UNSUITABLE["NaN in the weights"].write(tmp_path / "refused.gguf")
    # when, then
    with pytest.raises(ModelLoadError, match=r"refused\.gguf: the tensor output_norm\.weight holds NaN"):
        import_model(path)
    assert left_behind(shelf) == []
    assert list_models() == []


def test_a_cancelled_import_leaves_nothing(shelf: Path, gguf: Path) -> None:
    # given
    class Cancelled(Exception):
        pass

    def cancel(progress: Progress) -> None:
        if progress.stage == "convert" and progress.done:
            raise Cancelled

    # when, then
    with pytest.raises(Cancelled):
        import_model(gguf, progress=cancel)
    assert left_behind(shelf) == []


def test_a_killed_converter_is_reported_and_leaves_nothing(shelf: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] = real(*args, **kwargs)  # type: ignore[call-overload]  # passed on as given
        started.append(child)
        child.kill()
        return child

    monkeypatch.setattr(subprocess, "Popen", popen)
    # when, then
    with pytest.raises(ModelLoadError, match="ended without an answer"):
        import_model(gguf)
    assert left_behind(shelf) == []
    assert started[0].returncode is not None


def test_output_of_a_native_library_is_not_mistaken_for_the_converters_answer(
    shelf: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def popen(command: list[str], **kwargs: object) -> subprocess.Popen[bytes]:
        noisy = ["sh", "-c", 'echo "a library: loaded"; exec "$0" "$@"', *command]
        child: subprocess.Popen[bytes] = real(noisy, **kwargs)  # type: ignore[call-overload]  # passed on as given
        return child

    monkeypatch.setattr(subprocess, "Popen", popen)
    assert import_model(gguf).path.is_dir()


def test_a_converter_that_hangs_is_stopped(shelf: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a converter that writes nothing and does not end, and a short timeout
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(_command: object, **kwargs: object) -> subprocess.Popen[bytes]:
        started.append(real([sys.executable, "-c", "input()"], **kwargs))  # type: ignore[call-overload]  # passed on as given
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr("runtime.loading.child_process.POLL_SECONDS", 0.01)
    monkeypatch.setattr("runtime.shelf.importing.PATIENCE_SECONDS", 0.05)
    # when, then
    with pytest.raises(ModelLoadError, match=r"the conversion took longer than \d+ s and was stopped"):
        import_model(gguf)
    assert started[0].returncode is not None
    assert left_behind(shelf) == []


GREEDY_CONVERTER = """
import sys
import psutil
from runtime.loading.gguf import convert
convert.BASE_MEMORY = psutil.Process().memory_info().vms + (8 << 20)
convert.convert = lambda *_arguments, **_options: bytearray(1 << 30)
sys.exit(convert.main())
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not enforce RLIMIT_AS")
def test_a_converter_that_exceeds_its_memory_limit_is_refused(gguf: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", GREEDY_CONVERTER, str(gguf), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # until stdin closes
        assert child.stdout is not None
        said = child.stdout.read()
    assert "converting it needs more memory than is allowed" in said
    assert child.returncode == 1


KILLED_IMPORT = """
import sys, time
import psutil
from runtime.shelf.importing import import_model
def hold(progress):
    if progress.stage == "convert" and progress.done:
        [child] = psutil.Process().children()
        print(child.pid, flush=True)
        time.sleep(60)
import_model(sys.argv[1], progress=hold)
"""


@pytest.mark.slow
def test_a_killed_importer_ends_its_child_and_its_remains_are_cleaned_up(shelf: Path, gguf: Path) -> None:
    # given
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_IMPORT, str(gguf)],
        stdout=subprocess.PIPE,
        env={**os.environ, "ELSEWISE_MODELS": str(shelf)},
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    assert list_models() == []
    with contextlib.suppress(psutil.NoSuchProcess):  # ended already
        child.wait(timeout=30)  # no process writes any more
    # when
    folder = import_model(gguf)
    # then
    assert resolve(gguf) == folder
    assert left_behind(shelf) == [folder.path.name]


def test_too_little_disk_space_is_reported_before_the_import(shelf: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    # when, then
    with pytest.raises(ModelLoadError, match=r"needs .* GB in .*, 0\.0 GB are free"):
        import_model(gguf)
    assert left_behind(shelf) == []


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_a_disk_that_fills_up_is_reported_and_leaves_nothing(kind: str, shelf: Path, gguf: Path) -> None:
    """The kernel refuses files of more than 100,000 bytes, here and in the converter."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ModelLoadError, match="free some space"):
            import_model(gguf if kind == "gguf" else tiny_path("llama"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_behind(shelf) == []
    assert list_models() == []


def test_a_shelf_folder_that_cannot_be_created_is_named(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(ModelLoadError, match="set `ELSEWISE_MODELS`"):
        import_model(gguf)


def test_an_import_that_waits_for_another_can_be_cancelled(shelf: Path, gguf: Path) -> None:
    # given another import in progress
    shelf.mkdir()
    with filelock.FileLock(shelf / ".lock", mode=0o600):
        told: list[str] = []

        def cancel(progress: Progress) -> None:
            told.append(progress.stage)
            if progress.stage == "wait":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_model(gguf, progress=cancel)
    # then the file was checked before, and it is imported once the other has ended
    assert told == ["check", "wait"]
    assert import_model(gguf).path.is_dir()


def test_an_import_can_be_cancelled_during_its_final_check(shelf: Path, gguf: Path) -> None:
    told: list[str] = []

    def cancel(progress: Progress) -> None:
        told.append(progress.stage)
        if progress.stage == "check" and "convert" in told:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(gguf, progress=cancel)
    assert left_behind(shelf) == []
