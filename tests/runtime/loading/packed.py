"""GGUF files with matrices in ggml's block formats: random bits with scales that give plausible weights."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from runtime.loading.gguf.header import FORMATS
from tests.runtime.loading.as_gguf import gguf_of
from tests.runtime.loading.gguf_files import GgufFile, Stored
from tests.runtime.loading.test_quants import HALVES, KINDS, random_blocks
from tests.tiny_models import tiny_path

SPREAD = 0.2  # of the weights
_SPANS = {  # of the numbers
    "Q4_0": 4.7,
    "Q4_1": 5.5,
    "Q5_0": 9.3,
    "Q5_1": 9.3,
    "Q8_0": 74.0,
    "Q2_K": 12.0,
    "Q3_K": 45.0,
    "Q4_K": 350.0,
    "Q5_K": 600.0,
    "Q6_K": 1400.0,
}

Choice = Callable[[str], str]  # from a tensor's name in GGUF to its format, "F32" for unpacked ones


def packed(folder: Path, choice: Choice) -> GgufFile:
    """The file of a model folder, with random values in its matrices, in the chosen formats."""
    file = gguf_of(folder)
    return dataclasses.replace(file, tensors=tuple(_packed(tensor, choice) for tensor in file.tensors))


def _packed(tensor: Stored, choice: Choice) -> Stored:
    name = choice(tensor.name) if len(tensor.shape) == 2 else "F32"
    return tensor if name == "F32" else in_blocks(tensor, name)


def in_blocks(tensor: Stored, name: str) -> Stored:
    """A matrix of the same shape in random blocks of a format."""
    kind = KINDS[name]
    blocks = random_blocks(name, int(np.prod(tensor.shape)) // FORMATS[kind].block, zlib.crc32(tensor.name.encode()))
    for at in HALVES[name]:
        drawn = blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)
        blocks[:, at : at + 2] = (drawn * 10 * SPREAD / _SPANS[name]).astype("<f2").view(np.uint8)
    return dataclasses.replace(tensor, kind=kind, data=blocks.tobytes())


def k_quants(folder: Path, better: Collection[str], most: str = "Q4_K", form: str = "Q6_K") -> GgufFile:
    """Like Q4_K_M files, with some matrices in another format than most. `folder` gets the original model."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}  # whole blocks
    config = LlamaConfig(**sizes, vocab_size=1000, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tiny_path("llama") / "tokenizer.json").read_bytes())
    return packed(folder, lambda name: form if name in better else most)
