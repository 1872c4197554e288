"""Computes the stored answers of `elsewise doctor --deep` with transformers in float32.

`python -m tests.tools.record_reference`. Needs torch and, for SmolLM2, the model on the shelf.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from app.doctor.reference import FILE, SMOLLM2, Reference, ReferenceAnswer, numbers, write_model
from runtime import list_models, load
from tests.tiny_models import BUILDERS

NAMES = ("llama", "qwen2", "qwen3", "gpt2", "mistral", "phi3", "gemma2", "gemma3", "mamba", "lfm2", "falcon_h1")
LENGTH = 96  # tokens, six times the tiny models' windows
POSITIONS = (20, 60, LENGTH - 1)
TOKENS = 24  # of each answer
DIGITS = 6


def logits(folder: Path, ids: list[int]) -> Any:
    """``(len(ids), vocab)`` natural log-probabilities in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        rows = model(torch.tensor([ids])).logits[0].double()
    return torch.log_softmax(rows, -1).numpy()


def answers_of(rows: Any) -> list[ReferenceAnswer]:
    """The answers to store: the likeliest tokens and some others."""
    found = []
    for position in POSITIONS:
        row = rows[position]
        order = np.argsort(-row)
        ids = sorted({*order[: TOKENS // 2].tolist(), *order[:: len(order) // (TOKENS // 2)][: TOKENS // 2].tolist()})
        found.append(ReferenceAnswer(position, ids, [round(float(row[i]), DIGITS) for i in ids]))
    return found


def kinds_of(config: dict[str, Any]) -> list[str]:
    """The kinds of layers of a model, in words."""
    layers = config.get("num_hidden_layers") or config["n_layer"]
    words = {"sliding_attention": "sliding window", "full_attention": "full attention", "conv": "convolution"}
    if types := config.get("layer_types"):
        return [words[kind] for kind in types]
    by_type = {"mamba": "state space", "falcon_h1": "attention beside a state space"}
    kind = by_type.get(config["model_type"], "sliding window" if config.get("sliding_window") else "full attention")
    return [kind] * layers


def record(name: str) -> Reference:
    """Computes the reference of one tiny model."""
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as room:
        made = Path(room) / "made"
        AutoModelForCausalLM.from_config(BUILDERS[name]()).float().save_pretrained(made)
        config = json.loads((made / "config.json").read_text()) | {"dtype": "float32"}
        config.pop("transformers_version", None)
        with safe_open(made / "model.safetensors", "np") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118  # no mapping
        folder = write_model(Path(room) / "model", config, shapes)
        drawn = numbers("text", [LENGTH]) / 0.35
        text = [3 + int((unit + 1) * 120) for unit in drawn]
        answers = answers_of(logits(folder, text))
        with load(folder, "hf") as model:
            run = model.lens_sync(text, tokens=answers[-1].ids)
            layers = np.round(run.logprobs[0, :, 1:].astype(float), DIGITS).tolist()
    return Reference(name, kinds_of(config), config, shapes, text, answers, layers)


def smollm2() -> Reference:
    """Answers of the default model, whose weights are on the shelf."""
    [entry] = [entry for entry in list_models() if entry.name == SMOLLM2]
    with load(SMOLLM2, "hf") as model:
        text = model.tokenize(Path("LICENSE").read_text()[:2000])[:LENGTH]
        kinds = ["full attention"] * model.info.layers
    return Reference(SMOLLM2, kinds, {}, {}, text, answers_of(logits(entry.path, text)), [])


def main() -> None:
    """Writes the file."""
    FILE.parent.mkdir(exist_ok=True)
    found = [*map(record, NAMES), smollm2()]
    FILE.write_bytes(gzip.compress(msgspec.json.encode(found), 9, mtime=0))
    sys.stdout.write(f"{len(found)} models, {FILE.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
