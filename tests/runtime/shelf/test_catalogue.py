"""The list of models that comes with Elsewise: its numbers, its checksum, and the proposals by machine."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime.errors import ModelLoadError
from runtime.hub.child_protocol import HubId
from runtime.hub.repository import check_suitable
from runtime.loading.memory_estimate import kv_numbers
from runtime.shelf import catalogue as module
from runtime.shelf.catalogue import CatalogueModel, catalogue, fitting
from tests.machines import on_a_processor

GB = 10**9
LIST = Path(str(importlib.resources.files("resources"))) / "catalogue" / "models.json"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    catalogue.cache_clear()
    yield
    catalogue.cache_clear()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, int]:
    """A machine without a GPU, with a given amount of memory."""
    size = {"total": 16 * GB}
    plain = psutil.virtual_memory()
    on_a_processor(monkeypatch)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: plain._replace(total=size["total"], available=size["total"] // 2))
    return size


def counted(config: Mapping[str, Any]) -> tuple[int, int]:
    """All parameters, and those of one embedding table, from the numbers of a configuration."""
    hidden, heads, kind = config["hidden_size"], config["num_attention_heads"], config["model_type"]
    width = config.get("head_dim") or hidden // heads
    queries, keys = heads * width, config["num_key_value_heads"] * width
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config["intermediate_size"]
    layer += hidden * (4 if kind.startswith("gemma") else 2) + (2 * width if kind in ("qwen3", "gemma3_text") else 0)
    table = config["vocab_size"] * hidden
    tables = 1 if config["tie_word_embeddings"] else 2
    return config["num_hidden_layers"] * layer + hidden + tables * table, table


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.name)
def test_the_sizes_and_context_of_a_model_match_its_configuration(model: CatalogueModel) -> None:
    plain, *packed = model.variants
    parameters, table = counted(plain.config)
    assert model.parameters == parameters
    assert plain.bytes in (2 * parameters, 2 * (parameters + table))  # some files hold a tied table twice
    for variant in packed:
        assert variant.bits in (4, 8)
        assert 1 <= variant.bytes / (parameters * (variant.bits + 0.5) / 8) < 1.31
    longest = plain.config.get("original_max_position_embeddings", plain.config["max_position_embeddings"])  # for longrope
    assert (model.source, model.context) == (plain.source, longest)
    assert model.licence
    assert len(model.good_for) < 80


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.name)
def test_every_variant_is_accepted_by_the_loaders(model: CatalogueModel) -> None:
    for variant in model.variants:
        assert str(HubId.parse(variant.source)) == f"{variant.source}@main"
        check_suitable(variant.source, variant.config)
        assert variant.backends == (("mlx",) if variant.bits else ("hf", "mlx"))
    assert {variant.bits is None for variant in model.variants} == {True, False}  # a plain variant, and one for mlx
    assert model.variant("hf") is model.variants[0]
    assert model.variant("mlx") is model.variants[-1]


@pytest.mark.parametrize("entry", json.loads(LIST.read_bytes())["models"], ids=lambda entry: entry["name"])
def test_every_entry_of_the_list_has_the_fields_and_types_of_the_format(entry: dict[str, Any]) -> None:
    assert entry.keys() == {"name", "parameters", "licence", "good_for", "config", "variants"}
    config = entry["config"]
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"):
        assert isinstance(config[name], int)
        assert config[name] > 0
    assert isinstance(config["tie_word_embeddings"], bool)
    assert config["torch_dtype"] == "bfloat16"
    assert kv_numbers(config) > 0
    plain, *packed = entry["variants"]
    assert plain.keys() == {"source", "bytes", "gated"}
    assert all(variant.keys() == {"source", "bytes", "gated", "bits"} for variant in packed)
    for variant in entry["variants"]:
        assert isinstance(variant["gated"], bool)
        assert variant["source"].count("/") == 1
        assert "@" not in variant["source"]  # the fetch pins the commit
    assert all(
        variant["source"].startswith(("mlx-community/", "HuggingFaceTB/")) and not variant["gated"] for variant in packed
    )


def test_the_checksum_matches_the_list_and_a_mismatch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = module.SHA256
    assert sealed == hashlib.sha256(LIST.read_bytes()).hexdigest()
    monkeypatch.setattr(module, "SHA256", sealed[::-1])
    with pytest.raises(ModelLoadError, match="catalogue of models was changed"):
        catalogue()


def test_the_list_has_about_a_dozen_models_from_135m_to_8b() -> None:
    sizes = [model.parameters for model in catalogue()]
    assert 10 <= len(sizes) <= 15
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (134_515_008, 8_190_735_360)
    sources = [variant.source for model in catalogue() for variant in model.variants]
    assert len(sources) == len(set(sources))


def test_a_changed_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a list with one changed source
    real = (importlib.resources.files("resources") / "catalogue" / "models.json").read_bytes()
    (tmp_path / "catalogue").mkdir()
    (tmp_path / "catalogue" / "models.json").write_bytes(real.replace(b"Qwen/", b"Evil/", 1))
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
    # then
    said = r"catalogue of models was changed \(its SHA-256 is .*install Elsewise again"
    with pytest.raises(ModelLoadError, match=said):
        catalogue()
    with pytest.raises(ModelLoadError, match=said):
        fitting(3)
    (tmp_path / "catalogue" / "models.json").unlink()
    with pytest.raises(ModelLoadError, match="catalogue of models cannot be read"):
        catalogue()


@pytest.mark.parametrize(
    ("total", "names"),
    [
        (1, ["SmolLM2 135M"]),
        (2, ["SmolLM2 135M"]),
        (16, ["Qwen3 0.6B", "SmolLM2 360M", "SmolLM2 135M"]),
        (64, ["Qwen3 8B", "Qwen3 4B", "Qwen3 1.7B"]),
        (512, ["Qwen3 8B", "Qwen3 4B", "Qwen3 1.7B"]),
    ],
)
def test_the_proposed_models_fit_and_are_not_gated(total: int, names: list[str], memory: dict[str, int]) -> None:
    memory["total"] = total * GB
    found = fitting(3, "hf")
    assert [model.name for model in found] == names
    assert not any(model.variant("hf").gated for model in found)
    assert all(model.fit("hf").fits for model in found) == (total > 1)  # the smallest one is proposed in any case


def test_quantised_variants_let_larger_models_fit(memory: dict[str, int]) -> None:
    plain, packed = fitting(1, "hf")[0], fitting(1, "mlx")[0]
    assert packed.parameters > plain.parameters
    assert packed.fit("mlx").fits
    assert not packed.fit("hf").fits
    assert fitting(0, "hf") == ()


def test_a_tied_matrix_stored_twice_is_counted_once_in_memory(memory: dict[str, int]) -> None:
    # given a file with a tied matrix stored twice
    model = next(model for model in catalogue() if model.name == "Qwen3 0.6B")
    assert model.variants[0].bytes > 2 * model.parameters
    # then it is counted once, as float32
    assert model.fit("hf").weights == 4 * model.parameters
    assert model.fit("hf", context=100).kv < model.fit("hf").kv
