from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from runtime.errors import ModelLoadError
from runtime.loading.integrity import MANIFEST, remembered_sha256
from runtime.loading.paths import models_dir
from runtime.shelf.importing import import_model
from runtime.shelf.model_shelf import ModelShelf, list_models
from runtime.shelf.source import resolve
from tests.runtime.loading.gguf_files import small_llama
from tests.tiny_models import tiny_path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model imported once for all tests of this file: its folder on a separate shelf."""
    folder = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELSEWISE_MODELS", str(folder / "models"))
        return import_model(small_llama().write(folder / "small.gguf"), "small").path


@pytest.fixture
def imported(shelf: Path, original: Path) -> Path:
    """A copy of the model on the test's shelf."""
    return shutil.copytree(original, shelf / original.name)


def test_the_models_folder_follows_the_environment(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models_dir() == shelf
    monkeypatch.delenv("ELSEWISE_MODELS")
    assert models_dir().parts[-2:] == ("elsewise", "models")


def test_a_folder_is_found_by_its_path(shelf: Path) -> None:
    assert resolve(tiny_path("llama")).path == resolve(str(tiny_path("llama"))).path == tiny_path("llama")


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("smollm2", "fetch it with: `elsewise models get smollm2"),
        ("org/name@main", "org/name@main is not in .*`elsewise models get smollm2`, or .*`elsewise models import FOLDER"),
        ("org/name@main", "fetch it with: `elsewise models fetch org/name@main`; "),
        ("org/name", "org/name is not in .*`elsewise models get smollm2`, or .*`elsewise models import FOLDER"),
        ("org/name-1.7B", "elsewise models import FOLDER"),
        ("nothing", "elsewise models import FOLDER"),
        ("/no/such/folder", "no such file or folder; .*elsewise models import FOLDER"),
        ("missing.gguf", "no such file or folder"),
        ("../../not here", "no such file or folder"),
        ("", "no model was named"),
        (" ", "no model was named"),
    ],
)
def test_the_error_for_an_unknown_model_names_the_command(source: str, remedy: str, shelf: Path) -> None:
    with pytest.raises(ModelLoadError, match=remedy):
        resolve(source)


def test_a_revision_may_be_omitted_when_there_is_only_one(shelf: Path) -> None:
    # given
    one = import_model(tiny_path("qwen3"), "org/name@abc")
    # then
    assert resolve("org/name") == one
    # when
    import_model(tiny_path("llama"), "org/name@def")
    # then
    with pytest.raises(ModelLoadError, match="2 revisions; choose one: org/name@abc, org/name@def"):
        resolve("org/name")
    assert resolve("org/name@abc") == one


@pytest.mark.parametrize("name", ["weights.bin", "model.pt", "x.pth", "x.ckpt"])
def test_a_pickle_is_not_opened(name: str, shelf: Path, tmp_path: Path) -> None:
    (tmp_path / name).touch(mode=0)
    with pytest.raises(ModelLoadError, match="a pickle, which is never opened"):
        resolve(tmp_path / name)


def test_a_weights_file_without_its_folder_is_refused(shelf: Path) -> None:
    with pytest.raises(ModelLoadError, match="give the folder"):
        resolve(tiny_path("llama") / "model.safetensors")


@pytest.mark.parametrize(("cut", "said"), [(0, "not a GGUF file"), (-1, "truncated or damaged")])
def test_a_file_with_a_damaged_header_is_refused_without_reading_it_all(
    cut: int, said: str, shelf: Path, tmp_path: Path
) -> None:
    path = small_llama().write(tmp_path / "small.gguf")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelLoadError, match=said):
        resolve(path)
    assert remembered_sha256(path) is None


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"])
def test_a_flipped_bit_is_detected_and_its_file_is_named(name: str, imported: Path) -> None:
    # given
    data = bytearray((imported / name).read_bytes())
    data[len(data) // 2] ^= 1
    (imported / name).write_bytes(data)
    # when, then
    with pytest.raises(
        ModelLoadError, match=rf"{name} is damaged or was changed.*remove the model \(small\) and import small.gguf"
    ):
        resolve("small")


def test_a_missing_file_is_named(imported: Path) -> None:
    (imported / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is missing"):
        resolve("small")
    (entry,) = list_models()
    assert (entry.complete, entry.problem) == (False, "tokenizer.json is missing or of another size")


def test_a_touched_file_is_read_again_and_accepted(imported: Path) -> None:
    before = resolve("small")
    (imported / "model.safetensors").touch()
    assert resolve("small") == before


def test_a_copied_shelf_has_the_same_digests(imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    before = resolve("small")
    for file in imported.iterdir():
        (tmp_path / "moved" / "small").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, tmp_path / "moved" / "small" / file.name)  # without timestamps
    # when
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "moved"))
    after = resolve("small")
    # then
    assert (after.weights_digest, after.text_digest) == (before.weights_digest, before.text_digest)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', "\x00"])
def test_a_damaged_manifest_is_refused(text: str, imported: Path) -> None:
    (imported / MANIFEST).write_text(text)
    with pytest.raises(ModelLoadError, match=r"elsewise\.json is damaged .*import the model again"):
        resolve("small")
    (entry,) = list_models()
    assert not entry.complete
    assert "damaged" in entry.problem


def test_a_newer_manifest_is_refused(imported: Path) -> None:
    text = (imported / MANIFEST).read_text()
    (imported / MANIFEST).write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(ModelLoadError, match=r"newer version \(format 2\)"):
        resolve("small")


def test_an_empty_shelf_lists_nothing(shelf: Path) -> None:
    assert list_models() == []


def test_verification_reads_every_byte_again(imported: Path) -> None:
    # given: a change of the content without a change of size and time
    ModelShelf().verify("small")
    path = imported / "model.safetensors"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    # when, then
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is damaged or was changed"):
        ModelShelf().verify("small")


@pytest.mark.parametrize("name", ["missing", "../small", ""])
def test_a_model_that_is_not_on_the_shelf_cannot_be_verified(name: str, shelf: Path) -> None:
    with pytest.raises(ModelLoadError, match="not on the shelf"):
        ModelShelf().verify(name)


def test_a_damaged_record_of_a_digest_is_no_record(shelf: Path, tmp_path: Path) -> None:
    path = small_llama().write(tmp_path / "small.gguf")
    resolve(path)
    assert remembered_sha256(path) is not None
    for record in (shelf / ".digests").iterdir():
        record.write_text("[" * 200_000)
    assert remembered_sha256(path) is None
