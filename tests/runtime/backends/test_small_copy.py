"""The checks at load: a small random copy of the architecture in float32, and that the weights are finite."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from runtime import ModelLoadError, load
from runtime.backends import selftest
from runtime.backends.hf.backend import HfBackend
from runtime.backends.mlx.backend import MlxBackend
from runtime.backends.small import VOCABULARY, small_copies
from tests.fakes import engine_of, settled
from tests.tiny_models import build, tiny_path
from tests.tools import architectures

BACKENDS: dict[str, Any] = {"hf": HfBackend, "mlx": MlxBackend}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_is_not_refused_for_rounding_to_16_bits(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a processor whose sums in bfloat16 differ widely with and without a cache
    cls = BACKENDS[backend]
    sound = cls.forward

    def rounded(self: Any, *args: Any) -> Any:
        slots, logits = sound(self, *args)
        return slots, logits + np.linspace(0, 5, logits.shape[-1], dtype=np.float32) * (self.info.dtype == "bfloat16")

    monkeypatch.setattr(cls, "forward", rounded)
    # when a model is loaded in bfloat16, then it loads with the same capabilities as in float32
    with load(tiny_path("llama"), backend, dtype="bfloat16") as model:
        assert model.info.dtype == "bfloat16"
        assert model.info.capabilities == ("tree",)
        assert not any("nats" in warning for warning in model.info.warnings)


@pytest.fixture(autouse=True)
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts with no copies tested in this process, and forgets the results afterwards."""
    monkeypatch.setattr(selftest, "proofs", {})


@pytest.fixture
def remembered(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of measurements, with the loads of small models recorded too."""
    monkeypatch.setattr(selftest, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(selftest, "WORTH_PARAMETERS", 0)
    return shelf / ".measured"


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The model name and the product of layers and tokens of each later forward."""
    found: list[tuple[str, int]] = []

    def note(backend: Any, tokens: int) -> None:
        found.append((backend.info.name if backend.info.vocab_size > VOCABULARY else "copy", backend.info.layers * tokens))

    for cls in BACKENDS.values():
        count, uncached = cls.count, cls.logits_uncached

        def counted(self: Any, tokens: int, count: Any = count) -> None:
            note(self, tokens)
            count(self, tokens)

        def plain(self: Any, ids: Any, *rest: Any, uncached: Any = uncached) -> Any:
            note(self, len(ids))
            return uncached(self, ids, *rest)

        monkeypatch.setattr(cls, "count", counted)
        monkeypatch.setattr(cls, "logits_uncached", plain)
    return found


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_tensor_name(backend: str, value: float, tmp_path: Path) -> None:
    # given a model that was loaded before, and a value in its last layer that is no longer finite
    folder = tmp_path / "broken"
    shutil.copytree(tiny_path("llama_deep"), folder)
    load(folder, backend).close()
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.29.mlp.down_proj.weight"][3, 5] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # then every load is refused
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=r"weights of broken hold .* not finite \(tensor .*layers\.29\.mlp"):
            load(folder, backend)


WAYS: list[tuple[str, dict[str, Any]]] = [
    ("hf", {}),
    ("hf", {"kv_dtype": "q8"}),
    ("hf", {"offload": "disk", "offload_memory_bytes": 1}),
    ("mlx", {}),
    ("mlx", {"kv_dtype": "q8"}),
]


@pytest.mark.slow
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(("backend", "options"), WAYS, ids=lambda value: value if isinstance(value, str) else "+".join(value))
def test_a_later_load_computes_the_same_for_a_deep_model(
    backend: str, options: dict[str, Any], pushed: list[tuple[str, int]], tmp_path: Path
) -> None:
    # given models of 4 and of 24 layers
    taken = {}
    for layers in (4, 24):
        folder = _llama(layers, tmp_path / str(layers))
        load(folder, backend, **options).close()
        first = sum(n for name, n in pushed if name != "copy")
        if not options:
            assert first == layers  # one token, which detects weights that are not finite
        pushed.clear()
        selftest.proofs.clear()
        # when they are loaded again, as by another process
        stages: list[str] = []
        load(folder, backend, on_progress=lambda p, stages=stages: stages.append(p.stage), **options).close()  # type: ignore[misc]  # mypy cannot infer it
        taken[layers] = list(pushed)
        pushed.clear()
        assert stages[-1] == "checking"
    # then both compute the same: only a small copy
    assert taken[4] == taken[24] != []
    assert {name for name, _ in taken[4]} == {"copy"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_small_copy_is_tested_once_per_process(backend: str, pushed: list[tuple[str, int]]) -> None:
    ways = []
    for _ in range(2):
        pushed.clear()
        with load(tiny_path("llama"), backend) as model:
            ways.append((model.info.capabilities, model.info.warnings))
    assert "copy" not in {name for name, _ in pushed}
    assert ways[0] == ways[1]


def _llama(layers: int, folder: Path) -> Path:
    config = AutoConfig.for_model(
        "llama", vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    return build(config, folder)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2", "mamba"])
def test_a_model_loaded_before_is_the_same_without_the_first_forward(
    backend: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, checked, check = [5, 6, 7, 8], 0, selftest.check_finite

    def counted(loaded: Any) -> float:
        nonlocal checked
        checked += 1
        return check(loaded)

    monkeypatch.setattr(selftest, "check_finite", counted)
    found = []
    for _ in range(2):
        with load(tiny_path(name), backend) as model:
            held = engine_of(model).backend
            sizes = held.slot_bytes, held.state_bytes, held.state_shapes
            found.append((model.info, sizes, model.next_token_logprobs_sync(text), settled(model)[1].bytes))
    # then the info and the answers are the same
    (*first, row, kept), (*second, again, kept_again) = found
    assert checked == 1
    assert (second, kept_again) == (first, kept)
    np.testing.assert_array_equal(again, row)
    # and the record does not apply to another dtype
    with load(tiny_path(name), backend, dtype="bfloat16") as model:
        assert np.isfinite(model.next_token_logprobs_sync(text)).all()
    assert checked == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "change",
    [{"seconds": -1.0}, {"shapes": [[0, 1, 1]]}, {"shapes": [[1, 2]]}, {"state_bytes": -1}, {"shapes": None}, {"seconds": "x"}],
    ids=str,
)
def test_an_invalid_record_is_measured_again(change: dict[str, Any], remembered: Path) -> None:
    load(tiny_path("llama"), "hf").close()
    [file] = remembered.iterdir()
    sound = json.loads(file.read_text())
    [key] = [key for key in sound if key.startswith("first forward")]
    file.write_text(json.dumps({**sound, key: {**sound[key], **change}}))
    with load(tiny_path("llama"), "hf") as model:
        assert np.isfinite(model.next_token_logprobs_sync([1, 2])).all()
    measured = json.loads(file.read_text())[key]
    assert measured["shapes"] == sound[key]["shapes"]
    assert measured["seconds"] > 0


def test_a_library_that_fails_with_tree_masks_is_pushed_without_them(tmp_path: Path) -> None:
    # given an architecture whose attention adds its own mask to ours and fails
    config = AutoConfig.for_model(
        "gpt_neo", vocab_size=1000, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64, window_size=16, bos_token_id=0, eos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    folder = build(config, tmp_path / "neo")
    with load(folder, "hf") as model:
        # then it loads with a warning, and two branches of one prefix are right
        assert any("as a tree they failed" in warning for warning in model.info.warnings)
        plain = AutoModelForCausalLM.from_pretrained(folder).eval()
        texts = [[5, 6, 7, *range(40, 40 + n)] for n in (3, 20)]
        got = model.batch_next_token_logprobs_sync(texts)
        for row, text in zip(got, texts, strict=True):
            with torch.inference_mode():
                expected = plain(input_ids=torch.tensor([text])).logits[0, -1].log_softmax(-1)
            np.testing.assert_allclose(row, expected.numpy(), atol=1e-4, rtol=0)


WIDTHS = re.compile(
    r".*(dim|rank|heads?|d_state|state_size|hidden_size\w*|vocab_size|channels|groups|dff)|dim_model_base|block_multiple_of"
    r"|query_pre_attn_scalar|zero_expert_num|max_window_layers|moe_layer_end_index|eos_token_id"
)


@pytest.mark.slow
def test_config_values_kept_in_a_small_copy_are_known_widths_not_lengths() -> None:
    """Lengths that a copy does not shorten are never tested; this finds a library's new names for lengths."""
    said, left = architectures.written(), set()
    for kind in (kind for kind in architectures.architectures() if not said[kind].startswith(("refused", "not tried"))):
        config = AutoConfig.for_model(kind, **architectures.HYBRID.get(kind, {})).get_text_config(decoder=True).to_dict()
        for small in itertools.islice(small_copies(config, 131_072), 1):
            for pair in ((config, small.config), [each.get("rope_parameters") or {} for each in (config, small.config)]):
                before, after = pair
                left |= {key for key, old in before.items() if type(old) is int and 16 <= old == after[key]}
    assert [key for key in sorted(left) if not WIDTHS.fullmatch(key)] == []
    assert left >= {"kv_lora_rank", "mamba_d_state"}
