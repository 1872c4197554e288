"""Random adapters written by peft itself, and peft's own numbers for them: the reference for all adapter tests."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from runtime.records import Float32
from tests.runtime.backends.reference import log_softmax
from tests.tiny_models import tiny_path

TARGETS = {  # some modules of each kind that an architecture has
    "llama": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"],
    "gpt2": ["c_attn", "c_fc"],
    "gemma3": ["q_proj", "k_proj", "up_proj"],
    "mistral": ["q_proj", "v_proj", "down_proj"],
    "mamba": ["in_proj", "x_proj"],
    "lfm2": ["q_proj", "in_proj", "w1"],
    "falcon_h1": ["q_proj", "in_proj", "up_proj"],
}
INVOCATION = (17, 23, 5)


@contextmanager
def quiet() -> Iterator[None]:
    """Ignores peft's own deprecation warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def settings(name: str, **changes: Any) -> Any:
    """A `LoraConfig` for a tiny model."""
    from peft import LoraConfig

    wanted = {"r": 4, "lora_alpha": 6, "target_modules": TARGETS[name], "task_type": "CAUSAL_LM", **changes}
    return LoraConfig(**wanted, fan_in_fan_out=name == "gpt2")


def base_model(name: str) -> Any:
    """transformers' own model, fresh."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_path(name), dtype=torch.float32).eval()


@quiet()
def save_adapter(folder: Path, name: str, *, seed: int, size: float = 0.15, **changes: Any) -> Path:
    """Writes a random adapter for a tiny model with peft; returns the folder."""
    import torch
    from peft import get_peft_model

    model = get_peft_model(base_model(name), settings(name, **changes))
    made = torch.Generator().manual_seed(seed)
    for path, parameter in model.named_parameters():
        if ".lora_" in path:
            parameter.data = torch.randn(parameter.shape, generator=made) * size
    model.save_pretrained(folder)
    return folder


class Peft:
    """peft's numbers for adapters on a tiny model."""

    @quiet()
    def __init__(self, name: str, **folders: Path) -> None:
        from peft import PeftModel

        (first, folder), *rest = folders.items()
        self.model = PeftModel.from_pretrained(base_model(name), folder, adapter_name=first).eval()
        for other, path in rest:
            self.model.load_adapter(path, adapter_name=other)

    @quiet()
    def logprobs(self, ids: Sequence[int], *stack: tuple[str, float]) -> Float32:
        """``(len(ids), vocab)`` under adapters in this order, by peft's own forward, nothing cached.

        An activated adapter begins where peft finds its invocation; peft looks for that of the adapter named last.
        """
        import torch
        from peft.tuners.lora import LoraLayer

        tokens = torch.tensor([list(ids)])
        with torch.inference_mode():
            if not stack:
                with self.model.disable_adapter():
                    return log_softmax(self.model(input_ids=tokens, use_cache=False).logits[0].numpy())
            self.model.set_adapter(stack[-1][0])  # the adapter whose invocation peft looks for
            self.model.base_model.set_adapter([name for name, _ in stack])
            for layer in self.model.modules():
                if isinstance(layer, LoraLayer):
                    for name, scale in stack:
                        if name in layer.scaling:
                            layer.set_scale(name, scale)
            return log_softmax(self.model(input_ids=tokens, use_cache=False).logits[0].numpy())


@functools.cache
def adapters_of(name: str, root: Path) -> tuple[Path, Path]:
    """Two adapters for a tiny model: A, and B of another rank, rank-stabilised."""
    a = save_adapter(root / name / "A", name, seed=1)
    b = save_adapter(root / name / "B", name, seed=2, r=3, lora_alpha=5, use_rslora=True)
    return a, b


def to_mlx_layout(peft_folder: Path, folder: Path, scale: float) -> Path:
    """The same numbers as mlx-lm's trainer writes them: transposed, with its names and its own scale."""
    with safe_open(peft_folder / "adapter_model.safetensors", framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # a file is no mapping
    names = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}
    renamed = {}
    for name, array in tensors.items():
        end = next(end for end in names if name.endswith(end))
        path = name.removeprefix("base_model.model.").removesuffix(end) + names[end]
        renamed[path] = np.ascontiguousarray(array.T)
    folder.mkdir(parents=True)
    save_file(renamed, folder / "adapters.safetensors")
    config = {"fine_tune_type": "lora", "num_layers": 16, "lora_parameters": {"rank": 4, "dropout": 0.0, "scale": scale}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
