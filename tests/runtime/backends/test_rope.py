"""Every rope type on every engine equals transformers' plain forward for any order of calls, or is refused."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runtime import InvalidRequestError, ModelLoadError, UnsupportedFeatureError, load
from runtime.backends.base import ROOT
from runtime.backends.mlx.corrections import PROVEN
from runtime.backends.registry import resolve_backend
from runtime.loading import rope
from runtime.options.load import LoadOptions
from runtime.shelf.source import resolve
from tests.runtime.backends.reference import TOLERANCE, append, chain, log_softmax, random_ids
from tests.tiny_models import VOCABULARY, build
from tests.tools import architectures

BORDER = 48  # tokens
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 192,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": BORDER},
    "longrope": {"short_factor": [1.0, 1.1] * 4, "long_factor": [2.0, 6.0] * 4, "original_max_position_embeddings": BORDER},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": BORDER,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}
MORE: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 20},
    "phi3": {"sliding_window": 20, "original_max_position_embeddings": BORDER},
    "gemma2": {"tie_word_embeddings": True, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 20},
    "gemma3_text": {
        "tie_word_embeddings": True,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 20,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window_pattern": 2,
    },
    "lfm2": {
        "tie_word_embeddings": True,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention"] * 2,
        "block_auto_adjust_ff_dim": False,
    },
    "falcon_h1": {
        "head_dim": 16,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
    },
}
WAYS = [("hf", "llama", kind) for kind in rope.HF]
WAYS += [("hf", "phi3", "longrope"), ("hf", "gemma3_text", "linear"), ("hf", "qwen3", "longrope")]
WAYS += [("mlx", model, kind) for model, proven in rope.MLX.items() for kind in proven]
FAST = ("llama", "gemma3_text")  # with mlx, where all architectures share one implementation of ropes
PER_LAYER = ("gemma3_text",)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes the folder of a model with a rope type, cached."""
    place = tmp_path_factory.mktemp("ropes")

    @functools.cache
    def made(model: str, kind: str, **more: Any) -> Path:
        name = "-".join([model, kind, *(f"{key}-{value}" for key, value in more.items())])
        return build(configured(model, kind, **more), place / name)

    return made


def configured(model: str, kind: str, **more: Any) -> Any:
    full: dict[str, Any] = {"rope_type": kind, "rope_theta": 10_000.0, **ROPES[kind], **more}
    if model in PER_LAYER:
        full = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    return AutoConfig.for_model(model, **{**SIZES, **MORE.get(model, {})}, rope_parameters=full)


class Plain:
    """transformers' own forward of one text, without a cache."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, ids: Any) -> Any:
        with torch.inference_mode():
            return log_softmax(self._model(input_ids=torch.tensor([list(map(int, ids))]), use_cache=False).logits[0].numpy())


def test_every_rope_type_of_transformers_is_listed() -> None:
    assert set(rope.HF) == {"default", *ROPE_INIT_FUNCTIONS}
    assert all(set(proven) <= set(rope.HF) for proven in rope.MLX.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("backend", "model", "kind"),
    [
        pytest.param(*way, id="-".join(way), marks=pytest.mark.slow if way[0] == "mlx" and way[1] not in FAST else ())
        for way in WAYS
    ],
)
def test_a_rope_type_equals_transformers(backend: str, model: str, kind: str, folders: Any) -> None:
    check_equal(backend, folders(model, kind), kind)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize(
    ("kind", "more"),
    [("longrope", {"factor": 2.0}), ("yarn", {"mscale": 0.7, "mscale_all_dim": 0.9}), ("yarn", {"beta_fast": 16})],
)
def test_rarer_settings_of_rope_types_equal_transformers(backend: str, kind: str, more: Any, folders: Any) -> None:
    check_equal(backend, folders("llama", kind, **more), kind)


def check_equal(backend: str, folder: Path, kind: str) -> None:
    # given a model whose context ends at the border of its rope type, if it has one
    made = resolve_backend(backend)(resolve(folder, backend=backend), LoadOptions())
    context = made.info.context_length
    assert context == (BORDER if kind == "longrope" else SIZES["max_position_embeddings"])
    plain = Plain(folder)
    text, other = random_ids(5, context), random_ids(6, 11)
    # when a text as long as the context is pushed in chunks
    pack = made.open_pack()
    got, slots = [], np.empty(0, np.int64)
    for start in range(0, context, 17):
        part, rows = append(made, pack, text[start : start + 17], int(slots[-1]) if len(slots) else ROOT)
        slots = np.concatenate([slots, part])
        got.append(rows)
    # then every row equals that of one forward, and that of a forward of the shorter text alone
    np.testing.assert_allclose(np.concatenate(got), plain(text), atol=TOLERANCE, rtol=0)
    for n in {BORDER - 1, BORDER, context // 2}:
        np.testing.assert_allclose(np.concatenate(got)[n - 1], plain(text[:n])[-1], atol=TOLERANCE, rtol=0)
    # and when a part of it is restored and continued beside a short text
    fresh = made.open_pack()
    cut = context - 5
    payload = made.take(pack, slots[:cut]) if not getattr(made, "recurrent", False) else None
    if payload is None:
        append(made, fresh, text[:cut])
    else:
        made.load(fresh, made.restore(made.export(payload)), ROOT)
    tokens, parents = np.concatenate([text[cut:], other]), np.concatenate([chain(cut, 5, cut - 1), chain(cut + 5, 11, ROOT)])
    _, logits = made.forward(fresh, tokens, parents, np.array([4, 15]))
    np.testing.assert_allclose(log_softmax(logits), [plain(text)[-1], plain(other)[-1]], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_the_context_ends_where_the_rope_frequencies_change(backend: str, kind: str, folders: Any) -> None:
    folder = folders("llama", kind)
    edge = BORDER if kind == "longrope" else 192
    with load(folder, backend) as model:
        assert (model.info.context_length, model.info.whole_context) == (edge, edge)
        assert any("'longrope'" in warning for warning in model.info.warnings) == (kind == "longrope")
    said = rf"rope type '{kind}' .*{edge} tokens at most" if (backend, kind) != ("mlx", "dynamic") else "192 positions"
    with pytest.raises(InvalidRequestError, match=said):
        load(folder, backend, context_length=edge + 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["llama", "phi3", "qwen3", "gemma3_text"])
def test_the_self_test_refuses_a_context_beyond_an_unknown_border(
    model: str, folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a loader that does not know the border
    monkeypatch.setattr("runtime.backends.facts.length_limit", lambda config: None)
    folder = folders(model, "longrope")
    # when it offers the whole context, then the texts of the small copy on both sides of the border disagree
    with pytest.raises(ModelLoadError, match=r"with and without a cache .* small copy .* not supported"):
        load(folder, "hf")
    # and below the border the model loads
    load(folder, "hf", context_length=BORDER).close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("model", ["llama", "phi3", "qwen3"])
def test_longrope_is_refused_where_no_rope_type_is_known_to_have_a_border(
    backend: str, model: str, folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a loader that treats longrope as a type without a border
    monkeypatch.setattr(rope, "LENGTH_LIMITS", {})
    # then hf is refused for its numbers, and mlx, whose numbers are consistent, for a frequency table that it ignores
    said = {"hf": "with and without a cache", "mlx": r"mlx-lm does not follow the one that begins with 1, 1\.1, 1, 1\.1"}
    with pytest.raises(ModelLoadError, match=said[backend]):
        load(folders(model, "longrope"), backend)
    # and below the border transformers uses one table only, which mlx-lm does not support
    if backend == "hf":
        load(folders(model, "longrope"), backend, context_length=BORDER).close()
    else:
        with pytest.raises(ModelLoadError, match=said[backend]):
            load(folders(model, "longrope"), backend, context_length=BORDER)


@pytest.mark.parametrize(
    ("model", "kind", "more"),
    [
        ("gemma2", "yarn", {}),
        ("lfm2", "linear", {}),
        ("llama", "proportional", {}),
        ("llama", "yarn", {"attention_factor": 1.5}),
        ("llama", "yarn", {"mscale": 0.7}),
        ("llama", "yarn", {"truncate": False}),
        ("llama", "longrope", {"attention_factor": 1.5}),
        ("llama", "default", {"partial_rotary_factor": 0.5}),
    ],
)
def test_rope_settings_that_are_unproven_on_mlx_are_refused(model: str, kind: str, more: Any, folders: Any) -> None:
    said = f"{next(iter(more))} .*of " if more else f"rope type '{kind}' of {model}"
    with pytest.raises(ModelLoadError, match=said):
        load(folders(model, kind, **more), "mlx")


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_an_unknown_rope_type_is_refused(backend: str, folders: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(folders("llama", "default"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    older = {"rope_parameters": None, "rope_scaling": {"type": "spiral"}}
    for spelling in ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, older):
        (folder / "config.json").write_text(json.dumps({**config, **spelling}))
        with pytest.raises(ModelLoadError, match="rope type 'spiral' is not one that transformers has"):
            load(folder, backend)


def test_a_ready_mlx_model_whose_frequencies_differ_from_transformers_is_refused(folders: Any) -> None:
    from mlx_lm.utils import load as load_mlx

    for kind in ("longrope", "yarn"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_HUB_OFFLINE", "1")
            config = {"rope_theta": 10_000.0, "rope_scaling": {**ROPES[kind], "type": kind, "rope_type": kind}}
            pair = load_mlx(str(folders("llama", kind)), model_config=config)
        if kind == "yarn":
            resolve_backend("mlx")(pair, LoadOptions()).unload()
            continue
        with pytest.raises(ModelLoadError, match="rope type 'longrope' of a ready mlx-lm model"):
            resolve_backend("mlx")(pair, LoadOptions())


def test_the_rope_table_of_the_documentation_matches_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "architectures.md").read_text("utf-8")
    _, _, table = page.partition("| rope type | hf | mlx | border |\n|---|---|---|---|\n")
    lines = []
    for kind in rope.HF:
        able = sorted(model for model, proven in rope.MLX.items() if kind in proven)
        mlx = f"proven: {'every architecture' if kind == 'default' else ', '.join(able)}" if able else "refused"
        border = f"`{rope.LENGTH_LIMITS[kind]}` " if kind in rope.LENGTH_LIMITS else ""
        lines.append(f"| `{kind}` | proven | {mlx} | {border}|\n")
    assert table.startswith("".join(lines))


FIELDS: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layers": [1, 0], "num_hidden_layers": 2},
    "ministral3": {
        "head_dim": 16,
        "sliding_window": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": BORDER,
            "llama_4_scaling_beta": 0.5,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "cohere2": {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("model", FIELDS)
def test_other_config_fields_equal_transformers(model: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(model, **{**SIZES, **FIELDS[model]})
    check_equal("hf", build(config, tmp_path / model), "default")


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_chunked_attention_is_refused_by_name(backend: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "llama4_text", **SIZES, head_dim=16, intermediate_size_mlp=64, num_local_experts=2, attention_chunk_size=16
    )
    folder = build(config, tmp_path / "chunked")
    with pytest.raises((ModelLoadError, UnsupportedFeatureError), match=r"[Cc]hunked"):
        load(folder, backend)


@pytest.mark.slow
def test_the_documentation_lists_every_architecture_with_its_self_test_result() -> None:
    said = architectures.written()
    assert sorted(said) == architectures.architectures()
    some = ("llama", "gpt_neo", "bloom", "llama4_text", "roberta", "bamba")
    assert architectures.rows(some) == {kind: said[kind] for kind in some}
    page = " ".join(architectures.DOCUMENT.read_text("utf-8").split())
    compared = page.partition("beyond it, ")[2].partition(" were compared")[0]
    assert set(compared.replace(" and ", ", ").split(", ")) == PROVEN
