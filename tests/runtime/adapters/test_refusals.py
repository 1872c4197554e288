"""Unusable adapters are refused with a typed error before anything is computed or changed."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime import LanguageModel, load
from runtime.adapters.folder import read_header
from runtime.adapters.matching import check_base
from runtime.errors import AdapterError, InvalidRequestError, UnsupportedFeatureError
from runtime.options.generation import GenerationOptions
from runtime.options.load import LoadOptions
from tests.fakes import fake_model, local
from tests.runtime.adapters.makers import save_adapter
from tests.tiny_models import tiny_path

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with load(tiny_path("llama"), backend="hf") as made:
        yield made
        assert made.info.adapters == ()  # none of the refused adapters is left
        assert made.metrics().tokens_computed == 0


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of A that a test may damage."""
    copy = tmp_path / "A"
    copy.mkdir()
    for name in (WEIGHTS, CONFIG):
        (copy / name).write_bytes((folders["A"] / name).read_bytes())
    return copy


def change(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | settings))


def spoil(folder: Path, act: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    act(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"use_dora": True}, "use_dora=True changes what the adapter computes"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "trains biases too"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"something_new": 3}, "something_new=3"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base model's weights"),
        ({"r": 8}, "r is 8 for .*, but its tensors have rank 4"),
        ({"r": 0}, "r must be a finite number above 0"),
        ({"lora_alpha": "six"}, "lora_alpha must be a finite number, not 'six'"),
        ({"lora_alpha": 1e400}, "Infinity|finite"),
        ({"alpha_pattern": {"(": 1}}, "no pattern"),
        ({"rank_pattern": [4]}, "rank_pattern is a mapping"),
        ({"alora_invocation_tokens": []}, "a list of token ids"),
        ({"alora_invocation_tokens": ["a"]}, "a list of token ids"),
        ({"alora_invocation_tokens": [5] * 1_025}, "has 1,025 ids, at most 1,024 are looked for"),
        ({"alora_invocation_tokens": [5, 1_000]}, "invocation token 1,000 is outside the vocabulary of 1,000"),
        ({"base_model_name_or_path": "org/SomethingElse-7B"}, "made for org/SomethingElse-7B, and this is tiny-llama"),
    ],
)
def test_settings_other_than_plain_lora_are_refused(
    model: LanguageModel, folder: Path, settings: dict[str, Any], says: str
) -> None:
    change(folder, **settings)
    with pytest.raises(AdapterError, match=says):
        model.add_adapter(folder)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "stands alone, .*lora_B.weight is missing"),
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": np.ones(64, np.float32)}), "no part of a LoRA product"),
        (lambda t: t.update({f"{Q}.bias": np.ones(64, np.float32)}), "q_proj.bias .* no part of a LoRA product"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.ones((4, 64), np.int32)}), "dtype I32"),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": np.ones((4, 65), np.float32)}),
            r"q_proj is 65 -> 64 .* 64 -> 64 in the model",
        ),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.ones((3, 64), np.float32)}), "do not share a rank"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.ones((4, 64, 1), np.float32)}), "no matrices"),
        (lambda t: t.update({k.replace("q_proj", "w_proj"): t.pop(k) for k in list(t) if k.startswith(Q)}), "no linear module"),
        (
            lambda t: t.update({k.replace("layers.0", "layers.9"): t[k] for k in list(t) if k.startswith(Q)}),
            "layers.9.*another base",
        ),
        (lambda t: t.update({"lm_head.lora_embedding_A": np.ones((4, 1000), np.float32)}), "no part of a LoRA product"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    model: LanguageModel, folder: Path, act: Callable[[dict[str, Any]], None], says: str
) -> None:
    spoil(folder, act)
    with pytest.raises(AdapterError, match=says):
        model.add_adapter(folder)


def test_folders_without_an_adapter_are_refused(
    model: LanguageModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "shelf"))
    with pytest.raises(AdapterError, match="no such folder"):
        model.add_adapter(tmp_path / "nowhere")
    with pytest.raises(AdapterError, match=f"org/mine is not in {tmp_path / 'shelf'}"):
        model.add_adapter("org/mine")
    for nothing in ("", "  "):
        with pytest.raises(AdapterError, match="no adapter was named"):
            model.add_adapter(nothing)
    with pytest.raises(AdapterError, match="holds a whole model"):
        model.add_adapter(tiny_path("llama"))
    with pytest.raises(AdapterError, match="give the folder"):
        model.add_adapter(folder / WEIGHTS)
    (folder / WEIGHTS).write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00 not a header")
    with pytest.raises(AdapterError, match="damaged safetensors"):
        model.add_adapter(folder)
    (folder / CONFIG).write_text("[1, 2")
    with pytest.raises(AdapterError, match="not readable as JSON"):
        model.add_adapter(folder)


def test_a_pickle_is_never_opened(model: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (folder / "sprung",))

    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Trap()))
    opened: list[str] = []
    read_bytes = Path.read_bytes

    def noted(path: Path) -> bytes:
        opened.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    with pytest.raises(AdapterError, match=r"adapter_model\.bin, which is never opened"):
        model.add_adapter(folder)
    assert not (folder / "sprung").exists()
    assert "adapter_model.bin" not in opened


@pytest.mark.parametrize("scale", [math.nan, math.inf, "1", True, None])
def test_scales_that_are_not_finite_numbers_are_refused(folder: Path, scale: Any) -> None:
    with load(tiny_path("llama"), backend="hf") as model:
        model.load_adapter(model.add_adapter(folder))
        with pytest.raises(AdapterError, match="scale of adapter 'A' must be a finite number"):
            model.push_lora("A", scale)
        with pytest.raises(AdapterError, match="must be a finite number"):
            next(model.generate_sync([1, 2], GenerationOptions(adapters=(("A", scale),))))
        assert model.lora_stack == ()


def test_unknown_unloaded_and_ambiguous_names_are_refused(folder: Path, folders: dict[str, Path]) -> None:
    with load(tiny_path("llama"), backend="hf") as model:
        with pytest.raises(AdapterError, match="none is registered"):
            model.load_adapter("mine")
        assert model.add_adapter(folder, "mine") == "mine"
        assert model.add_adapter(folder, "mine") == "mine"  # adding it again changes nothing
        for act in (model.load_adapter, model.unload_adapter, model.push_lora):
            with pytest.raises(AdapterError, match="no adapter is called 'mime': did you mean 'mine"):
                act("mime")
        with pytest.raises(AdapterError, match="mine_lora is not loaded; load_adapter"):
            model.next_token_logprobs_sync([1, 2], adapters=["mine"])
        with pytest.raises(AdapterError, match="registered already"):
            model.add_adapter(folders["B"], "mine")
        with pytest.raises(AdapterError, match="without ':'"):
            model.add_adapter(folder, "a:b")
        with pytest.raises(AdapterError, match="empty: nothing to pop"):
            model.pop_lora()
        with pytest.raises(AdapterError, match="a sequence of names"):
            model.next_token_logprobs_sync([1, 2], adapters="mine")
        model.unload_adapter("mine")  # it was not loaded: no effect
        assert model.list_adapters() == []
        # a plain and an activated adapter may share a name
        model.add_adapter(folders["act"], "mine")
        with pytest.raises(AdapterError, match="'mine' is two adapters: mine_alora and mine_lora"):
            model.load_adapter("mine")
        model.load_adapter("mine_alora")
        assert model.list_adapters() == ["mine_alora"]
        assert model.metrics().tokens_computed == 0


def test_nan_weights_changed_files_and_foreign_base_weights_are_refused(folder: Path) -> None:
    with load(tiny_path("llama"), backend="hf") as model:
        model.add_adapter(folder)
        good = (folder / WEIGHTS).read_bytes()
        spoil(folder, lambda t: t.update({f"{Q}.lora_A.weight": np.full((4, 64), np.nan, np.float32)}))
        with pytest.raises(AdapterError, match=r"q_proj\.lora_A\.weight holds NaN"):
            model.load_adapter("A")
        spoil(folder, lambda t: t.pop(f"{Q}.lora_A.weight"))
        with pytest.raises(AdapterError, match="has changed"):
            model.load_adapter("A")
        (folder / WEIGHTS).write_bytes(good)
        spoil(folder, lambda t: t.update({"base_model.model.lm_head.base_layer.weight": np.ones((1000, 64), np.float32)}))
        with pytest.raises(AdapterError, match="weights of its own for lm_head, and they are not this model's"):
            model.load_adapter("A")
        assert model.list_adapters() == []


@pytest.mark.slow
def test_an_adapter_for_a_module_that_the_model_never_calls_is_refused(root: Path) -> None:
    folder = save_adapter(root / "mamba" / "dt", "mamba", seed=1, target_modules=["in_proj", "dt_proj"])
    for backend in ("hf", "mlx"):
        with load(tiny_path("mamba"), backend=backend) as model:
            before = model.next_token_logprobs_uncached([1, 2, 3])
            model.add_adapter(folder)
            with pytest.raises(AdapterError, match=r"dt_proj.* never call|never calls .*dt_proj"):
                model.load_adapter("dt")
            np.testing.assert_array_equal(model.next_token_logprobs_uncached([1, 2, 3]), before)


def test_backends_without_adapters_and_invalid_adapter_options_are_refused(folder: Path) -> None:
    with load("anything", backend="mock") as model, pytest.raises(UnsupportedFeatureError, match="takes no adapters"):
        model.add_adapter(folder, any_base=True)
    with fake_model() as model, pytest.raises(AdapterError, match="no linear module"):
        model.add_adapter(folder, any_base=True)
    for bad in ("A", 3, (3,), (("A",),), ("",)):
        with pytest.raises(AdapterError):
            LoadOptions.from_mapping({"adapters": bad})
        with pytest.raises((AdapterError, InvalidRequestError)):
            GenerationOptions(adapters=bad).check()  # type: ignore[arg-type]  # on purpose
    with pytest.raises(AdapterError, match="no such folder"):
        load(tiny_path("llama"), backend="hf", adapters=(str(folder / "nowhere"),))


@pytest.mark.parametrize(
    "base",
    [
        "tiny-llama", "org/Tiny_Llama", "org/tiny-llama@main", "/models/tiny llama/", "org/tiny-llama-4bit",
        "x/tiny-llama-8-bit-mlx", "tiny-llama.Q4_K_M.gguf", "org/tiny-llama-q8_0", "tiny-llama-bf16-hf", "TinyLlama",
        "tiny-llama-IQ3_xxs", "",
    ],
)  # fmt: skip
def test_other_spellings_and_formats_of_the_base_name_are_accepted(model: LanguageModel, folder: Path, base: str) -> None:
    change(folder, base_model_name_or_path=base)
    assert model.info.name == "tiny-llama"
    check_base(read_header(folder), local(model).names)


@pytest.mark.parametrize(
    "base",
    ["llama", "tiny", "t", "tiny-llama-instruct", "tiny-llama-it", "tiny-llama-2", "org/tiny-llama-1b", "my-tiny-llama",
     "tiny-llamas", "tiny-llama-v0.1", "hf/llama", "org/tiny-llama-chat-4bit"],
)  # fmt: skip
def test_a_base_with_a_similar_name_is_refused(model: LanguageModel, folder: Path, base: str) -> None:
    change(folder, base_model_name_or_path=base)
    with pytest.raises(AdapterError, match=f"made for {base}, and this is tiny-llama; .*any_base=True"):
        model.add_adapter(folder)


def test_a_renamed_model_folder_is_recognised_by_its_own_name(folder: Path, tmp_path: Path) -> None:
    change(folder, base_model_name_or_path="org/Real-7B-Instruct")
    copy = tmp_path / "downloads"
    shutil.copytree(tiny_path("llama"), copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"_name_or_path": "org/Real-7B-Instruct"}))
    for backend in ("hf", "mlx"):
        with load(copy, backend=backend) as model:
            assert model.add_adapter(folder) == "A"
            change(folder, base_model_name_or_path="org/Real-7B")
            with pytest.raises(AdapterError, match="made for org/Real-7B, and this is downloads"):
                model.add_adapter(folder, "B")
            change(folder, base_model_name_or_path="org/Real-7B-Instruct")


def test_any_base_accepts_an_adapter_of_another_model(folder: Path) -> None:
    change(folder, base_model_name_or_path="org/SomethingElse-7B")
    with load(tiny_path("llama"), backend="hf") as model:
        model.load_adapter(model.add_adapter(folder, any_base=True))
        assert model.info.adapters[0].base == "org/SomethingElse-7B"
        assert model.base_model_name == "tiny-llama"
