"""Each configuration key that changes the numbers of transformers is honoured by both engines or refused by name."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import ModelLoadError, load
from runtime.records import Float32
from tests.runtime.backends.reference import log_softmax
from tests.tiny_models import tiny_path

TOLERANCE = 2e-3  # nats: changed values make other models, whose numbers may be larger
REACTS = 1e-3  # nats from which on a key counts as changing the numbers
IDS = [int(i) for i in np.random.default_rng(3).integers(3, 990, 60)]  # longer than any window
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gpt2", "gemma2", "gemma3", "mamba", "lfm2", "falcon_h1")
ABSENT = object()
ROPES = tuple(
    {**rope, "factor": 2.0}
    for rope in (
        {"rope_type": "linear"},
        {"rope_type": "yarn", "original_max_position_embeddings": 32},
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    )
)
OTHER: dict[str, Callable[[dict[str, Any]], tuple[Any, ...]]] = {  # other sensible values of a key
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function"), lambda _: ("gelu", "relu", "silu", "gelu_new")),
    "sliding_window": lambda _: (8, None),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), lambda _: (2.0, None)),
    "layer_types": lambda config: tuple(
        [*["full_attention"] * full, *["sliding_attention"] * (config.get("num_hidden_layers", 3) - full)]
        for full in (0, 1, config.get("num_hidden_layers", 3))
    ),
    "head_dim": lambda _: (8, 32),
    "n_inner": lambda _: (128,),
    "time_step_limit": lambda _: ([0.0, 0.05],),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "norm_eps"), lambda _: (1e-2,)),
    "rope_theta": lambda _: (500.0,),
    "rope_local_base_freq": lambda _: (300.0,),
    "partial_rotary_factor": lambda _: (0.5,),
    "rope_scaling": lambda _: ROPES,
    "mlp_multipliers": lambda _: ([1.5, 0.5],),
    "ssm_multipliers": lambda _: ([1.5, 0.5, 1.0, 2.0, 0.7],),
    "rope_parameters": lambda config: (
        () if "full_attention" in config["rope_parameters"] else tuple({**config["rope_parameters"], **rope} for rope in ROPES)
    ),
}
BESIDE = ("rope_scaling", "rope_theta", "partial_rotary_factor", "sliding_window", "layer_types", "final_logit_softcapping")
NO_NUMBERS = ("model_type", "architectures", "transformers_version", "dtype", "vocab_size", "hidden_size")
Case = tuple[tuple[str, ...], Any]


def values(name: str, value: Any, config: dict[str, Any]) -> Iterator[Any]:
    if name in OTHER:
        yield from OTHER[name](config)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield max(1, value // 2) if value > 1 else 2
    elif isinstance(value, float):
        yield value * 2 + 0.1


def cases(config: dict[str, Any]) -> Iterator[Case]:
    """Each key with other values, each key left out, and some keys added."""
    for name in sorted({*config, *BESIDE} - set(NO_NUMBERS)):
        for value in values(name, config.get(name), config):
            if value != config.get(name):
                yield (name,), value
        if name in config:
            yield (name,), ABSENT
    for name, inner in (config.get("rope_parameters") or {}).items():
        if name == "rope_theta":
            yield ("rope_parameters", name), 500.0
        elif isinstance(inner, dict):
            yield ("rope_parameters", name, "rope_theta"), 500.0


def plain(folder: Path) -> Float32 | None:
    """Log-probabilities of transformers itself after the last token; None where it fails to load or initialises weights."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        with torch.no_grad():
            logits = model.eval()(torch.tensor([IDS]), use_cache=False).logits[0, -1].numpy()
    except Exception:  # noqa: BLE001  # the library may raise anything for a key, which ours then have to refuse
        return None
    drawn = found["missing_keys"] or found["mismatched_keys"]
    return None if drawn else log_softmax(logits)


def ours(folder: Path, engine: str) -> Float32 | str:
    """Log-probabilities of an engine after the last token, or its reason to refuse the folder."""
    try:
        with load(folder, engine, threads=1) as model:
            return model.next_token_logprobs_sync(IDS)
    except ModelLoadError as refused:
        return str(refused)


def faults(name: str, folder: Path, wanted: Callable[[Case], bool] = lambda case: True) -> list[str]:
    """All cases in which an engine differs from transformers, or refuses without naming the key."""
    folder = Path(shutil.copytree(tiny_path(name), folder / name))
    config = json.loads((folder / "config.json").read_text())
    before, found = plain(folder), list[str]()
    assert before is not None
    for site, value in filter(wanted, cases(config)):
        changed: dict[str, Any] = copy.deepcopy(config)
        place = changed
        for key in site[:-1]:
            place = place[key]
        if value is ABSENT:
            del place[site[-1]]
        else:
            place[site[-1]] = value
        (folder / "config.json").write_text(json.dumps(changed))
        theirs = plain(folder)
        for engine in ("hf", "mlx"):
            case = f"{name} on {engine}, {'.'.join(site)}: {'nothing' if value is ABSENT else json.dumps(value)}"
            answer = ours(folder, engine)
            if isinstance(answer, str):
                if "config.json" not in answer or site[0] not in answer:
                    found.append(f"{case}: refused without its name: {answer}")
            elif theirs is None:
                if engine == "hf" or np.abs(answer - before).max() > REACTS:
                    found.append(f"{case}: loads, which transformers does not")
            elif (gap := float(np.abs(answer - theirs).max())) > TOLERANCE:
                found.append(f"{case}: {gap:.2g} nats off")
    return found


WRONG_BEFORE = {  # per architecture, a few keys that were once wrong on one engine
    "llama": ("hidden_act", "num_hidden_layers", "rope_theta", "tie_word_embeddings"),
    "qwen3": ("layer_types",),
    "mistral": ("layer_types",),
    "gemma3": ("final_logit_softcapping", "rope_scaling"),
    "mamba": ("layer_norm_epsilon",),
    "falcon_h1": ("key_multiplier", "attention_in_multiplier"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRONG_BEFORE)
def test_formerly_ignored_keys_are_honoured_or_refused_by_name(name: str, shelf: Path, tmp_path: Path) -> None:
    assert faults(name, tmp_path, lambda case: case[0][0] in WRONG_BEFORE[name] and case[1] is not ABSENT) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_key_is_honoured_or_refused_by_name(name: str, shelf: Path, tmp_path: Path) -> None:
    assert faults(name, tmp_path) == []


@pytest.fixture(autouse=True)
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the self-test, which would refuse wrong numbers without naming the key: the numbers are compared here."""
    for engine in ("hf", "mlx"):
        monkeypatch.setattr(f"runtime.backends.{engine}.backend.prove", lambda backend, copies: ())


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    return folder
