"""Cached KV in 8 or 4 bits: the error of the answers, and that it is split, stored and loaded exactly as encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from runtime import load
from runtime.backends.base import ROOT
from runtime.backends.registry import resolve_backend
from runtime.backends.selftest import kv_gaps
from runtime.errors import SnapshotFormatError, UnsupportedFeatureError
from runtime.options.load import KvDtype, LoadOptions
from tests.fakes import engine_of, settled
from tests.runtime.backends.reference import RECURRENT, append, random_ids
from tests.tiny_models import tiny_folder, tiny_path

NAMES = ("llama", "gemma3", "lfm2", "falcon_h1")
MOST = {"q8": (0.3, 0.03), "q4": (4.0, 0.5)}  # nats: the largest and the mean gap allowed, as docs/tolerances.md prints them
GAP_TEXTS = 3


CASES = [(backend, name, kv_dtype) for backend in ("hf", "mlx") for name in NAMES for kv_dtype in MOST]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Any, KvDtype]]:
    backend, name, kv_dtype = request.param
    made = resolve_backend(backend)(tiny_folder(name), LoadOptions(kv_dtype=kv_dtype))
    yield made, kv_dtype
    made.unload()


def gaps(backend: Any) -> Any:
    """``(texts, rows, 20)`` differences from KV in float32."""
    texts = [random_ids(seed, 160) for seed in range(GAP_TEXTS)]
    return np.stack([kv_gaps(backend, text[:120], text[120:]) for text in texts])


@pytest.mark.sampled(1)
def test_the_error_of_answers_stays_within_the_documented_tolerance(
    case: tuple[Any, KvDtype], tell: Callable[[str], None]
) -> None:
    backend, kv_dtype = case
    found = gaps(backend)
    largest, mean = MOST[kv_dtype]
    tell(f"{backend.info.backend} {backend.info.architecture} {kv_dtype}: {found.max():.4f} {found.mean():.5f}")
    assert 0 < found.max() <= largest
    assert found.mean() <= mean


@pytest.mark.slow
def test_info_names_the_error_and_the_bytes_of_quantised_kv(case: tuple[Any, KvDtype]) -> None:
    backend, kv_dtype = case
    info = backend.info
    assert info.options["kv_dtype"] == kv_dtype
    assert any(f"in {kv_dtype[1:]} bits" in warning and "nats at most" in warning for warning in info.warnings)
    plain = resolve_backend(info.backend)(tiny_folder(_name(info)), LoadOptions())
    assert info.kv_bytes_per_token < plain.info.kv_bytes_per_token == backend.slot_bytes
    assert info.kv_fingerprint != plain.info.kv_fingerprint
    plain.unload()


def test_splitting_a_payload_changes_no_bit(case: tuple[Any, KvDtype]) -> None:
    # given a payload, when it is split at any place, then the parts hold the bytes of the whole
    backend, _ = case
    pack = backend.open_pack()
    slots, _ = append(backend, pack, random_ids(1, 9))
    whole = backend.export(backend.take(pack, slots))
    for at in range(1, 9):
        parts = [backend.export(part) for part in backend.split(backend.take(pack, slots), at)]
        for name in (n for n in whole if n.startswith(("keys.", "values."))):
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts], axis=2), whole[name])
    backend.close(pack)


@pytest.mark.slow
def test_an_exported_quantised_payload_is_restored_exactly(case: tuple[Any, KvDtype]) -> None:
    backend, _ = case
    pack = backend.open_pack()
    slots, _ = append(backend, pack, random_ids(2, 12))
    payload = backend.take(pack, slots)
    plain = backend.export(payload)
    back = backend.restore(plain)
    assert backend.payload_bytes(back) == backend.payload_bytes(payload)
    again = backend.export(back)
    for name, array in plain.items():
        np.testing.assert_array_equal(again[name], array)
    rows = []
    for each in (payload, back):
        fresh = backend.open_pack()
        held = backend.load(fresh, each, ROOT)
        rows.append(append(backend, fresh, [5], int(held[-1]))[1])
        backend.close(fresh)
    np.testing.assert_array_equal(rows[0], rows[1])
    # and KV of another form is refused
    with pytest.raises(SnapshotFormatError):
        backend.restore({**plain, "keys.0": plain["keys.0"].astype(np.float32)})
    with pytest.raises(SnapshotFormatError):
        backend.restore({name: array for name, array in plain.items() if name not in ("keys.2", "values.2")})
    backend.close(pack)


@pytest.mark.parametrize("case", [c for c in CASES if c[1] in RECURRENT], ids="-".join, indirect=True, scope="module")
def test_recurrent_state_is_kept_exactly(case: tuple[Any, KvDtype]) -> None:
    backend, _ = case
    pack = backend.open_pack()
    slots, _ = append(backend, pack, random_ids(3, 12))
    state = pack.states[int(slots[-1])]
    plain = backend.export(backend.take(pack, slots))
    for i, part in enumerate(state):
        if part is not None:
            np.testing.assert_array_equal(plain[f"state.{i}"].ravel(), np.array(part.tolist(), np.float32).ravel())
    backend.close(pack)


def test_constant_rows_and_single_spikes_are_encoded_closely() -> None:
    # given groups without any spread, and one with a single spike
    import mlx.core as mx
    import torch

    from runtime.backends.hf import payload as hf
    from runtime.backends.mlx import payload as mlx

    rows = np.zeros((1, 3, 32), np.float32)
    rows[0, 1], rows[0, 2, 7] = 2.5, -9.0
    for bits in (8, 4):
        torch_codec, mlx_codec = hf.Affine(bits), mlx.Affine(bits)
        got = torch_codec.decode(torch_codec.encode(torch.from_numpy(rows)), 32).numpy()
        np.testing.assert_allclose(got, rows, atol=1e-5)
        got = np.array(mlx_codec.decode(mlx_codec.encode(mx.array(rows)), 32))
        np.testing.assert_allclose(got, rows, atol=0.05)


@pytest.mark.parametrize("backend", ["fake", "mock"])
def test_toy_backends_refuse_quantised_kv(backend: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"kv_dtype='q4'"):
        load("anything", backend=backend, kv_dtype="q4")


def test_quantised_kv_for_a_model_without_kv_is_a_warning() -> None:
    backend = resolve_backend("hf")(tiny_folder("mamba"), LoadOptions(kv_dtype="q8"))
    assert any("no meaning" in warning for warning in backend.info.warnings)
    backend.unload()


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_the_trie_holds_quantised_kv_and_answers_from_it(backend: str) -> None:
    ids = [int(i) for i in random_ids(4, 60)]
    with load(tiny_path("llama"), backend=backend, kv_dtype="q8", threads=1 if backend == "hf" else None) as model:
        fresh = model.next_token_logprobs_sync(ids)
        assert settled(model)[1].bytes == 60 * model.info.kv_bytes_per_token
        engine = engine_of(model)
        engine.call(engine.scheduler.cache.workspaces.drop_idle).result()  # makes the next request load the KV
        before = model.metrics().tokens_computed
        cached = model.next_token_logprobs_sync([*ids, 7])
        assert model.metrics().tokens_computed == before + 1
        gap = np.abs(cached - model.next_token_logprobs_uncached([*ids, 7]))
        assert 0 < gap.max() < 0.5
        np.testing.assert_allclose(fresh, model.next_token_logprobs_uncached(ids), atol=1e-4)  # computed before quantisation


def _name(info: Any) -> str:
    found: str = info.architecture
    return found.removesuffix("_text")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("kv_dtype", ["q8", "q4"])
def test_the_error_on_real_weights_stays_within_the_documented_tolerance(
    backend: str, kv_dtype: KvDtype, tell: Callable[[str], None]
) -> None:
    from pydoc_data import topics

    with load("smollm2", backend=backend, kv_dtype=kv_dtype, device="cpu", dtype="float32") as model:
        ids = np.array(model.tokenize(topics.topics["with"]), np.int64)[: 200 if backend == "hf" else 60]
        trunk, tail = np.split(ids, [len(ids) - len(ids) // 4])
        found = engine_of(model).call(lambda: kv_gaps(engine_of(model).backend, trunk, tail)).result()
        tell(f"{backend} smollm2 {kv_dtype}: {found.max():.4f} {found.mean():.5f}")
        assert model.info.kv_bytes_per_token == {"q8": 12_960, "q4": 7_200}[kv_dtype]
    largest, mean = MOST[kv_dtype]
    assert 0 < found.max() <= largest
    assert found.mean() <= mean
