"""Repositories without a usable model: refused before their weights are fetched."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import DownloadError
from runtime.hub.child_protocol import HubId
from tests.runtime.hub.conftest import Fetch, failed
from tests.runtime.hub.local_hub import Files, LocalHub

WEIGHTS = "model.safetensors"


@pytest.mark.parametrize(
    ("without", "more", "said"),
    [
        ({WEIGHTS}, {}, r"only pickled weights \(pytorch_model.bin\), which are never opened"),
        ({WEIGHTS, "pytorch_model.bin"}, {}, "no weights"),
        ({WEIGHTS}, {"sub/model.safetensors": b"x" * 100, "../model.safetensors": b"y"}, "only pickled weights"),
        ({"tokenizer.json"}, {"tokenizer.model": b"x"}, "no tokenizer.json"),
        ({"config.json"}, {}, "no config.json; this is not a model's repository"),
        ({"config.json"}, {"adapter_config.json": b"{}"}, "an adapter, but pytorch_model.bin is never opened"),
        (
            {"config.json", WEIGHTS},
            {"a-Q4.gguf": b"GGUF"},
            r"only GGUF files; download one \(a-Q4.gguf\).*models import FILE.gguf",
        ),
    ],
)
def test_a_repository_without_a_model_is_refused(
    without: set[str], more: Files, said: str, hub: LocalHub, fetch: Fetch, tiny: Files
) -> None:
    hub.add("org/tiny", {name: data for name, data in {**tiny, **more}.items() if name not in without})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert re.match(rf"org/tiny@main: .*{said}", str(fault))
    assert WEIGHTS not in hub.fetched()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"auto_map": {"AutoModel": "modeling_tiny.Tiny"}, "model_type": "tiny_own"}, r"code of its own \(auto_map.*never run"),
        ({"model_file": "modeling_tiny.py", "model_type": "tiny_own"}, r"code of its own \(model_file"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            r"with gptq, which needs CUDA libraries \(vLLM, or transformers",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised with awq, which needs CUDA"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised with bitsandbytes, which needs CUDA"),
        ({"quantization_config": {"quant_method": "fp9"}}, "quantised with fp9, which nothing here reads"),
        ({"model_type": "never_heard_of"}, "neither transformers nor mlx-lm knows the architecture never_heard_of"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; it must be a whole number from 1"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"model_type": None}, "model_type is 'None'"),
    ],
)
def test_a_config_that_cannot_run_is_refused_before_the_weights(
    changes: dict[str, Any], said: str, hub: LocalHub, fetch: Fetch, tiny: Files
) -> None:
    config = json.loads(tiny["config.json"]) | changes
    hub.add("org/tiny", {**tiny, "config.json": json.dumps(config).encode()})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert hub.fetched() == ["config.json"]
    assert re.search(said, str(fault))


@pytest.mark.parametrize("config", [b"not json", b"[]", b'{"a": NaN}', b"\xff\xfe", b"[" * 5000])
def test_a_config_that_is_not_valid_json_is_refused(config: bytes, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", {**tiny, "config.json": config})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert str(fault).startswith("org/tiny@main/config.json: ")


@pytest.mark.parametrize(
    "shard",
    ["../up.safetensors", "/etc/model.safetensors", "a/b.safetensors", "a\\b.safetensors", "w.bin", "", "..safetensors"],
)
def test_an_index_that_points_out_of_the_folder_is_refused(
    shard: str, hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path
) -> None:
    index = json.dumps({"weight_map": {"a": shard}}).encode()
    hub.add("org/tiny", {**tiny, "model.safetensors.index.json": index, shard or "x": b"!" * 20})
    assert failed(fetch).reason == "unsuitable"
    assert not (shelf.parent / "up.safetensors").exists()


def test_an_index_that_names_missing_shards_is_refused(hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    hub.add("org/tiny", {**tiny, "model.safetensors.index.json": index, "model-1.safetensors": b"x"})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert "model-2.safetensors is missing from the repository (2 parts in all)" in str(fault)


@pytest.mark.parametrize(
    "name", ["", "a b/c", "../x", "org/name/more", "org/na--me", "org/name@", "org/name@../x", "-x/y", "org/n@a//b"]
)
def test_an_invalid_repository_id_is_refused(name: str) -> None:
    with pytest.raises(DownloadError, match="is no repository: give org/name"):
        HubId.parse(name)
