from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from runtime.errors import ModelLoadError
from runtime.loading.integrity import read_manifest
from runtime.loading.progress import Progress
from runtime.shelf.importing import import_model
from runtime.shelf.model_shelf import ModelShelf, list_models
from runtime.shelf.quantise import convert_model
from runtime.shelf.source import resolve
from runtime.text.tokenizer import Tokenizer
from tests.runtime.conftest import left_behind
from tests.runtime.loading.as_gguf import as_gguf
from tests.runtime.loading.gguf_files import F32, HEADS, KV_HEADS, LAYERS, small_llama
from tests.tiny_models import tiny_path


def test_a_converted_model_equals_the_original(shelf: Path, tmp_path: Path) -> None:
    # given
    original = tiny_path("llama")
    # when
    folder = import_model(as_gguf(original, tmp_path / "tiny.gguf"))
    # then
    theirs, ours = load_file(original / "model.safetensors"), load_file(folder.path / "model.safetensors")
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)
    text = "Numbers 12 and 3,\n\n  tabs\tand 日本語 😀 <|im_end|>"
    assert Tokenizer.from_folder(folder).encode(text) == Tokenizer.from_folder(resolve(original)).encode(text)


def test_a_converted_model_gives_the_logits_of_the_original(shelf: Path, tmp_path: Path) -> None:
    # given
    import torch
    from transformers import AutoModelForCausalLM

    original = tiny_path("llama")
    folder = import_model(as_gguf(original, tmp_path / "tiny.gguf"))
    ids = torch.arange(3, 60)[None]
    # when
    with torch.no_grad():
        theirs, ours = (AutoModelForCausalLM.from_pretrained(path).eval()(ids).logits for path in (original, folder.path))
    # then
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_an_import_is_listed_and_found_again(shelf: Path, gguf: Path) -> None:
    # when
    folder = import_model(gguf)
    # then
    (entry,) = list_models()
    assert (entry.name, entry.title, entry.complete) == ("Small-Llama-v1.F32", "Small Llama v1.F32", True)
    assert entry.parameters == sum(int(np.prod(tensor.shape)) for tensor in small_llama().tensors)
    assert resolve(entry.name) == resolve(gguf) == resolve(str(gguf)) == folder
    assert (folder.path.stat().st_mode & 0o777, (folder.path / "config.json").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("umask", [0o022, 0o002])
def test_imported_files_are_accessible_to_their_owner_alone_whatever_the_umask(
    umask: int, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: a models folder whose parent folders do not exist either
    shelf = tmp_path / "share" / "elsewise" / "models"
    monkeypatch.setenv("ELSEWISE_MODELS", str(shelf))
    before = os.umask(umask)
    try:
        # when
        import_model(gguf, "mine", keep=True)
        import_model(tiny_path("llama"), "copied")
        resolve(gguf)  # notes its SHA-256
    finally:
        os.umask(before)
    # then
    made = [tmp_path / "share", *(tmp_path / "share").rglob("*")]
    assert {"source.gguf", ".lock", ".digests", "model.safetensors", "elsewise.json"} <= {path.name for path in made}
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_permissions_of_an_existing_models_folder_are_kept(shelf: Path, gguf: Path) -> None:
    shelf.mkdir()
    shelf.chmod(0o755)
    folder = import_model(gguf)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (shelf, folder.path)] == [0o755, 0o700]


def test_a_gguf_file_is_imported_when_its_path_is_resolved(shelf: Path, gguf: Path) -> None:
    folder = resolve(gguf)
    assert folder.config["num_hidden_layers"] == LAYERS
    assert (folder.config["num_attention_heads"], folder.config["num_key_value_heads"]) == (HEADS, KV_HEADS)
    assert folder.config["rms_norm_eps"] == 1e-6


def test_files_put_on_the_shelf_by_hand_are_not_replaced_by_an_import(shelf: Path, tmp_path: Path) -> None:
    # given a folder and a file that were put there by hand, and a dangling link
    own = shutil.copytree(tiny_path("llama"), shelf / "mine")
    (own / "notes.md").write_text("read me")
    file, other = small_llama().write(shelf / "foo.gguf"), small_llama().write(tmp_path / "other.gguf")
    (shelf / "gone").symlink_to(tmp_path / "nowhere")
    # when
    assert import_model(own).path == own
    for source, name in ((file, "foo.gguf"), (other, "foo.gguf"), (other, "gone")):
        with pytest.raises(ModelLoadError, match="choose another name"):
            import_model(source, name)
    with pytest.raises(ModelLoadError, match="choose another name"):
        convert_model("mine", 4, "mine")
    # then all of it is there, and files that are not part of the model may change
    assert (own / "notes.md").read_text() == "read me"
    (own / "notes.md").write_text("read on")
    ModelShelf().verify("mine")
    assert read_manifest(own) is not None
    assert file.is_file()
    assert {*left_behind(shelf)} == {"mine", "foo.gguf", "gone"}


def test_importing_a_linked_folder_leaves_the_folder_unchanged(shelf: Path, tmp_path: Path) -> None:
    own = shutil.copytree(tiny_path("llama"), tmp_path / "own")
    before = {path.name for path in own.iterdir()}
    ModelShelf().add(own)
    assert not import_model(own).path.is_symlink()
    assert {path.name for path in own.iterdir()} == before


def test_a_rope_factor_without_a_type_is_linear(shelf: Path, tmp_path: Path) -> None:
    file = small_llama().with_pair("llama.rope.scaling.factor", F32, 4.0).write(tmp_path / "stretched.gguf")
    rope = import_model(file).config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("linear", 4.0)


def test_the_manifest_has_the_digest_of_the_template(shelf: Path, gguf: Path) -> None:
    folder = import_model(gguf)
    manifest = read_manifest(folder.path)
    assert folder.chat_template is not None
    assert manifest is not None
    assert manifest.template_digest == hashlib.sha256(folder.chat_template.encode()).hexdigest()


def test_importing_twice_converts_once(shelf: Path, gguf: Path) -> None:
    # given
    first = import_model(gguf, "mine")
    stages: list[str] = []
    # when
    second = import_model(gguf, "mine", lambda progress: stages.append(progress.stage))
    # then
    assert second == first
    assert stages == []
    assert [entry.title for entry in list_models()] == ["mine"]  # although the file has another name


def test_another_model_with_the_same_file_name_is_imported_beside_the_first(shelf: Path, gguf: Path) -> None:
    # given
    first = import_model(gguf)
    small_llama(seed=1).write(gguf)
    # when
    second = import_model(gguf)
    # then
    assert second.weights_digest != first.weights_digest
    assert second.text_digest == first.text_digest
    assert len(list_models()) == 2


def test_a_taken_name_is_not_overwritten(shelf: Path, gguf: Path) -> None:
    # given
    first = import_model(gguf, "org/name@main")
    small_llama(seed=1).write(gguf)
    # when, then
    with pytest.raises(ModelLoadError, match="another model is called 'org/name@main'"):
        import_model(gguf, "org/name@main")
    assert resolve("org/name@main") == resolve("org/name") == first


@pytest.mark.slow
def test_a_damaged_model_is_imported_again(shelf: Path, gguf: Path) -> None:
    # given
    folder = import_model(gguf, "mine")
    (folder.path / "model.safetensors").write_bytes(b"rot")
    # when
    again = import_model(gguf, "mine")
    # then
    assert again == folder
    assert resolve("mine") == folder
    assert left_behind(shelf) == ["mine"]


def test_the_converter_exits_cleanly_while_its_stdin_is_open(gguf: Path, tmp_path: Path) -> None:
    """One of its threads is still reading standard input, which must not disturb the interpreter's shutdown."""
    command = [sys.executable, "-m", "runtime.loading.gguf.convert", str(gguf), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert '"parameters"' in child.stdout.read()
        assert child.stderr.read() == ""
        assert child.wait() == 0


def test_two_imports_at_once_take_turns(shelf: Path, gguf: Path) -> None:
    # given
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(import_model(gguf).path)) for _ in range(2)]
    # when
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # then
    assert len(paths) == 2
    assert paths[0] == paths[1]


def test_only_the_needed_files_of_a_folder_are_copied(shelf: Path, tmp_path: Path) -> None:
    # given
    source = tmp_path / "org model"
    shutil.copytree(tiny_path("qwen3"), source)
    (source / "pytorch_model.bin").write_bytes(b"\x80\x04never opened")
    (source / "modeling_custom.py").write_text("raise SystemExit")
    # when
    folder = import_model(source, "org/tiny@abc123")
    # then
    assert {file.name for file in folder.path.iterdir()} <= {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("chat_template.jinja", "model.safetensors", "elsewise.json"),
    }
    assert (folder.weights_digest, folder.text_digest) == (resolve(source).weights_digest, resolve(source).text_digest)
    assert list_models()[0].name == "org/tiny@abc123"
    manifest = read_manifest(folder.path)
    assert manifest is not None
    assert manifest.template_digest == hashlib.sha256((source / "chat_template.jinja").read_bytes()).hexdigest()


def test_progress_is_reported_during_an_import(shelf: Path, gguf: Path) -> None:
    reports: list[Progress] = []
    import_model(gguf, progress=reports.append)
    by_stage = {stage: [report for report in reports if report.stage == stage] for stage in ("check", "convert")}
    totals = {report.total for report in by_stage["convert"] if report.total}
    assert totals == {sum(len(tensor.data) for tensor in small_llama().tensors)}
    for told in by_stage.values():
        assert told
    done = [report.done for report in by_stage["convert"]]
    assert done == sorted(done)
