"""`elsewise models` on a shelf with models: list, info, remove."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from pathlib import Path

import psutil
import pytest

from runtime import ModelShelf, import_model, load
from runtime.loading.integrity import MANIFEST
from runtime.loading.paths import models_dir
from tests.app.cli.conftest import Elsewise
from tests.runtime.loading.packed import k_quants, packed
from tests.tiny_models import tiny_path


@pytest.fixture
def tiny(elsewise: Elsewise) -> Path:
    return import_model(tiny_path("llama"), "org/tiny@v1").path


def test_the_list_shows_context_and_engines(elsewise: Elsewise, tiny: Path) -> None:
    header, row = elsewise("models", "list").out.splitlines()
    assert header.split() == ["name", "title", "parameters", "size", "format", "context", "runs", "on", "state"]
    assert row.split()[-4:] == ["4,096", "hf,", "mlx", "ready"]


def test_info_shows_all_known_facts(elsewise: Elsewise, tiny: Path) -> None:
    # in a terminal
    rows = dict(line.split(maxsplit=1) for line in elsewise("models", "info", "org/tiny").out.splitlines())
    assert rows["name"].strip() == "org/tiny@v1"
    assert rows["architecture"].strip() == "llama"
    assert rows["folder"].strip() == str(tiny)
    # and for programs
    found = json.loads(elsewise("models", "info", "org/tiny", "--json").out)
    assert (found["context"], found["backends"], found["dtype"]) == (4096, ["hf", "mlx"], "F32")
    assert found["fingerprint"] == ModelShelf().find("org/tiny").fingerprint
    [listed] = elsewise("models", "list", "--json").out.splitlines()
    assert json.loads(listed)["name"] == "org/tiny@v1"


def test_a_config_cannot_move_the_cursor(elsewise: Elsewise, tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps(config | {"model_type": "lla\x1b[2Jma"}))
    assert "\x1b" not in elsewise("models", "info", "org/tiny").out


def test_a_model_is_removed_after_a_confirmation(elsewise: Elsewise, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(file.stat().st_size for file in tiny.iterdir())
    with load("org/tiny", "hf"):
        refused = elsewise("models", "remove", "org/tiny", "--yes")
        assert (refused.code, refused.out) == (1, "")
        assert "is loaded" in refused.err
    monkeypatch.setattr("sys.stdin", io.StringIO())  # without a terminal no confirmation is possible
    assert elsewise("models", "remove", "org/tiny").code == 1
    assert tiny.is_dir()
    done = elsewise("models", "remove", "org/tiny", "--yes")
    assert (done.code, done.out) == (0, f"org/tiny: removed, {size:,} bytes freed\n")
    assert not tiny.exists()
    assert elsewise("models", "info", "org/tiny").code == 1


def test_info_reports_whether_a_model_fits(elsewise: Elsewise, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a machine with next to no memory
    memory = psutil.virtual_memory()._replace(total=580_000_000, available=500_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr("sys.platform", "linux")
    # then a small context fits and a large one does not, and the largest that fits is named
    small = json.loads(elsewise("models", "info", "org/tiny", "--json", "--context", "16").out)["fit"][0]
    assert (small["fits"], small["context"], small["memory"]) == (True, 16, 580_000_000)
    out = elsewise("models", "info", "org/tiny").out
    assert re.search(r"^too large \(hf\) +a context of [\d,]+ tokens fits *$", out, re.MULTILINE)
    assert re.search(r"KV \d+\.\d\d GB for 4,096 tokens", out)


@pytest.mark.slow
def test_a_gguf_stays_quantised_on_request(elsewise: Elsewise, tmp_path: Path) -> None:
    # given
    packed(tiny_path("llama"), lambda name: "Q4_0").write(tmp_path / "one.gguf")
    # when
    done = elsewise("models", "import", str(tmp_path / "one.gguf"), "--keep-quantised")
    # then
    assert done.code == 0
    assert done.out.startswith("one-mlx: ready in ")  # by the name that finds it
    assert done.out.endswith("/one-mlx (4 bit (mlx)); use it with: elsewise ask --model one-mlx\n")
    # and the printed command works, on both engines
    answers = [
        elsewise("ask", "Hi", "--raw", "--temperature", "0", "--max-tokens", "3", "--model", model, *engine).out
        for model, engine in (("one-mlx", ()), ("one-mlx", ("--backend", "mlx")), (str(tmp_path / "one.gguf"), ()))
    ]
    assert len(set(answers)) == 1
    [listed] = elsewise("models", "list").out.splitlines()[1:]
    assert re.search(r"4 bit \(mlx\), from GGUF +4,096 +hf, mlx +ready", listed)
    refused = elsewise("ask", "Hi", "--model", "one-mlx", "--backend", "hf", "--weights", "int8")
    assert (refused.code, refused.out) == (1, "")
    assert "these are quantised: leave it out, or import the file as float32 first" in refused.err
    # and the suggested import works
    assert elsewise("models", "import", str(tmp_path / "one.gguf"), "--float32").code == 0
    assert elsewise("ask", "Hi", "--raw", "--max-tokens", "1", "--model", "one", "--backend", "hf").code == 0


def test_a_model_whose_only_engine_is_missing_names_the_package_to_install(
    elsewise: Elsewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(tiny_path("llama"), lambda name: "Q4_0").write(tmp_path / "one.gguf")
    assert elsewise("models", "import", str(tmp_path / "one.gguf"), "--keep-quantised").code == 0
    (models_dir() / "one-mlx" / MANIFEST).unlink()  # as a folder that another program quantised
    here = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "mlx" else here(name, *more))
    done = elsewise("ask", "Hi", "--model", "one-mlx")
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "one-mlx is quantised for MLX, and no other engine can read it" in done.err
    assert "mlx not installed (`pip install mlx" in done.err


def test_the_share_of_weights_that_becomes_float32_on_mlx_is_reported(elsewise: Elsewise, tmp_path: Path) -> None:
    k_quants(tmp_path / "original", ("output.weight",)).write(tmp_path / "k.gguf")
    done = elsewise("models", "import", str(tmp_path / "k.gguf"), "--keep-quantised")
    assert done.out.endswith(
        "--model k-mlx\nQ6_K (18 % of the weights) becomes float32 when mlx loads it: MLX has no form that is exactly it\n"
    )


def test_options_for_the_form_of_weights_are_refused_for_folders(elsewise: Elsewise, tmp_path: Path) -> None:
    done = elsewise("models", "import", str(tiny_path("llama")), "--keep-quantised")
    assert (done.code, done.out) == (1, "")
    assert "a folder is taken as it is; to quantise one: `elsewise models convert" in done.err
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    done = elsewise("models", "import", str(tmp_path), "--float32")
    assert (done.code, done.out) == (2, "")
    assert "an adapter is taken as it is" in done.err


def test_a_folder_is_added_under_a_name(elsewise: Elsewise) -> None:
    done = elsewise("models", "add", str(tiny_path("llama")), "--name", "mine")
    assert (done.code, done.out) == (0, f"mine: ready in {tiny_path('llama')}; use it with: elsewise ask --model mine\n")
    assert elsewise("models", "list").out.splitlines()[1].split()[0] == "mine"
    assert elsewise("models", "remove", "mine", "--yes").out == "mine: removed, 0 bytes freed\n"
    assert tiny_path("llama").is_dir()
