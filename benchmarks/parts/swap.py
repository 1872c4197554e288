"""Adapters that take turns over one prompt: what a swap makes the model compute again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Verdict
from benchmarks.measure import Float32, Ids
from benchmarks.ours import open_model
from benchmarks.sizes import Sizes
from runtime import LanguageModel

ROW = "adapter swap"
RANK = 4
MODULES = ("q_proj", "v_proj")
TURNS = 4  # each stack has so many, one token each


def swap(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """The base, two adapters and both of them, by turns, each going on from the prompt that it has computed once.

    The bar is exact: besides the one new token of each turn nothing is computed, whichever stack was in force before.
    """
    prompt: Ids = np.random.default_rng(9).integers(case.vocabulary, size=sizes.transcript).tolist()
    tell(f"{ROW}: loading")
    with tempfile.TemporaryDirectory() as made, closing(open_model(case.folder, case.backend)) as model:
        for seed, name in enumerate(("A", "B")):
            model.load_adapter(model.add_adapter(write_adapter(case.folder, Path(made) / name, seed)))
        stacks: Sequence[Sequence[str]] = ((), ("A",), ("B",), ("A", "B"))
        tell(f"{ROW}: {len(stacks)} stacks by turns")
        for stack in stacks:
            _ask(model, stack, prompt)
        before = model.metrics().tokens_computed
        for turn in range(TURNS):
            for stack in stacks:
                _ask(model, stack, [*prompt, *range(turn + 1)])
        again = model.metrics().tokens_computed - before - TURNS * len(stacks)
    what = f"tokens of {len(stacks)} cached prefixes computed again in {TURNS * len(stacks)} swaps"
    return Findings(verdicts=(Verdict(ROW, case.backend, case.model, what, again, 0.0, at_least=False, timed=False),))


def _ask(model: LanguageModel, stack: Sequence[str], ids: Ids) -> Float32:
    """As a person swaps: the stack in force is changed, and the next request has it."""
    model.clear_loras()
    for name in stack:
        model.push_lora(name)
    return model.next_token_logprobs_sync(ids)


def write_adapter(model: Path, folder: Path, seed: int) -> Path:
    """A random adapter in peft's layout for a llama-like model folder; its own folder."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    outer = {"q_proj": heads * width, "v_proj": config["num_key_value_heads"] * width}
    rng = np.random.default_rng(seed)
    tensors: dict[str, Float32] = {}
    for layer in range(config["num_hidden_layers"]):
        for module in MODULES:
            path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{path}.lora_A.weight"] = rng.normal(size=(RANK, hidden)).astype(np.float32) / np.float32(hidden**0.5)
            tensors[f"{path}.lora_B.weight"] = rng.normal(size=(outer[module], RANK)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}), "utf-8")
    return folder
