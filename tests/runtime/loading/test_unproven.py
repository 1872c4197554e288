"""Files of supported families with features that were not verified: refused before conversion."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import ModelLoadError
from runtime.loading.gguf.decoder import FAMILIES, DecoderShape, check_tensors
from runtime.loading.gguf.header import read_header
from runtime.shelf.importing import import_model
from tests.runtime.loading.as_gguf import as_gguf
from tests.runtime.loading.gguf_files import F32, STRING, U32, Pair
from tests.runtime.loading.test_families import made

UNPROVEN: dict[str, tuple[str, tuple[Pair, ...], str]] = {
    "a window in qwen2": ("qwen2", (Pair("qwen2.attention.sliding_window", U32, 16),), "in this architecture"),
    "longrope": ("phi3", (Pair("phi3.rope.scaling.type", STRING, "longrope"),), "'longrope'"),
    "linear rope in phi3": (
        "phi3",
        (Pair("phi3.rope.scaling.type", STRING, "linear"), Pair("phi3.rope.scaling.factor", F32, 2.0)),
        "'linear' in a phi3",
    ),
    "linear rope in gemma2": (
        "gemma2",
        (Pair("gemma2.rope.scaling.type", STRING, "linear"), Pair("gemma2.rope.scaling.factor", F32, 2.0)),
        "'linear' in a gemma2",
    ),
    "a cap in gemma3": ("gemma3", (Pair("gemma3.final_logit_softcapping", F32, 30.0),), "final_logit_softcapping"),
    "yarn of a kind of its own": (
        "qwen2",
        (Pair("qwen2.rope.scaling.type", STRING, "yarn"), Pair("qwen2.rope.scaling.attn_factor", F32, 1.2)),
        "attn_factor",
    ),
    "experts": ("gemma3", (Pair("gemma3.expert_count", U32, 4),), "mixtures of experts"),
}


@pytest.fixture(scope="module")
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unproven")
    return as_gguf(made(request.param, folder / "original"), folder / "tiny.gguf")


def changed(path: Path, *, without: str = "", more: tuple[Pair, ...] = ()) -> DecoderShape:
    """The shape that is read from a file with changed metadata."""
    header = read_header(path)
    metadata: dict[str, Any] = {key: value for key, value in header.metadata.items() if key != without}
    return DecoderShape.of(dataclasses.replace(header, metadata={**metadata, **{pair.key: pair.value for pair in more}}))


@pytest.mark.parametrize(("file", "pairs", "complaint"), UNPROVEN.values(), ids=list(UNPROVEN), indirect=["file"])
def test_a_file_with_an_unverified_feature_is_refused(file: Path, pairs: tuple[Pair, ...], complaint: str) -> None:
    with pytest.raises(ModelLoadError, match=complaint) as refused:
        changed(file, more=pairs)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("file", ["gemma2", "gemma3"], indirect=True)
def test_a_gemma_without_a_sliding_window_is_refused(file: Path) -> None:
    with pytest.raises(ModelLoadError, match="sliding_window is missing"):
        changed(file, without=f"{read_header(file).architecture}.attention.sliding_window")


@pytest.mark.parametrize("file", ["gemma3"], indirect=True)
def test_a_gemma3_without_a_rope_base_is_refused(file: Path) -> None:
    """Its global layers have another base than llama.cpp's default."""
    with pytest.raises(ModelLoadError, match=r"rope\.freq_base is missing"):
        changed(file, without="gemma3.rope.freq_base")


@pytest.mark.parametrize(("file", "layers"), [("gemma2", 46), ("gemma3", 62)], indirect=["file"])
def test_the_largest_gemmas_scale_queries_by_hidden_size_over_heads(file: Path, layers: int) -> None:
    architecture = read_header(file).architecture
    large = changed(file, more=(Pair(f"{architecture}.block_count", U32, layers),))
    assert (large.config()["query_pre_attn_scalar"], changed(file).config()["query_pre_attn_scalar"]) == (64 // 4, 24)


@pytest.mark.parametrize("file", ["llama"], indirect=True)
@pytest.mark.parametrize(("window", "kind"), [(0, "llama"), (512, "llama"), (4096, "llama"), (16, "mistral")])
def test_a_llama_with_a_short_window_is_a_mistral(file: Path, window: int, kind: str) -> None:
    shape = changed(file, more=(Pair("llama.attention.sliding_window", U32, window),))
    assert shape.config()["model_type"] == kind
    assert shape.config().get("sliding_window") == (window if kind == "mistral" else None)


@pytest.mark.parametrize("file", ["llama"], indirect=True)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
def test_the_tensors_of_another_family_are_refused(family: str, file: Path) -> None:
    header = read_header(file)
    window = {f"{family}.attention.sliding_window": 16} if "gemma" in family else {}
    metadata = {key.replace("llama.", f"{family}.", 1): value for key, value in header.metadata.items()}
    renamed = dataclasses.replace(header, metadata={**metadata, "general.architecture": family, **window})
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf: the tensor blk\.0\..* is missing"):
        check_tensors(renamed, DecoderShape.of(renamed))


def test_the_biases_of_a_qwen2_declared_as_a_llama_are_refused(tmp_path: Path) -> None:
    header = read_header(as_gguf(made("qwen2", tmp_path / "original"), tmp_path / "tiny.gguf"))
    metadata = {key.replace("qwen2.", "llama.", 1): value for key, value in header.metadata.items()}
    renamed = dataclasses.replace(header, metadata={**metadata, "general.architecture": "llama"})
    with pytest.raises(ModelLoadError, match=r"the tensor blk\.0\.attn_k\.bias is not part of a plain llama \(of 6 such\)"):
        check_tensors(renamed, DecoderShape.of(renamed))


def test_a_qwen2_whose_heads_are_not_as_wide_as_the_model_is_refused(shelf: Path, tmp_path: Path) -> None:
    path = as_gguf(made("qwen2", tmp_path / "original"), tmp_path / "tiny.gguf")
    data = path.read_bytes()
    for key in (b"qwen2.attention.key_length", b"qwen2.attention.value_length"):
        at = data.index(key) + len(key) + 4  # the value is a number of 4 bytes
        data = data[:at] + (32).to_bytes(4, "little") + data[at + 4 :]
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match="are not as wide as the model"):
        import_model(path)
