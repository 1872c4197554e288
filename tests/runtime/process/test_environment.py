from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from resources.processes import engine_environment
from runtime import LanguageModel
from tests.runtime.process.conftest import command, spawn_fake


def test_the_engine_is_offline_and_runs_no_code_of_models(client: LanguageModel) -> None:
    environment = json.loads(asyncio.run(command(client, "environment")))
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert environment["TOKENIZERS_PARALLELISM"] == "false"
    assert environment["PATH"] == os.environ["PATH"]


def test_the_variable_that_allows_remote_code_is_removed() -> None:
    assert "MLX_LM_TRUST_REMOTE_CODE" not in engine_environment({"MLX_LM_TRUST_REMOTE_CODE": "1"}, "mlx", None)


def test_the_thread_count_is_passed_to_the_numeric_libraries() -> None:
    environment = engine_environment({}, "hf", 3)
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in engine_environment({}, "hf", None)


@pytest.mark.parametrize(
    ("platform", "backend", "found", "preload"),
    [
        ("linux", "mlx", "libopenblas.so.0", "mine.so:libopenblas.so.0"),
        ("linux", "auto", "libopenblas.so.0", "mine.so:libopenblas.so.0"),
        ("linux", "hf", "libopenblas.so.0", "mine.so"),
        ("linux", "mlx", None, "mine.so"),
        ("darwin", "mlx", "libopenblas.dylib", "mine.so"),
    ],
)
def test_openblas_is_preloaded_where_mlx_may_run_and_the_loader_finds_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, backend: str, found: str | None, preload: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: found if name == "openblas" else None)
    assert engine_environment({"LD_PRELOAD": "mine.so"}, backend, None)["LD_PRELOAD"] == preload


def test_the_engine_imports_no_heavy_library_and_ignores_ctrl_c(client: LanguageModel) -> None:
    process = json.loads(asyncio.run(command(client, "process")))
    assert process["heavy"] == []
    assert process["sigint_ignored"]
    assert os.getpgid(client.pid) != os.getpgid(0)


def test_the_engine_collects_garbage_but_not_among_what_was_there_once_the_model_was_loaded(client: LanguageModel) -> None:
    process = json.loads(asyncio.run(command(client, "process")))
    assert process["collects"]
    assert process["exempt"] > 1_000


def test_ctrl_c_does_not_end_the_engine(client: LanguageModel) -> None:
    os.kill(client.pid, signal.SIGINT)
    assert asyncio.run(client.tokenize_async("ab")) == [0, 1]


def test_a_folder_named_runtime_in_the_working_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__init__.py").write_text("raise SystemExit('the wrong runtime')")
    monkeypatch.chdir(tmp_path)
    with asyncio.run(spawn_fake()) as client:
        assert client.tokenize("ab") == [0, 1]


def test_the_output_of_the_engine_is_appended_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("before\n")
    with asyncio.run(spawn_fake(log_path=log)) as client:
        asyncio.run(command(client, "write"))
    assert log.read_text() == "before\nto stdout\nto stderr\n"


def test_a_new_log_is_private(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    asyncio.run(spawn_fake(log_path=log)).close()
    assert log.stat().st_mode & 0o777 == 0o600


def test_without_a_log_standard_output_stays_clean(capfd: pytest.CaptureFixture[str]) -> None:
    with asyncio.run(spawn_fake()) as client:
        asyncio.run(command(client, "write"))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == "to stderr\n"
