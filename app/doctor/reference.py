"""Small models of many architectures with stored answers: `resources/reference/models.json.gz`.

The file has their shapes and answers. Their weights are drawn from the raw bits of a generator, the same on every machine.
The answers were computed with transformers in float32 (`tests.tools.record_reference`).
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

import resources

Float32 = npt.NDArray[np.float32]

FILE: Final = Path(resources.__file__).parent / "reference" / "models.json.gz"
SPREAD: Final = 0.35  # weights are this close to 0 (of norms, to 1): wide enough for a wrong mask or position to show
SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WEIGHTS: Final = "model.safetensors"
SMOLLM2: Final = "smollm2"  # a model of the shelf: only its answers are stored


class ReferenceAnswer(msgspec.Struct, frozen=True):
    """Natural log-probabilities of some tokens after one position."""

    position: int  # index in the text of the last token read
    ids: list[int]  # of the tokens
    logprobs: list[float]  # one for each


class Reference(msgspec.Struct, frozen=True):
    """One model with its text and answers."""

    name: str  # of the architecture
    kinds: list[str]  # of its layers, in order: "full attention", "sliding window", "state space", ...
    config: dict[str, Any]  # its config.json; empty for a model of the shelf
    shapes: dict[str, list[int]]  # of its tensors by name
    text: list[int]  # token ids of the prompt
    answers: list[ReferenceAnswer]  # at some positions of the text
    # logit lens at the last token: for each layer, the embedding first, log-probabilities of the ids of the last answer; empty
    # if not recorded
    layers: list[list[float]]


def references() -> list[Reference]:
    """All stored models."""
    return msgspec.json.decode(gzip.decompress(FILE.read_bytes()), type=list[Reference])


def numbers(name: str, shape: Sequence[int]) -> Float32:
    """The weights of one tensor, seeded by its name: around 1 for norms, else around 0."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(math.prod(shape))
    unit = (raw >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)  # in [-1, 1), exact in float32
    drawn = unit * np.float32(SPREAD)
    return (drawn + np.float32("norm" in name or "ln_" in name)).reshape(shape)


def write_model(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> Path:
    """Writes a folder with the config, the weights and a tokenizer of single bytes; returns it."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: numbers(name, shape) for name, shape in shapes.items()}, folder / WEIGHTS, {"format": "pt"})
    letters = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_reference(folder: Path, reference: Reference) -> Path:
    """Writes the folder of a stored model; returns it."""
    return write_model(folder, reference.config, reference.shapes)


def write_vast_model(folder: Path, llama: Reference, least: int) -> int:
    """Writes the folder of a llama with large layers, whose weights are a sparse file of zeros.

    Args:
        folder: A new folder.
        llama: The model whose tensors are widened.
        least: The least bytes of weights.

    Returns:
        The bytes of the weights, which take no space on most file systems.
    """
    wide, deep, narrow = 8192, 32768, 1024
    sizes = {
        "hidden_size": wide,
        "intermediate_size": deep,
        "head_dim": 128,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    }
    attention = {"q_proj": [wide, wide], "k_proj": [narrow, wide], "v_proj": [narrow, wide], "o_proj": [wide, wide]}
    layer = {f"self_attn.{name}": shape for name, shape in attention.items()}
    layer |= {"mlp.gate_proj": [deep, wide], "mlp.up_proj": [deep, wide], "mlp.down_proj": [wide, deep]}
    layer |= {"input_layernorm": [wide], "post_attention_layernorm": [wide]}
    layers = least // sum(2 * math.prod(shape) for shape in layer.values()) + 1
    write_model(folder, llama.config | sizes | {"num_hidden_layers": layers, "dtype": "bfloat16"}, {})
    outer = {name: shape for name, shape in llama.shapes.items() if ".layers." not in name}
    shapes = {name: [shape[0], wide] if len(shape) == 2 else [wide] for name, shape in outer.items()}
    shapes |= {f"model.layers.{number}.{name}.weight": shape for number in range(layers) for name, shape in layer.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return end
