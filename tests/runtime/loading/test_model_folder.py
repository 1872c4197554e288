from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import ModelLoadError
from runtime.loading.integrity import known_sha256, sha256_of
from runtime.loading.model_folder import open_folder
from tests.tiny_models import TEMPLATE, tiny_path


@pytest.fixture
def model(shelf: Path, tmp_path: Path) -> Path:
    """A plain model folder outside of the shelf."""
    return Path(shutil.copytree(tiny_path("qwen3"), tmp_path / "tiny-qwen3"))


def change_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


def test_a_plain_folder_is_read_and_left_unchanged(model: Path) -> None:
    # given
    before = contents(model)
    # when
    folder = open_folder(model)
    # then
    assert folder.name == "tiny-qwen3"
    assert folder.chat_template == TEMPLATE
    assert folder.tokenizer_config["eos_token"] == "<|im_end|>"
    assert folder.weights == (model / "model.safetensors",)
    assert folder.config["rope_theta"] == folder.config["rope_parameters"]["rope_theta"]
    assert contents(model) == before


def test_the_digests_depend_on_the_content_alone(model: Path, tmp_path: Path) -> None:
    # given
    first = open_folder(model)
    # when
    copy = open_folder(Path(shutil.copytree(model, tmp_path / "elsewhere")))
    (model / "chat_template.jinja").write_text("{{ messages }}")
    other_template = open_folder(model)
    change_config(model, rms_norm_eps=1e-3)
    other_config = open_folder(model)
    # then
    assert (copy.weights_digest, copy.text_digest) == (first.weights_digest, first.text_digest)
    assert other_template.weights_digest == first.weights_digest
    assert other_template.text_digest != first.text_digest
    assert other_config.weights_digest != first.weights_digest
    assert other_config.text_digest == other_template.text_digest


def test_a_digest_is_computed_once(model: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    open_folder(model)
    # when
    monkeypatch.setattr("runtime.loading.integrity.sha256_of", lambda path: pytest.fail(f"{path} was read again"))
    # then
    open_folder(model)


def test_a_remembered_digest_is_not_used_for_changed_content(tmp_path: Path, shelf: Path) -> None:
    # given
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = known_sha256(path)
    # when
    path.write_bytes(b"three")
    # then
    assert known_sha256(path) == sha256_of(path) != first


def test_a_damaged_digest_note_is_replaced(tmp_path: Path, shelf: Path) -> None:
    # given
    path = tmp_path / "file"
    path.write_bytes(b"one")
    known_sha256(path)
    (note,) = (shelf / ".digests").iterdir()
    for spoiled in ("", "[]", "{}", "\x00"):
        # when
        note.write_text(spoiled)
        # then
        assert known_sha256(path) == sha256_of(path)


def test_a_folder_without_config_is_refused(model: Path) -> None:
    (model / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"no config\.json; this is not a model folder"):
        open_folder(model)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[1]", '{"a": NaN}', '{"a": Infinity}', '{"a": 1' + "0" * 9000 + "}", "[" * 100_000, "\ud800"]
)
def test_a_config_that_is_no_json_object_is_refused(text: str, model: Path) -> None:
    (model / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ModelLoadError, match=r"config\.json: (not readable as JSON|holds a)") as refused:
        open_folder(model)
    assert "\n" not in str(refused.value)


def test_an_enormous_config_is_not_read(model: Path) -> None:
    with (model / "config.json").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ModelLoadError, match="1,099,511,627,776 bytes; at most"):
        open_folder(model)


def test_a_folder_without_weights_is_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"no weights \(model\.safetensors"):
        open_folder(model)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "model.ckpt"])
def test_pickles_are_never_opened(name: str, model: Path) -> None:
    # given
    (model / "model.safetensors").rename(model / name)
    (model / name).chmod(0)
    # when, then
    with pytest.raises(ModelLoadError, match=rf"only pickled weights \({name}\), which are never opened"):
        open_folder(model)


def test_an_adapter_folder_is_refused_as_a_model(model: Path) -> None:
    (model / "model.safetensors").rename(model / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match="an adapter without its base model"):
        open_folder(model)


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ({"weight_map": {"a": "../../etc/passwd"}}, "is no safetensors file of this folder"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "is no safetensors file of this folder"),
        ({"weight_map": {"a": "model-00001-of-00002.safetensors"}}, "is missing"),
        ({"weight_map": {"a": f"{300 * 'a'}.safetensors"}}, "is missing"),
        ({"weight_map": {}}, "names no weights"),
        ({"weight_map": [1]}, "names no weights"),
    ],
)
def test_an_index_with_bad_file_names_is_refused(index: object, complaint: str, model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=complaint):
        open_folder(model)


def test_all_weight_shards_are_found(model: Path) -> None:
    # given
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    # when, then
    assert open_folder(model).weights == (model / "model-00001-of-00001.safetensors",)


def test_a_models_own_code_is_never_run(model: Path) -> None:
    (model / "modeling_evil.py").write_text("raise SystemExit('ran')")
    change_config(model, model_type="evil", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    with pytest.raises(ModelLoadError, match=r"needs code of its own \(auto_map in config\.json\), which is never run"):
        open_folder(model)


def test_code_beside_a_known_architecture_is_ignored(model: Path) -> None:
    change_config(model, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    assert "auto_map" not in open_folder(model).config


@pytest.mark.parametrize("kind", [None, "", 3, ["llama"], "../llama"])
def test_a_config_without_a_valid_model_type_is_refused(kind: object, model: Path) -> None:
    change_config(model, model_type=kind)
    with pytest.raises(ModelLoadError, match="model_type is"):
        open_folder(model)


def test_weights_quantised_for_mlx_load_on_mlx_alone(model: Path) -> None:
    change_config(model, quantization={"group_size": 64, "bits": 4})
    with pytest.raises(ModelLoadError, match="backend='mlx'"):
        open_folder(model)
    assert open_folder(model, backend="mlx").quantisation == "4 bit (mlx)"


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_weights_quantised_for_cuda_are_refused_by_name(backend: str, model: Path) -> None:
    change_config(model, quantization_config={"quant_method": "gptq"})
    with pytest.raises(ModelLoadError, match="quantised with gptq, which needs CUDA"):
        open_folder(model, backend=backend)


@pytest.mark.parametrize(
    "written", ["a text", [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "a text"}]]
)
def test_a_template_in_the_tokenizer_config_is_found(written: object, model: Path) -> None:
    # given
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": written}))
    # when, then
    assert open_folder(model).chat_template == "a text"


def test_a_base_model_has_no_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    assert open_folder(model).chat_template is None
