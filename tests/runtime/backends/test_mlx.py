"""Features specific to the MLX backend. All tests run in one thread, since arrays belong to the thread that made them."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model, quantize_model, save_model

from runtime.backends import selftest
from runtime.backends.base import ROOT
from runtime.backends.mlx.backend import MlxBackend, load
from runtime.backends.mlx.cache import PIECE, MlxPack
from runtime.backends.mlx.corrections import corrected_config
from runtime.errors import InvalidRequestError, MemoryBudgetError, ModelLoadError, SnapshotFormatError, UnsupportedFeatureError
from runtime.loading.model_folder import ModelFolder
from runtime.options.load import LoadOptions
from tests.runtime.backends.reference import TOLERANCE, append, chain, expected, log_softmax, random_ids
from tests.tiny_models import tiny_folder, tiny_tokenizer

NOTHING = np.empty(0, np.int64)


@pytest.fixture(scope="module")
def llama() -> Iterator[MlxBackend]:
    backend = load(tiny_folder("llama"), LoadOptions())
    yield backend
    backend.unload()


def active() -> int:
    gc.collect()
    return int(mx.get_active_memory())


def test_info_names_the_mlx_backend_and_dtype(llama: MlxBackend) -> None:
    assert llama.info.backend == "mlx"
    assert llama.info.dtype == "float32"
    assert llama.info.warnings == ()


def test_a_long_forward_on_a_slow_processor_is_computed_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a slow processor, as measured with the first token: a prompt may take minutes
    check = selftest.check_finite

    def slow(backend: MlxBackend) -> float:
        check(backend)
        return 0.2  # seconds

    monkeypatch.setattr(selftest, "check_finite", slow)
    backend = load(tiny_folder("llama"), LoadOptions())
    assert backend.speed == 5  # tokens per second
    # when a prompt is pushed, then progress through the layers is counted, which distinguishes slow from hung
    pack, reached = backend.open_pack(), []
    for count in (100, 1):
        before = backend.layer_calls
        append(backend, pack, random_ids(1, count))
        reached.append(backend.layer_calls - before)
    # and a single token, which is fast, is computed at once
    assert reached == [backend.info.layers, 0]
    backend.unload()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "mistral"])
def test_the_last_token_of_a_long_prompt_is_pushed_separately(kind: str) -> None:
    # given a prompt in two parts, each so long that its last layer costs more than another forward of one token
    backend = load(tiny_folder(kind), LoadOptions())
    ids, pack = random_ids(3, 500), backend.open_pack()
    for start, stop in ((0, 300), (300, 500)):
        before = backend.forwards, backend.pushed
        _, logits = backend.forward(pack, ids[start:stop], chain(start, stop - start, start - 1), np.array([stop - start - 1]))
        assert (backend.forwards - before[0], backend.pushed - before[1]) == (2, stop - start)
        # then the logits are the same
        plain = log_softmax(backend.logits_uncached(ids[:stop].tolist()))
        np.testing.assert_allclose(log_softmax(logits[0]), plain, atol=TOLERANCE)
    # and logits of further tokens come from one forward
    forwards = backend.forwards
    _, logits = backend.forward(backend.open_pack(), ids, chain(0, 500, ROOT), np.array([250, 499]))
    assert backend.forwards - forwards == 1
    for row, stop in zip(logits, (251, 500), strict=True):
        np.testing.assert_allclose(log_softmax(row), log_softmax(backend.logits_uncached(ids[:stop].tolist())), atol=TOLERANCE)
    backend.unload()


def long_pack(backend: MlxBackend, n: int) -> MlxPack:
    """A pack of n slots, a multiple of 100, without the cost of computing them."""
    pack = backend.open_pack()
    slots, _ = append(backend, pack, random_ids(1, 100))
    payload = backend.take(pack, slots)
    for _ in range(100, n, 100):
        backend.load(pack, payload, ROOT)
    return pack


def test_payloads_keep_no_memory_of_a_closed_pack(llama: MlxBackend) -> None:
    # given the memory in use, when a few tokens of a large pack are taken and split, and the pack is closed
    before = active()
    pack = long_pack(llama, 4000)
    payload = llama.take(pack, np.arange(3950, 3960))
    head, tail = llama.split(payload, 3)
    llama.close(pack)
    del pack, payload
    # then the memory in use is that of the parts, within a few bytes per array
    parts = [*head.keys, *head.values, *tail.keys, *tail.values]
    assert active() - before <= sum(a.nbytes for a in parts) + 64 * len(parts) + 4096


def test_a_payload_of_a_single_attention_layer_is_a_copy() -> None:
    folder = tiny_folder("lfm2")  # reduced to one of its two attention layers
    config = {**folder.config, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    model, _ = load_model(folder.path, model_config=corrected_config(replace(folder, config=config, weights=())), strict=False)
    backend = load((model, tiny_tokenizer()), LoadOptions())
    pack = long_pack(backend, 4000)
    before, buffers = active(), backend.pack_bytes(pack)
    payload = backend.take(pack, np.arange(5))
    backend.close(pack)
    assert payload.keys[0].shape[0] == 1
    assert before - active() > 0.9 * buffers


def test_decoding_copies_no_buffer(llama: MlxBackend) -> None:
    # given a long pack with room, when one token is decoded, then the peak stays far below another copy of the buffers
    pack = long_pack(llama, 20_000)
    at, _ = llama.forward(pack, np.array([5]), np.array([99]), NOTHING)
    before = active()
    mx.reset_peak_memory()
    llama.forward(pack, np.array([5]), at, NOTHING)
    assert mx.get_peak_memory() - before < llama.pack_bytes(pack) / 6


def test_rows_are_moved_in_pieces_when_memory_is_short(llama: MlxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a path after another text, and memory to move the rows of one buffer at once, then only a few at a time
    pack, ids, tail = llama.open_pack(), random_ids(5, 150), random_ids(6, 3)
    append(llama, pack, random_ids(7, 100))
    slots, _ = append(llama, pack, ids)
    sizes: list[int] = []

    def short(array: mx.array, indices: mx.array, axis: int) -> mx.array:
        sizes.append(int(indices.size))
        if indices.size > PIECE and len(sizes) != 1:
            raise RuntimeError("[malloc] out of memory")
        return taken(array, indices, axis=axis)

    taken = mx.take
    monkeypatch.setattr(mx, "take", short)
    llama.retain(pack, slots, slots[-1:])
    monkeypatch.undo()
    # then all rows are at their new places
    assert sizes[:5] == [150, 150, PIECE, PIECE, 150 - 2 * PIECE]
    _, got = append(llama, pack, tail, 149)
    np.testing.assert_allclose(got, expected("llama", [*ids, *tail])[150:], atol=TOLERANCE, rtol=0)


def test_a_pack_is_unchanged_when_there_is_no_memory_to_move_its_rows(
    llama: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, ids, other = llama.open_pack(), random_ids(5, 20), random_ids(7, 10)
    held, _ = append(llama, pack, other)
    slots, _ = append(llama, pack, ids)

    def full(*_: object, **__: object) -> mx.array:
        raise RuntimeError("[malloc] out of memory")

    monkeypatch.setattr(mx, "take", full)
    with pytest.raises(MemoryBudgetError):
        llama.retain(pack, slots, slots[-1:])
    monkeypatch.undo()
    for text, tip in ((ids, slots[-1]), (other, held[-1])):
        _, got = append(llama, pack, [5], int(tip))
        np.testing.assert_allclose(got, expected("llama", [*text, 5])[-1:], atol=TOLERANCE, rtol=0)


def test_branches_of_different_length_are_one_library_call(llama: MlxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    model = type(llama.model)
    sound = model.__call__

    def watched(self: Any, tokens: mx.array, **kwargs: Any) -> Any:
        shapes.append(tuple(tokens.shape))
        return sound(self, tokens, **kwargs)

    monkeypatch.setattr(model, "__call__", watched)
    pack = llama.open_pack()
    append(llama, pack, random_ids(4, 6))
    parents = np.concatenate([[5], chain(7, 40, 5), [6], [2]])
    llama.forward(pack, random_ids(5, 43), parents, np.array([40]))
    assert shapes == [(1, 6), (43, 1)]


def test_mlx_lm_itself_is_still_wrong_where_we_correct_it() -> None:
    # a guard: when this fails, mlx-lm was fixed and our correction must be removed
    for name, seed in (("mistral", 7), ("phi3", 7), ("gemma2", 7), ("gemma3_80", 8)):
        ids = random_ids(seed, 40)
        folder = tiny_folder(name)
        model, _ = load_model(folder.path, model_config=corrected_config(folder))
        plain = np.array(model(mx.array(ids)[None])[0, -1])
        assert np.abs(log_softmax(plain) - expected(name, ids.tolist())[-1]).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_80", "mamba", "falcon_h1"])
def test_a_ready_model_is_not_changed_and_can_be_loaded_again(name: str) -> None:
    # given a ready model of the caller
    folder, ids = tiny_folder(name), random_ids(12, 12)
    model, _ = load_model(folder.path, model_config=corrected_config(folder))
    plain, classes = np.array(model(mx.array(ids)[None])), [type(module) for module in model.modules()]

    def unchanged() -> bool:
        again = np.array(model(mx.array(ids)[None]))
        return np.array_equal(again, plain) and [type(module) for module in model.modules()] == classes

    # when it is loaded twice at the same time, and both give logits at some positions of a text
    backends = [load((model, tiny_tokenizer()), LoadOptions()) for _ in range(2)]
    packs = [backend.open_pack() for backend in backends]
    got = [
        backend.forward(pack, ids, chain(0, len(ids), ROOT), np.array([2, 7]))[1]
        for backend, pack in zip(backends, packs, strict=True)
    ]
    # then the numbers are equal, and the model is unchanged, also after unloading and after a failed load
    np.testing.assert_array_equal(got[0], got[1])
    assert backends[0].info.kv_fingerprint == backends[1].info.kv_fingerprint
    assert unchanged()
    for backend in backends:
        backend.unload()
    with pytest.raises(InvalidRequestError, match="context"):
        load((model, tiny_tokenizer()), LoadOptions(context_length=10**9))
    assert unchanged()


def test_a_layer_order_that_mlx_lm_does_not_support_is_refused() -> None:
    folder = tiny_folder("gemma3")
    config = {**folder.config, "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
    with pytest.raises(ModelLoadError, match=r"layer_types: .*backend='hf'"):
        load(replace(folder, config=config), LoadOptions())


def test_a_quantised_model_loads_and_info_names_its_quantisation(tmp_path: Path) -> None:
    folder = _quantised(tmp_path)
    backend = load(folder, LoadOptions())
    assert backend.info.quantisation == "4 bits, groups of 32"
    pack, ids = backend.open_pack(), random_ids(9, 20)
    append(backend, pack, ids)
    _, logits = backend.forward(pack, np.array([3, 4]), np.array([19, 10]), np.arange(2))
    np.testing.assert_allclose(logits[0], backend.logits_uncached([*ids.tolist(), 3]), atol=1e-3)
    np.testing.assert_allclose(logits[1], backend.logits_uncached([*ids[:11].tolist(), 4]), atol=1e-3)


def test_an_unproven_architecture_is_named_in_a_warning(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, Olmo2Config

    config = Olmo2Config(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
        max_position_embeddings=64,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    backend = load(ModelFolder(tmp_path, "olmo", written, "w", "t"), LoadOptions())
    assert any("not compared with transformers" in warning for warning in backend.info.warnings)


def test_code_in_a_model_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_LM_TRUST_REMOTE_CODE", "1")
    folder = tiny_folder("llama")
    shutil.copytree(folder.path, tmp_path / "m")
    (tmp_path / "m" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelLoadError):
        load(replace(folder, path=tmp_path / "m", config={**folder.config, "model_file": "evil.py"}), LoadOptions())
    assert not (tmp_path / "ran").exists()
    assert "MLX_LM_TRUST_REMOTE_CODE" not in os.environ


def test_an_attention_option_is_refused_by_mlx() -> None:
    with pytest.raises(UnsupportedFeatureError):
        load(tiny_folder("llama"), LoadOptions(attention="eager"))


def test_an_unavailable_device_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="cuda"):
        load(tiny_folder("llama"), LoadOptions(device="cuda"))


def test_cached_kv_in_16_bits_gives_a_small_error_and_warnings() -> None:
    backend = load(tiny_folder("llama"), LoadOptions(kv_dtype="bf16", threads=2))
    rests, threads = backend.info.warnings
    assert "KV rests in bfloat16" in rests
    assert threads == "threads has no meaning with MLX"
    pack, ids = backend.open_pack(), random_ids(10, 30)
    slots, _ = append(backend, pack, ids)
    plain = backend.export(backend.take(pack, slots))
    assert plain["keys.0"].dtype == np.uint16
    fresh = backend.open_pack()
    held = backend.load(fresh, backend.restore(plain), ROOT)
    _, got = append(backend, fresh, ids[:1], int(held[-1]))
    gap = np.abs(got[0] - expected("llama", [*ids.tolist(), int(ids[0])])[-1]).max()
    assert 1e-6 < gap < 0.2


def test_malformed_arrays_are_not_restored(llama: MlxBackend) -> None:
    pack = llama.open_pack()
    slots, _ = append(llama, pack, random_ids(11, 4))
    plain = llama.export(llama.take(pack, slots))
    for damaged in ({"kv": plain["n"]}, {**plain, "n": np.array(5)}, {**plain, "keys.0": plain["keys.0"].astype(np.float16)}):
        with pytest.raises(SnapshotFormatError):
            llama.restore(damaged)


def _quantised(tmp_path: Path) -> ModelFolder:
    folder = tiny_folder("llama")
    model, config = load_model(folder.path, model_config=corrected_config(folder))
    model, config = quantize_model(model, config, group_size=32, bits=4)
    save_model(tmp_path, model)
    (tmp_path / "config.json").write_text(json.dumps(config))
    done: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    return ModelFolder(tmp_path, "tiny-4bit", done, "w4", "t")


def test_an_empty_pack_can_be_cut_to_no_slots_and_used(llama: MlxBackend) -> None:
    pack = llama.open_pack()
    llama.retain(pack, NOTHING, NOTHING)
    _, got = append(llama, pack, [5, 6, 7])
    np.testing.assert_allclose(got, expected("llama", [5, 6, 7]), atol=TOLERANCE, rtol=0)
