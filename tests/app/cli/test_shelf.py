"""`elsewise models` and `elsewise doctor`."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime import register_backend, unregister_backend
from tests.app.cli.conftest import Elsewise
from tests.pages import ROOT
from tests.tiny_models import tiny_path


def snapshot(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_an_empty_shelf_names_the_commands_that_fill_it(elsewise: Elsewise) -> None:
    done = elsewise("models", "list")
    assert (done.code, done.out) == (0, "")
    assert "elsewise models get smollm2" in done.err


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"not a model at all" * 100, b"GGUF\x03\0\0\0" + b"\xff" * 64, b"GGUF\x63\0\0\0" + b"\0" * 64],
)
def test_a_damaged_gguf_is_refused_in_one_line_and_changes_nothing(elsewise: Elsewise, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    before = snapshot(tmp_path)
    done = elsewise("models", "import", str(tmp_path / "broken.gguf"))
    assert (done.code, done.out) == (1, "")
    [said] = done.err.splitlines()
    assert "broken.gguf" in said
    assert [path for path in snapshot(tmp_path) if path not in before and not path.endswith("models")] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("import", "missing.gguf"), 1, "missing.gguf"),
        (("import",), 2, "PATH"),
        (("get", "org name"), 1, "no repository: give org/name"),
        (("verify", "nope"), 1, "nope"),
    ],
)
def test_invalid_requests_are_refused_with_the_reason(
    elsewise: Elsewise, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = elsewise("models", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert code == 2 or len(done.err.splitlines()) == 1  # click adds the usage of the command


def test_verify_names_an_unknown_model_once(elsewise: Elsewise) -> None:
    assert elsewise("models", "verify", "org/name").err == "org/name: not on the shelf (`elsewise models list` names what is)\n"


@pytest.mark.parametrize("model", ["org/name", "org/name@main", "name", "missing.gguf"])
def test_the_error_for_a_missing_model_names_working_commands(elsewise: Elsewise, model: str) -> None:
    # given the commands that the error offers
    done = elsewise("ask", "hi", "--model", model)
    assert (done.code, done.out) == (1, "")
    [said] = done.err.splitlines()
    offered = re.findall(r"elsewise (models (?:get|import)) (\w+)", said)
    # then there are two, and both parse
    assert sorted(offered) == [("models get", "smollm2"), ("models import", "FOLDER")]
    assert elsewise("models", "import", str(tiny_path("llama"))).code == 0


def test_a_folder_without_weights_is_refused(elsewise: Elsewise, tmp_path: Path) -> None:
    folder = tmp_path / "hollow"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for arguments in (("models", "import", str(folder)), ("ask", "hi", "--model", str(folder), "--backend", "hf")):
        done = elsewise(*arguments)
        assert (done.code, done.out) == (1, "")
        assert "hollow" in done.err


def test_doctor_without_a_model_reports_it_and_exits_1(elsewise: Elsewise, data: Path) -> None:
    done = elsewise("doctor")
    assert done.code == 1
    assert "problem: no model is ready: elsewise models get smollm2" in done.err
    assert str(data / "sessions.db") in done.out
    assert not data.exists()


def test_a_folder_with_only_its_config_is_not_ready(elsewise: Elsewise, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "hollow"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    wanting = "no tokenizer.json; no weights (model.safetensors or model.safetensors.index.json)"
    # the list and the doctor report the missing weights
    [row] = [line for line in elsewise("models", "list").out.splitlines() if line.startswith("hollow")]
    assert wanting in row
    assert "ready" not in row
    done = elsewise("doctor")
    assert f"problem: model hollow: {wanting}" in done.err
    assert "problem: no model is ready" in done.err
    # truncated weights are not ready either
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    [row] = [line for line in elsewise("models", "list").out.splitlines() if line.startswith("hollow")]
    assert "damaged safetensors file" in row


@pytest.mark.parametrize("library", ["transformers", "mlx-lm"])
def test_doctor_names_a_library_that_is_older_than_required(
    elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    [(major, minor)] = [found.groups() for each in needed if (found := re.match(rf"{library}>=(\d+)\.(\d+)", each))]
    version = importlib.metadata.version
    older = f"{major}.{int(minor) - 1}.9"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: older if name == library else version(name))
    assert f"problem: {library} {older} is too old: at least {major}.{minor}" in elsewise("doctor").err


def test_doctor_shows_a_third_backend_and_one_whose_module_is_missing(elsewise: Elsewise) -> None:
    register_backend("thirds", "runtime.backends.mock:load")
    register_backend("absent", "no_such_module:load")
    try:
        rows = {line.split()[1]: line for line in elsewise("doctor").out.splitlines() if line.startswith("backend ")}
    finally:
        unregister_backend("thirds")
        unregister_backend("absent")
    assert rows["thirds"].split()[2:] == ["available"]
    assert "module no_such_module is not installed" in rows["absent"]
    assert {"hf", "mlx", "mock", "fake", "vllm"} <= rows.keys()


def test_doctor_passes_with_a_model_on_the_shelf_and_names_a_truncated_one(elsewise: Elsewise, tmp_path: Path) -> None:
    tiny = tmp_path / "models" / "tiny"
    tiny.mkdir(parents=True)
    (tiny / "config.json").write_text("{}")
    (tiny / "tokenizer.json").write_text("{}")
    save_file({"weight": np.zeros(2, np.float32)}, tiny / "model.safetensors")
    done = elsewise("doctor")
    assert (done.code, done.err) == (0, "everything is in place\n")
    assert str(tmp_path / "models") in done.out
    assert elsewise("models", "list").out.splitlines()[1].split()[0] == "tiny"

    (tmp_path / "models" / "torn").mkdir()
    done = elsewise("doctor")
    assert done.code == 1
    assert done.err.startswith("problem: model torn: no config.json; no tokenizer.json; no weights")
    assert len(done.err.splitlines()) == 1
