"""Features specific to the torch backend."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from runtime.backends.base import ROOT
from runtime.backends.hf.backend import HfBackend, load
from runtime.backends.hf.forward import attention_of, own_sdpa
from runtime.errors import InvalidRequestError, MemoryBudgetError, ModelLoadError, SnapshotFormatError, UnsupportedFeatureError
from runtime.options.load import LoadOptions
from tests.runtime.backends.reference import TOLERANCE, append, expected, log_softmax, random_ids
from tests.tiny_models import tiny_folder, tiny_path, tiny_tokenizer


@pytest.fixture(scope="module")
def llama() -> Iterator[HfBackend]:
    backend = load(tiny_folder("llama"), LoadOptions())
    yield backend
    backend.unload()


def test_info_names_the_hf_backend(llama: HfBackend) -> None:
    assert llama.info.backend == "hf"


def test_info_contains_max_batch_rows(llama: HfBackend) -> None:
    assert llama.info.options["max_batch_rows"] == 64 or torch.cuda.is_available()
    other = load(tiny_folder("llama"), LoadOptions(max_batch_rows=7))
    assert other.info.options["max_batch_rows"] == 7
    other.unload()


def test_grouped_query_heads_with_a_folded_mask_equal_plain_attention() -> None:
    # given six query heads over two key heads, and a mask of five tokens over forty slots
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 3, True  # as a model's attention has them
    query, key, value = (torch.randn(1, heads, n, 16) for heads, n in ((6, 5), (2, 40), (2, 40)))
    mask = torch.rand(1, 1, 5, 40) < 0.5
    mask[..., 0] = True
    plain, _ = own_sdpa(module, query, key, value, mask)
    # when the mask is repeated once for each head that shares keys, or for more heads
    added = torch.zeros(1, 1, 5, 40).masked_fill(~mask, -torch.inf)
    for heads in (3, 4):
        mask.folded = added.repeat(1, 1, heads, 1)
        got, _ = own_sdpa(module, query, key, value, mask)
        # then the attention output is the same
        torch.testing.assert_close(got, plain)


def test_payloads_own_exactly_their_storage(llama: HfBackend) -> None:
    # given a large pack, when a few tokens are taken, split, exported and restored
    pack = llama.open_pack()
    slots, _ = append(llama, pack, random_ids(1, 200))
    payload = llama.take(pack, slots[50:60])
    head, tail = llama.split(payload, 3)
    # then every tensor owns exactly its storage
    for part in (payload, head, tail, llama.restore(llama.export(payload))):
        for tensor in (*part.keys, *part.values):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.is_contiguous()


def test_payloads_do_not_change_when_the_pack_does(llama: HfBackend) -> None:
    pack, ids = llama.open_pack(), random_ids(2, 20)
    slots, _ = append(llama, pack, ids)
    before = llama.export(llama.take(pack, slots))
    payload = llama.take(pack, slots)
    llama.close(pack)
    other = llama.open_pack()
    held = llama.load(other, payload, ROOT)
    append(llama, other, ids, int(held[3]))
    after = llama.export(payload)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_decoding_moves_no_buffer(llama: HfBackend) -> None:
    # given a pack with room, when tokens are decoded, then the buffers stay where they are
    pack = llama.open_pack()
    append(llama, pack, random_ids(3, 70))
    append(llama, pack, random_ids(4, 1), 69)
    places = [layer.keys.data_ptr() for layer in pack.attention]
    for at in range(70, 100):
        llama.forward(pack, np.array([at]), np.array([at]), np.array([0]))
    assert [layer.keys.data_ptr() for layer in pack.attention] == places


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_eager_attention_gives_the_same_numbers(name: str) -> None:
    backend = load(tiny_folder(name), LoadOptions(attention="eager"))
    assert backend.info.options["attention"] == "eager"
    pack, ids = backend.open_pack(), random_ids(5, 25)
    append(backend, pack, ids)
    _, logits = backend.forward(pack, np.array([3, 4]), np.array([24, 20]), np.arange(2))
    np.testing.assert_allclose(log_softmax(logits[0]), expected(name, [*ids, 3])[-1], atol=TOLERANCE)
    np.testing.assert_allclose(log_softmax(logits[1]), expected(name, [*ids[:21], 4])[-1], atol=TOLERANCE)


def test_a_ready_model_is_used_in_place_and_restored_at_unload() -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.float32)
    before = attention_of(model)
    first = load((model, tiny_tokenizer()), LoadOptions())
    pack, ids = first.open_pack(), random_ids(6, 12)
    _, got = append(first, pack, ids)
    np.testing.assert_allclose(got, expected("llama", ids.tolist()), atol=TOLERANCE)
    assert len(first.info.kv_fingerprint) == 64
    fingerprint = first.info.kv_fingerprint
    first.unload()
    assert attention_of(model) == before
    with torch.no_grad():
        next(iter(model.parameters())).add_(1e-3)
    assert load((model, tiny_tokenizer()), LoadOptions()).info.kv_fingerprint != fingerprint


def test_a_ready_model_is_restored_after_a_failed_load() -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.float32).train()
    before, called = attention_of(model), list[object]()
    refused = (
        (LoadOptions(context_length=10**9), InvalidRequestError),  # refused after the model is loaded
        (LoadOptions(weights="int8"), UnsupportedFeatureError),  # refused before
    )
    for options, error in refused:
        with pytest.raises(error):
            load((model, tiny_tokenizer()), options)
        assert attention_of(model) == before
        assert model.training
    model.model.layers[0].register_forward_hook(lambda module, *_: called.append(module))
    model(torch.zeros(1, 1, dtype=torch.int64))
    assert called == [model.model.layers[0]]


def test_kv_fingerprints_differ_for_weights_dtype_and_kv_dtype(llama: HfBackend) -> None:
    again = load(tiny_folder("llama"), LoadOptions())
    assert again.info.kv_fingerprint == llama.info.kv_fingerprint
    other = [
        load(tiny_folder("llama_wide"), LoadOptions()),
        load(tiny_folder("llama"), LoadOptions(dtype="bfloat16")),
        load(tiny_folder("llama"), LoadOptions(kv_dtype="f16")),
    ]
    assert len({b.info.kv_fingerprint for b in (llama, *other)}) == 4
    assert llama.info.model_fingerprint != llama.info.kv_fingerprint


def test_cached_kv_in_16_bits_halves_the_bytes_with_a_small_error(llama: HfBackend) -> None:
    ids, tail = random_ids(7, 30), random_ids(8, 3)
    backend = load(tiny_folder("llama"), LoadOptions(kv_dtype="bf16"))
    assert backend.info.kv_bytes_per_token * 2 == llama.info.kv_bytes_per_token
    pack = backend.open_pack()
    slots, _ = append(backend, pack, ids)
    payload = backend.take(pack, slots)
    assert backend.payload_bytes(payload) == 30 * backend.info.kv_bytes_per_token
    fresh = backend.open_pack()
    held = backend.load(fresh, backend.restore(backend.export(payload)), ROOT)
    _, got = append(backend, fresh, tail, int(held[-1]))
    gap = np.abs(got - expected("llama", [*ids.tolist(), *tail.tolist()])[30:]).max()
    assert 1e-6 < gap < 0.2


def test_bfloat16_computes_and_exports() -> None:
    backend = load(tiny_folder("llama"), LoadOptions(dtype="bfloat16"))
    assert backend.info.dtype == "bfloat16"
    pack = backend.open_pack()
    slots, _ = append(backend, pack, random_ids(9, 8))
    plain = backend.export(backend.take(pack, slots))
    assert plain["keys.0"].dtype == np.uint16
    assert backend.restore(plain).keys[0].dtype == torch.bfloat16


def test_malformed_arrays_are_not_restored(llama: HfBackend) -> None:
    pack = llama.open_pack()
    slots, _ = append(llama, pack, random_ids(10, 4))
    plain = llama.export(llama.take(pack, slots))
    for damaged in ({"kv": plain["n"]}, {**plain, "n": np.array(5)}, {**plain, "keys.0": plain["keys.0"].astype(np.float64)}):
        with pytest.raises(SnapshotFormatError):
            llama.restore(damaged)


def test_context_length_can_be_shortened_not_stretched(llama: HfBackend) -> None:
    assert llama.info.context_length == 4096
    assert load(tiny_folder("llama"), LoadOptions(context_length=32)).info.context_length == 32
    with pytest.raises(InvalidRequestError, match=r"5,000.*4,096"):
        load(tiny_folder("llama"), LoadOptions(context_length=5000))


@pytest.mark.parametrize(("device", "said"), [("cuda:99", "not on this machine"), ("warp", "not one torch knows")])
def test_an_unavailable_device_is_refused(device: str, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        load(tiny_folder("llama"), LoadOptions(device=device))


def test_the_thread_count_is_passed_to_torch() -> None:
    before = torch.get_num_threads()
    try:
        load(tiny_folder("llama"), LoadOptions(threads=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    from dataclasses import replace

    folder = tiny_folder("llama")
    shutil.copytree(folder.path, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="tiny-llama"):
        load(replace(folder, path=tmp_path / "m"), LoadOptions())


def test_out_of_memory_is_a_memory_budget_error_and_leaves_the_pack_usable(llama: HfBackend) -> None:
    # given a forward that runs out of memory in the second layer
    pack, ids = llama.open_pack(), random_ids(11, 10)
    append(llama, pack, ids)

    def starve(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    handle = llama.model.model.layers[1].register_forward_pre_hook(starve)
    with pytest.raises(MemoryBudgetError, match="out of memory"):
        append(llama, pack, ids[:3], 9)
    handle.remove()
    # then the pack is as before and the retry is right
    assert llama.size(pack) == 10
    _, got = append(llama, pack, ids[:3], 9)
    np.testing.assert_allclose(got, expected("llama", [*ids.tolist(), *ids[:3].tolist()])[10:], atol=TOLERANCE)


def test_an_out_of_memory_error_does_not_keep_activations_alive(llama: HfBackend) -> None:
    # given a forward that runs out of memory while it holds activations
    made: list[weakref.ref[torch.Tensor]] = []

    def starve(*_: Any) -> None:
        activation = torch.empty(1000)
        made.append(weakref.ref(activation))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    handle = llama.model.model.layers[1].register_forward_pre_hook(starve)
    with pytest.raises(MemoryBudgetError) as caught:
        append(llama, llama.open_pack(), random_ids(11, 10))
    handle.remove()
    # then the caught error keeps none of them alive
    gc.collect()
    assert made[0]() is None
    assert "out of memory" in str(caught.value)


@pytest.mark.gpu
def test_the_accelerator_gives_the_same_numbers() -> None:
    if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        pytest.skip("torch finds no CUDA or MPS device")
    backend = load(tiny_folder("llama"), LoadOptions(dtype="float32"))
    assert backend.info.device != "cpu"
    # the KV budget is a share of the device's own memory: an allocation there reduces the free bytes
    free, taken = backend.free_bytes(), torch.empty(256 << 20, dtype=torch.uint8, device=backend.info.device)
    assert 0 < backend.free_bytes() <= free - taken.nbytes // 2
    del taken
    pack, ids = backend.open_pack(), random_ids(12, 40)
    slots, got = append(backend, pack, ids)
    np.testing.assert_allclose(got, expected("llama", ids.tolist()), atol=1e-3)
    fresh = backend.open_pack()
    held = backend.load(fresh, backend.restore(backend.export(backend.take(pack, slots))), ROOT)
    _, logits = backend.forward(fresh, np.array([3, 4]), np.array([int(held[-1]), int(held[20])]), np.arange(2))
    np.testing.assert_allclose(log_softmax(logits[0]), expected("llama", [*ids.tolist(), 3])[-1], atol=1e-3)
    np.testing.assert_allclose(log_softmax(logits[1]), expected("llama", [*ids[:21].tolist(), 4])[-1], atol=1e-3)
