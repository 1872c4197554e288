"""GGUF files imported with quantised weights: the same values, the same answers, a fraction of the bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from runtime import load
from runtime.backends.hf.loading import load_model
from runtime.backends.hf.weights import AffineEmbedding, AffineLinear
from runtime.backends.mlx.loading import flat_parameters
from runtime.backends.mlx.loading import load_model as load_on_mlx
from runtime.errors import ModelLoadError, RuntimeFault
from runtime.loading.gguf.convert import check_gguf, convert
from runtime.loading.integrity import MANIFEST
from runtime.loading.memory_estimate import estimate_fit
from runtime.loading.model_folder import ModelFolder, open_folder
from runtime.loading.paths import models_dir
from runtime.options.load import LoadOptions
from runtime.shelf.importing import SOURCE, import_model, plan_import
from runtime.shelf.model_shelf import ModelShelf, list_models
from runtime.shelf.source import resolve
from tests.machines import on_a_processor, on_apple_silicon
from tests.runtime.loading.gguf_files import GgufFile, stored
from tests.runtime.loading.packed import Choice, in_blocks, k_quants, packed
from tests.tiny_models import tiny_path

Both = Callable[..., tuple[ModelFolder, ModelFolder]]
IDS = list(range(3, 60))
CLOSE = 1e-4  # nats: the difference of two backends on the same float32 weights
FAMILIES = ("llama", "qwen3", "gemma3", "gemma3_80", "qwen2", "mistral", "phi3", "gemma2")
FAST = ("llama", "qwen3", "gemma3")


def mixed(name: str) -> str:
    """As llama.cpp packs a small model: the embedding in more bits than the rest; one matrix unpacked."""
    if name == "token_embd.weight":
        return "Q8_0"
    return {"blk.1.ffn_down.weight": "F32", "blk.0.attn_v.weight": "Q5_1", "blk.1.attn_k.weight": "Q4_1"}.get(name, "Q4_0")


def suitable(file: GgufFile) -> GgufFile:
    """Rows of 80 are no multiple of 32: ggml leaves such matrices unpacked."""

    def fitting(tensor: Any) -> Any:
        if len(tensor.shape) == 1 or tensor.shape[1] % 32 == 0:
            return tensor
        values = np.random.default_rng(5).normal(0, 0.2, tensor.shape).astype(np.float32)
        return stored(tensor.name, values)

    return dataclasses.replace(file, tensors=tuple(fitting(tensor) for tensor in file.tensors))


@pytest.fixture
def both(tmp_path: Path) -> Both:
    """A tiny model's GGUF, converted to float32 and kept quantised."""

    def make(name: str, choice: Choice = mixed) -> tuple[ModelFolder, ModelFolder]:
        return converted(suitable(packed(tiny_path(name), choice)), tmp_path / name)

    return make


def converted(file: GgufFile, place: Path) -> tuple[ModelFolder, ModelFolder]:
    """A file in both forms, each in a folder of its own."""
    checked = check_gguf(file.write(place.with_suffix(".gguf")))
    folders = []
    for quantised, form in ((False, "plain"), (True, "kept")):
        target = place.with_name(f"{place.name}-{form}")
        target.mkdir()
        convert(checked, target, lambda done, total: None, quantised=quantised)
        folders.append(open_folder(target, backend="mlx"))
    return folders[0], folders[1]


def unpacked(folder: ModelFolder) -> dict[str, npt.NDArray[np.float32]]:
    """Weights by name; quantised ones as MLX reads them with the settings in config.json."""
    arrays = load_file(folder.path / "model.safetensors")
    said = folder.config["quantization"]
    found = {}
    for name, array in arrays.items():
        layer = name.removesuffix(".weight")
        if array.dtype == np.uint32:
            own = said.get(layer, said)
            scales, biases = (mx.array(arrays[f"{layer}.{part}"]) for part in ("scales", "biases"))
            found[name] = np.array(mx.dequantize(mx.array(array), scales, biases, own["group_size"], own["bits"]))
        elif not name.endswith((".scales", ".biases")):
            found[name] = array
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_quantised_weights_have_the_same_values(name: str, both: Both) -> None:
    plain, kept = both(name)
    theirs, ours = load_file(plain.path / "model.safetensors"), unpacked(kept)
    assert theirs.keys() == ours.keys()
    for key, value in theirs.items():
        np.testing.assert_array_equal(ours[key], value, err_msg=key)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES])
def test_the_quantised_model_gives_the_numbers_of_the_float32_one(name: str, both: Both, tell: Callable[[str], None]) -> None:
    plain, kept = both(name)
    rows, infos = [], []
    for folder in (plain, kept):
        with load(folder.path, "mlx", device="cpu") as model:
            rows.append(np.array([model.next_token_logprobs_sync(IDS[:n]) for n in (1, 20, len(IDS))]))
            infos.append(model.info)
    assert rows[0].std() > 1  # otherwise no difference would show
    tell(f"{name}: {np.abs(rows[0] - rows[1]).max():.1e}")
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=CLOSE)
    # and texts, numbers and KV of the two are kept apart
    assert infos[0].kv_fingerprint != infos[1].kv_fingerprint
    assert infos[0].model_fingerprint != infos[1].model_fingerprint
    assert infos[0].parameters == infos[1].parameters
    assert infos[0].quantisation is None
    assert infos[1].quantisation == f"{str(kept.quantisation).removesuffix(' bit (mlx)')} bits, groups of 32"


@pytest.mark.parametrize(
    ("form", "bits"),
    [("Q4_0", 6), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("Q5_0", 7), ("Q8_0", 10)))],
)
def test_the_size_of_quantised_weights_matches_the_entry_and_the_estimate(
    form: str, bits: int, shelf: Path, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    plain, kept = both("qwen3", lambda name: form)
    for name, folder in (("plain", plain), ("kept", kept)):
        ModelShelf().add(folder.path, name)
    # when
    shapes = [array.shape for array in load_file(plain.path / "model.safetensors").values()]
    matrices = sum(int(np.prod(shape)) for shape in shapes if len(shape) == 2)
    norms = sum(shape[0] for shape in shapes if len(shape) == 1)
    entry = ModelShelf().find("kept")
    # then: the bits of each number, and a scale and a bias of 32 bits per 32 numbers
    assert entry.weights == matrices * bits // 8 + norms * 4
    assert entry.weights < (kept.path / "model.safetensors").stat().st_size < entry.weights + 20_000  # names and shapes
    assert entry.parameters == ModelShelf().find("plain").parameters
    # and the backend holds exactly these bytes, on a CPU as on a GPU
    arrays = mx.load(str(kept.path / "model.safetensors"))
    assert isinstance(arrays, dict)
    held = sum(array.nbytes for array in arrays.values())
    assert {array.dtype for array in arrays.values()} == {mx.uint32, mx.float32}
    # (float32 everywhere: no conversion, and no rounding of the file's scales)
    for machine in (on_a_processor, on_apple_silicon):
        machine(monkeypatch)
        fit = estimate_fit(ModelShelf().config("kept"), entry.weights, dtype=entry.dtype, backend="mlx", context=100)
        assert fit.weights == entry.weights == held
        assert fit.kv_per_token == 3 * 2 * 2 * 16 * 4


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [pytest.param(each, marks=[] if each == "gemma3" else pytest.mark.slow) for each in FAMILIES])
def test_hf_gives_the_numbers_of_float32_weights_from_quantised_ones(name: str, shelf: Path, tmp_path: Path) -> None:
    # given
    file = suitable(packed(tiny_path(name), mixed)).write(tmp_path / f"{name}.gguf")
    folders = [import_model(file, keep_quantised=quantised) for quantised in (False, True)]
    # when
    rows, infos = [], []
    for folder in folders:
        with load(folder.path, "hf", device="cpu") as model:
            rows.append(np.array([model.next_token_logprobs_sync(IDS[:n]) for n in (1, 20, len(IDS))]))
            infos.append(model.info)
    with load(folders[1].path, "mlx", device="cpu") as model:
        theirs = np.array([model.next_token_logprobs_sync(IDS[:n]) for n in (1, 20, len(IDS))])
    # then
    assert rows[0].std() > 1
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=3e-5)
    np.testing.assert_allclose(rows[1], theirs, rtol=0, atol=CLOSE)
    assert infos[0].kv_fingerprint != infos[1].kv_fingerprint
    assert infos[0].parameters == infos[1].parameters
    assert infos[1].quantisation == f"{str(folders[1].quantisation).removesuffix(' bit (mlx)')} bits, groups of 32"


def test_four_bit_weights_stay_packed_on_hf(shelf: Path, tmp_path: Path) -> None:
    # given a file with 4 bits in every matrix
    file = packed(tiny_path("qwen3"), lambda name: "Q4_0")
    folder = import_model(file.write(tmp_path / "four.gguf"), keep_quantised=True)
    theirs = sum(len(tensor.data) for tensor in file.tensors)
    # when
    loaded = load_model(open_folder(folder.path, backend="hf"), LoadOptions(device="cpu"))
    # then it holds the file's own tensors, and no others
    assert ModelShelf().find("four-mlx").weights <= 1.6 * theirs
    assert 1.2 * theirs < held_by(loaded.model) <= 1.6 * theirs


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"bits": 5}, r"the tensor .* is U32 \(\d+, 8\) in the weights and U32 \(\d+, 10\) by config.json"),
        ({"bits": 7}, "says no bits and groups of 16 or 32"),
        ({"group_size": 16}, r"the tensor .* is F32 \(\d+, 2\) in the weights and F32 \(\d+, 4\) by config.json"),
        ({"group_size": 64}, "says no bits and groups of 16 or 32"),
    ],
)
def test_hf_refuses_a_quantisation_that_does_not_match_the_weights(
    changed: dict[str, int], why: str, shelf: Path, both: Both
) -> None:
    _, kept = both("llama", lambda name: "Q4_0")
    said = dict(kept.config) | {"quantization": {**kept.config["quantization"], **changed}}
    with pytest.raises(ModelLoadError, match=why):
        load_model(dataclasses.replace(kept, config=said), LoadOptions(device="cpu"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"dtype": "bfloat16"},
            r"in float32, not in bfloat16: .* take [\d,]{7,} bytes: `elsewise models import FILE --float32`",
        ),
        ({"offload": "disk"}, r"leave out offload"),
        ({"weights": "int8"}, r"these are quantised: leave it out"),
    ],
)
def test_hf_refuses_dtype_offload_and_weights_options_for_quantised_weights(
    options: dict[str, Any], why: str, both: Both
) -> None:
    _, kept = both("llama")
    with pytest.raises(RuntimeFault, match=why):
        load_model(kept, LoadOptions(device="cpu", **options))


def tensors_of(module: Any) -> list[Any]:
    """Parameters, buffers and packed matrices of one module, without those of its children."""
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return own + (list(module.matrix[:3]) if isinstance(module, AffineLinear | AffineEmbedding) else [])


def held_by(model: Any) -> int:
    """Bytes of all tensors of a torch model, each counted once."""
    held = [tensor for module in model.modules() for tensor in tensors_of(module)]
    return sum({tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in held if not tensor.is_meta}.values())


@pytest.mark.slow
def test_the_list_shows_the_form_of_both_imports(shelf: Path, tmp_path: Path) -> None:
    file = packed(tiny_path("llama"), mixed).write(tmp_path / "llama.gguf")
    plain, kept = (import_model(file, keep_quantised=quantised) for quantised in (False, True))
    one, other = list_models()
    assert (one.name, one.format, one.quantisation, one.backends) == ("llama", "float32, from GGUF", None, ("hf", "mlx"))
    assert (other.name, other.format, other.backends) == ("llama-mlx", "from GGUF", ("hf", "mlx"))
    assert kept.quantisation == other.quantisation == "4 and 5 and 8 bit (mlx)"
    assert one.parameters == other.parameters
    assert one.fingerprint != other.fingerprint
    assert kept.text_digest == plain.text_digest
    (kept.path / MANIFEST).unlink()  # nothing marks it as an import from GGUF any more
    with pytest.raises(ModelLoadError, match="backend='mlx' or choose the plain model"):
        resolve("llama-mlx", backend="hf")


def test_layers_with_other_bits_are_listed_in_the_config(both: Both) -> None:
    _, kept = both("llama")
    config = json.loads((kept.path / "config.json").read_text())
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.embed_tokens": {"group_size": 32, "bits": 8},
        "model.layers.0.self_attn.v_proj": {"group_size": 32, "bits": 5},
        "model.layers.1.mlp.down_proj": False,
    }


@pytest.mark.slow
def test_the_form_of_an_import_depends_on_the_machine_and_the_backend(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file that was not imported yet
    file = packed(tiny_path("llama"), mixed).write(tmp_path / "one.gguf")
    # when it is loaded on a machine with mlx as default, then hf uses the quantised import, or a float32 one beside it
    on_apple_silicon(monkeypatch)
    assert resolve(file, backend="mlx").quantisation
    assert resolve(file, backend="hf").path.name == "one-mlx"
    assert import_model(file, keep_quantised=False).quantisation is None
    assert [entry.name for entry in list_models()] == ["one", "one-mlx"]
    # and each backend finds its better form from then on
    assert resolve(file, backend="mlx").path.name == "one-mlx"
    assert resolve(file, backend="hf").path.name == "one"
    assert import_model(file).path.name == "one-mlx"
    # on other machines both use float32
    on_a_processor(monkeypatch)
    assert resolve(file, backend="mlx").path.name == import_model(file).path.name == "one"
    assert len(list_models()) == 2
    ModelShelf().remove("one")
    assert resolve(file, backend="mlx").path.name == "one-mlx"  # the only one left, and it runs
    assert resolve(file, backend="hf").path.name == "one-mlx"


def test_a_file_without_quantised_matrices_is_refused_or_imported_as_float32(
    shelf: Path, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K can be kept"
    with pytest.raises(ModelLoadError, match=rf"no matrix of it is quantised \({forms}\); import it as float32"):
        import_model(gguf, keep_quantised=True)
    assert list_models() == []
    on_apple_silicon(monkeypatch)
    assert import_model(gguf).quantisation is None
    with pytest.raises(ModelLoadError, match="a folder is taken as it is"):
        import_model(tiny_path("llama"), keep_quantised=True)


def test_damaged_scales_are_refused(shelf: Path, tmp_path: Path) -> None:
    file = packed(tiny_path("llama"), mixed)
    tensor = next(each for each in file.tensors if each.name == "blk.0.attn_q.weight")
    bad = np.frombuffer(tensor.data, np.uint8).copy()
    bad[:2] = np.array([np.inf], "<f2").view(np.uint8)
    path = file.with_tensor(tensor.name, data=bad.tobytes()).write(tmp_path / "bad.gguf")
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_q\.weight holds NaN or infinity"):
        import_model(path, keep_quantised=True)
    assert list_models() == []


def test_quantised_rows_that_are_no_multiple_of_32_are_refused_before_reading(shelf: Path, tmp_path: Path) -> None:
    file = packed(tiny_path("gemma3_80"), lambda name: "F32")
    tensor = next(each for each in file.tensors if each.name == "blk.0.attn_q.weight")
    assert tensor.shape[1] == 80
    path = file.with_tensor(tensor.name, kind=2).write(tmp_path / "bad.gguf")
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_q\.weight"):
        import_model(path, keep_quantised=True)


def quantised_alike(on_hf: Any, on_mlx: Any, values: Mapping[str, Any]) -> set[str]:
    """Compares the weights in both libraries by value; returns the layers that stay quantised in MLX."""
    parts, layers = dict(flat_parameters(on_mlx.model)), set()
    for key, value in values.items():
        layer = key.removesuffix(".weight")
        module = on_hf.model.get_submodule(layer)
        quantised = isinstance(module, AffineLinear | AffineEmbedding)
        np.testing.assert_array_equal((module.matrix.rows(slice(None)) if quantised else module.weight).numpy(), value)
        if f"{layer}.scales" in parts:
            layers.add(layer)
            scales, biases = (parts[f"{layer}.{part}"] for part in ("scales", "biases"))
            bits = parts[key].shape[1] * 32 // value.shape[1]
            parts[key] = mx.dequantize(parts[key], scales, biases, group_size=32, bits=bits)
        np.testing.assert_array_equal(np.array(parts[key]), value, err_msg=key)
    return layers


@pytest.mark.parametrize(("most", "better"), [("Q5_K", "Q6_K"), ("Q3_K", "Q5_K"), ("Q2_K", "Q3_K")])
def test_weights_of_other_k_quants_are_exact(most: str, better: str, tmp_path: Path) -> None:
    # given files like Q5_K_M, Q3_K_M and Q2_K
    layers = {"output.weight": "lm_head", "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj"}
    file = k_quants(tmp_path / "original", layers, most, better)
    plain, kept = converted(file, tmp_path / "k")
    values = load_file(plain.path / "model.safetensors")
    # when both libraries load the quantised import
    on_hf, on_mlx = load_model(kept, LoadOptions(device="cpu")), load_on_mlx(kept, LoadOptions(device="cpu"))
    # then the weights equal those of the float32 import; in MLX those with groups of 32 stay quantised
    small = quantised_alike(on_hf, on_mlx, values)
    matrices = {key.removesuffix(".weight") for key, value in values.items() if value.ndim == 2}
    assert small == (set(layers.values()) if better == "Q5_K" else matrices - set(layers.values()) if most == "Q5_K" else set())
    on_mlx.limits.reset()


def test_k_quants_are_exact_and_stay_packed_on_hf(tmp_path: Path) -> None:
    """Like Q4_K_M files: some matrices in Q6_K, which has a scale per 16 numbers, a form that MLX does not have."""
    # given rows as wide as a K-quant block
    file = k_quants(tmp_path / "original", ("output.weight", "blk.0.ffn_down.weight", "blk.0.attn_v.weight"))
    theirs = sum(len(tensor.data) for tensor in file.tensors)
    plain, kept = converted(file, tmp_path / "k")
    values = load_file(plain.path / "model.safetensors")
    # then these are 6 bits in groups of 16 on disk
    plan = plan_import(file.write(tmp_path / "k.gguf"))
    assert plan.note == "Q6_K (27 % of the weights) becomes float32 when mlx loads it: MLX has no form that is exactly it"
    for size, folder in zip((plan.float32, plan.kept), (plain, kept), strict=True):
        header = (folder.path / "model.safetensors").stat().st_size - size
        assert 0 < header < 20_000  # everything else is weights
    said = {
        layer: {"group_size": 16, "bits": 6, "shape": list(values[f"{layer}.weight"].shape)}
        for layer in ("lm_head", "model.layers.0.mlp.down_proj", "model.layers.0.self_attn.v_proj")
    }
    assert kept.config["quantization"] == {"group_size": 32, "bits": 4, **said}
    assert plan.kept <= 1.6 * theirs
    # and packed in hf, float32 in mlx, as estimated, and equal by value
    on_hf, on_mlx = load_model(kept, LoadOptions(device="cpu")), load_on_mlx(kept, LoadOptions(device="cpu"))
    assert not quantised_alike(on_hf, on_mlx, values) & said.keys()
    held = held_by(on_hf.model), sum(array.nbytes for _, array in flat_parameters(on_mlx.model))
    assert held[0] <= 1.6 * theirs < held[1]
    for backend, nbytes in zip(("hf", "mlx"), held, strict=True):
        estimated = estimate_fit(kept.config, plan.kept, dtype="U32", backend=backend, context=100).weights
        assert 0 <= nbytes - estimated < 1000  # rope's frequencies do not count as weights
    told = list[int]()  # before the weights are read, so that too large ones are refused
    open_folder(kept.path, backend="mlx", fits=told.append)
    assert 0 < told[0] - held[1] < 20_000  # the header
    assert on_hf.quantisation == "4 and 6 bits, groups of 16 and 32"
    assert on_mlx.quantisation == "4 bits, groups of 32"
    assert on_hf.parameters == sum(value.size for value in values.values())
    on_mlx.limits.reset()


@pytest.mark.slow
def test_the_embedded_model_imported_quantised_is_close_and_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    # given
    source = models_dir() / "smollm2" / SOURCE
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path))
    # when
    rows, sizes = [], []
    for folder in (import_model(source, keep_quantised=False), import_model(source, keep_quantised=True)):
        sizes.append(sum(file.stat().st_size for file in folder.weights))
        with load(folder.path, "mlx", device="cpu") as model:
            ids = model.tokenize("The quick brown fox jumps over the lazy dog. The capital of France is")
            rows.append(np.array([model.next_token_logprobs_sync(ids[:n]) for n in (1, 5, len(ids))]))
    # then
    tell(f"smollm2: {np.abs(rows[0] - rows[1]).max():.1e}, {sizes[1] / 1e6:,.0f} of {sizes[0] / 1e6:,.0f} MB")
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-3)
    assert sizes[1] < sizes[0] / 4.5  # the embedding, a fifth of it, has 8 bits


def test_a_fused_matrix_has_one_quantisation(both: Both) -> None:
    """Phi-3's q, k and v are one tensor with one format, and one layer for mlx."""
    _, kept = both("phi3", lambda name: "Q5_0" if "qkv" in name else "Q4_0")
    said = kept.config["quantization"]
    assert said["bits"] == 4
    assert said["model.layers.0.self_attn.qkv_proj"] == {"group_size": 32, "bits": 5}


def test_norms_in_blocks_are_imported_as_float32(tmp_path: Path) -> None:
    file = packed(tiny_path("gemma3"), mixed)
    norm = next(each for each in file.tensors if each.name == "output_norm.weight")
    folders = converted(file.with_tensor(norm.name, kind=8, data=in_blocks(norm, "Q8_0").data), tmp_path / "norm")
    rows = [load_file(folder.path / "model.safetensors")["model.norm.weight"] for folder in folders]
    np.testing.assert_array_equal(rows[1], rows[0])
    assert rows[1].dtype == np.float32
