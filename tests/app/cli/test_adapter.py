"""`elsewise ask --adapter`: LoRA adapters from the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime import GenerationOptions, SamplingOptions, load
from tests.app.cli.conftest import EACH, Elsewise
from tests.app.workbench.scene import rows
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path

ASK = ("ask", "hello", "--backend", "fake", "--max-tokens", "12", "--temperature", "0", "--seed", "1", "--json")
GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(toy_adapter(tmp_path / "pirate", 1))


def ids(out: str) -> list[int]:
    return [json.loads(line)["id"] for line in out.splitlines()[:-1]]


@pytest.mark.parametrize("scales", [(1.0,), (0.5,), (2.0, -0.25)])
def test_adapters_are_loaded_with_their_scales(
    elsewise: Elsewise, folder: str, tmp_path: Path, scales: tuple[float, ...]
) -> None:
    # given
    paths = [folder, str(toy_adapter(tmp_path / "other", 2))]
    pairs = list(zip(paths, scales, strict=False))
    with load("x", backend="fake", adapters=tuple(pairs)) as model:
        prompt = model.render_chat([{"role": "user", "content": "hello"}])
        expected = [record.token_id for record in model.generate_sync(prompt, GREEDY)]
    flags = [flag for path, scale in pairs for flag in ("--adapter", path if scale == 1.0 else f"{path}:{scale}")]
    # when
    done = elsewise(*ASK, *flags)
    # then
    assert done.code == 0
    assert ids(done.out) == expected
    assert ids(elsewise(*ASK).out) != expected


def test_a_batch_and_a_session_use_adapters_too(elsewise: Elsewise, folder: str, tmp_path: Path) -> None:
    alone = elsewise(*ASK[:-1], "--adapter", folder).out
    file = tmp_path / "questions.jsonl"
    file.write_text('{"prompt": "hello"}')
    batch = elsewise("ask", "--batch", str(file), *ASK[2:-1], "--adapter", folder)
    assert json.loads(batch.out)["text"] + "\n" == alone
    assert elsewise(*ASK[:-1], "--adapter", folder, "--session", "A").out == alone


def test_texts_are_embedded_under_adapters(elsewise: Elsewise, folder: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    done = elsewise("embed", str(tmp_path / "texts.txt"), "--backend", "fake", "--adapter", f"{folder}:0.5")
    with load("x", backend="fake", adapters=((folder, 0.5),)) as model:
        want, base = model.embed_sync(["one", "two"]), model.embed_sync(["one", "two"], adapters=())
    got = np.array([json.loads(line)["vector"] for line in done.out.splitlines()], np.float32)
    np.testing.assert_array_equal(got, want)
    assert not np.allclose(want, base, atol=1e-3)
    assert elsewise("embed", str(tmp_path / "texts.txt"), "--backend", "fake", "--adapter", ":2").code == 2


def test_answers_under_an_adapter_and_of_the_base_have_different_fingerprints(
    elsewise: Elsewise, folder: str, data: Path
) -> None:
    # given a session whose first turn was answered under an adapter, its second by the base, its third by the adapter again
    turn = (*ASK[2:-1], "--session", "A")
    for adapter in (("--adapter", f"{folder}:3"), (), ("--adapter", f"{folder}:3")):
        assert elsewise("ask", "hello", *turn, *adapter).code == 0
    # then each has its own fingerprint, and that of the base is the usual one
    own = "SELECT kv_fingerprint FROM nodes WHERE role != 'system' ORDER BY id"
    prints = [fingerprint for (fingerprint,) in rows(data / "sessions.db", own)]
    with load("x", backend="fake") as model:
        base = model.info.kv_fingerprint
        assert model.info.numbers_fingerprint == base
        model.push_lora(folder, 3.0)
        under = model.info.numbers_fingerprint
        model.push_lora(folder, 0.5)
        more = model.info.numbers_fingerprint
        model.pop_lora()
        assert model.info.numbers_fingerprint == under
        model.clear_loras()
        assert model.info.numbers_fingerprint == base
    assert len({base, under, more}) == 3
    assert prints == [under, under, base, base, under, under]


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ("FOLDER:nan", 2, "the scale is a finite number"),
        ("FOLDER:inf", 2, "the scale is a finite number"),
        (":0.5", 2, "write the adapter's folder"),
        ("", 2, "write the adapter's folder"),
        ("nowhere", 1, "nowhere"),
        ("FOLDER:much", 1, "'much' is no scale: write a number, "),
        ("me/pirate:much", 1, "'much' is no scale: write a number, me/pirate:0.8"),
        ("me/pirate", 1, "no adapter is called 'me/pirate': none is registered; on the shelf: none; `elsewise models import"),
        ("FOLDER/adapter_config.json", 1, "a file; give the folder"),
    ],
)
def test_a_path_that_is_not_an_adapter_is_refused(elsewise: Elsewise, folder: str, given: str, code: int, says: str) -> None:
    done = elsewise(*ASK, "--adapter", given.replace("FOLDER", folder))
    assert (done.code, done.out) == (code, "")
    assert says in done.err


def test_an_adapter_of_the_shelf_is_found_by_its_name(elsewise: Elsewise, folder: str) -> None:
    # given
    done = elsewise("models", "import", folder, "--name", "org/pirate@v1")
    assert done.code == 0
    assert "elsewise ask --adapter org/pirate@v1" in done.out
    # when, then: an id has no colon; the part after a colon is a scale
    expected = ids(elsewise(*ASK, "--adapter", f"{folder}:0.5").out)
    for name in ("org/pirate@v1", "org/pirate"):
        assert ids(elsewise(*ASK, "--adapter", f"{name}:0.5").out) == expected
    [row] = [line for line in elsewise("models", "list").out.splitlines() if line.startswith("org/pirate@v1")]
    assert "for a base it does not name" in row
    assert "adapter peft" in row
    assert row.rstrip().endswith("ready")
    assert elsewise("models", "verify").out == "org/pirate@v1: sound\n"
    done = elsewise(*ASK, "--adapter", "org/parrot:0.5")
    assert (done.code, done.out) == (1, "")
    assert "on the shelf: org/pirate@v1; `elsewise models import FOLDER` puts one there" in done.err


def test_the_base_of_a_listed_adapter_cannot_move_the_cursor(elsewise: Elsewise, folder: str) -> None:
    config = Path(folder, "adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "org/\x1b[2JBase\n7B"}))
    assert elsewise("models", "import", folder).code == 0
    [row] = [line for line in elsewise("models", "list").out.splitlines() if line.startswith("pirate")]
    assert "for org/?[2JBase?7B" in row


def test_a_pickled_adapter_is_not_imported(elsewise: Elsewise, folder: str) -> None:
    Path(folder, "adapter_model.safetensors").rename(Path(folder, "adapter_model.bin"))
    done = elsewise("models", "import", folder)
    assert (done.code, done.out) == (1, "")
    assert "never opened" in done.err
    assert "no models in" in elsewise("models", "list").err


def config_of(folder: str, **settings: object) -> None:
    config = Path(folder, "adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))


def wide(folder: str) -> None:
    weights = Path(folder, "adapter_model.safetensors")
    tensors = load_file(weights)
    tensors["base_model.model.head.lora_A.weight"] = np.ones((2, 17), np.float32)
    save_file(tensors, weights)


def pickled(folder: str) -> None:
    Path(folder, "adapter_model.safetensors").rename(Path(folder, "adapter_model.bin"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (wide, "head is 17 -> 259 in the adapter, 16 -> 259 in the model; the adapter is for another base"),
        (partial(config_of, base_model_name_or_path="org/Other-7B"), "made for org/Other-7B"),
        (pickled, "adapter_model.bin, which is never opened"),
    ],
    ids=["another shape", "another base", "a pickle"],
)
@pytest.mark.parametrize("command", ["ask", "batch", "embed"])
def test_an_adapter_that_does_not_fit_is_refused_by_every_command(
    elsewise: Elsewise, folder: str, tmp_path: Path, command: str, spoil: Callable[[str], None], says: str
) -> None:
    spoil(folder)
    (tmp_path / "questions.jsonl").write_text('{"prompt": "hello"}')
    arguments = {
        "ask": ASK,
        "batch": ("ask", "--batch", str(tmp_path / "questions.jsonl"), *ASK[2:-1]),
        "embed": ("embed", str(tmp_path / "questions.jsonl"), "--backend", "fake"),
    }[command]
    if command == "embed":
        (tmp_path / "questions.jsonl").write_text('{"text": "hello"}')
    done = elsewise(*arguments, "--adapter", folder)
    assert (done.code, done.out) == (1, "")
    [said] = done.err.splitlines()
    assert says in said


WRONG = {
    "./nowhere": "no such folder",
    "a-model": "this folder holds a whole model",
    "another": "made for org/another, and this is ",
    "damaged": "adapter_model.safetensors is missing",
}


@pytest.mark.slow
def test_an_unusable_adapter_is_reported_before_the_model_is_loaded(tmp_path: Path, folder: str) -> None:
    # given a folder that is not an adapter, one for another base, one without weights
    (tmp_path / "a-model").symlink_to(tiny_path("llama"))
    for name, base in (("another", "org/another"), ("damaged", "")):
        shutil.copytree(folder, tmp_path / name)
        config = json.loads((tmp_path / name / "adapter_config.json").read_text())
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
    (tmp_path / "damaged" / "adapter_model.safetensors").unlink()
    # when
    ask = ["--data-dir", str(tmp_path / "data"), "ask", "hi", "--model", str(tiny_path("llama")), "--backend", "hf"]
    asked = [(wrong, more) for wrong in WRONG for more in ((), ("--session", "S"))]
    lines = [[*ask, "--adapter", str(tmp_path / wrong), *more] for wrong, more in asked]
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(lines)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # then no module of the engine was imported
    assert done.returncode == 0, done.stderr
    for (wrong, _), line in zip(asked, done.stdout.splitlines(), strict=True):
        code, out, err, libraries = json.loads(line)
        assert (code, out, libraries) == (1, "", [])
        assert WRONG[wrong] in err
        assert "Traceback" not in err
