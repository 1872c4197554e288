"""Every architecture that is imported from GGUF gives the numbers of transformers, with every tensor at work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as RawTokenizer

from runtime.errors import ModelLoadError
from runtime.loading.gguf.decoder import FAMILIES
from runtime.loading.gguf.vocabulary import PRE_TOKENIZERS
from runtime.loading.importer import import_model
from runtime.text.tokenizer import Tokenizer
from tests.runtime.loading.as_gguf import as_gguf
from tests.tiny_models import tiny_path

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
TEXTS = [
    "Numbers 12 and 3456,\n\n  tabs\tand 日本語 😀",
    "I'll, WE'RE e\u0301te\u0301  \r\n\r\n x",
    "  leading, trailing  ",
    "print('a' if x==1 else \"b\")\n\n\n    return…",
]


def _configs() -> dict[str, Callable[[], Any]]:
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    return {
        "llama": lambda: LlamaConfig(**SIZES, rope_theta=100_000.0, tie_word_embeddings=False),
        "llama, tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
        "llama, wide heads": lambda: LlamaConfig(**SIZES, head_dim=32, tie_word_embeddings=False),
        "qwen2": lambda: Qwen2Config(**SIZES, rope_theta=1_000_000.0, tie_word_embeddings=False),
        "qwen2, tied": lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
        "qwen3": lambda: Qwen3Config(**SIZES, head_dim=24, rope_theta=1_000_000.0, tie_word_embeddings=False),
        "qwen3, tied": lambda: Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    }


NAMES = ("llama", "llama, tied", "llama, wide heads", "qwen2", "qwen2, tied", "qwen3", "qwen3, tied")


def made(name: str, folder: Path) -> Path:
    """A model whose norms are not all ones and whose biases are not all zeros."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(_configs()[name]())
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:
                value.copy_(torch.rand_like(value) + 0.5)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tiny_path("llama") / "tokenizer.json").read_bytes())
    return folder


def test_every_family_is_among_them() -> None:
    assert {name.partition(",")[0] for name in NAMES} == set(FAMILIES)
    assert set(NAMES) == set(_configs())


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if "," in name else []) for name in NAMES])
def test_an_imported_model_answers_as_the_original(name: str, shelf: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    original = made(name, tmp_path / "original")
    folder = import_model(as_gguf(original, tmp_path / "tiny.gguf"))
    ids = torch.arange(3, 120)[None]
    with torch.no_grad():
        theirs, ours = (AutoModelForCausalLM.from_pretrained(path).eval()(ids).logits for path in (original, folder.path))
    assert theirs.std() > 1  # else nothing would show
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_engines_give_its_numbers(name: str, shelf: Path, tmp_path: Path) -> None:
    from runtime import load

    folder = import_model(as_gguf(made(name, tmp_path / "original"), tmp_path / "tiny.gguf"))
    rows = []
    for backend in ("hf", "mlx"):
        with load(folder.path, backend=backend) as model:
            rows.append(torch.from_numpy(model.next_token_logprobs_sync(list(range(3, 60)))))
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-4)


def test_text_is_cut_as_qwens_own_tokenizer_cuts_it(shelf: Path, tmp_path: Path) -> None:
    from transformers import Qwen2Tokenizer

    original = made("qwen2", tmp_path / "original")
    layout = json.loads((original / "tokenizer.json").read_text("utf-8"))["model"]
    theirs = Qwen2Tokenizer(layout["vocab"], [tuple(merge) for merge in layout["merges"]])
    ours = Tokenizer.from_folder(import_model(as_gguf(original, tmp_path / "tiny.gguf", pre="qwen2")))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_no_two_ways_to_cut_are_the_same(pre: str) -> None:
    """Else one of them could be taken for another and no test would see it."""
    cuts = {name: [made().pre_tokenize_str(text) for text in (*TEXTS, "a.b 12")] for name, made in PRE_TOKENIZERS.items()}
    assert [other for other, cut in cuts.items() if cut == cuts[pre]] == [pre]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_of_another_family_is_refused(family: str, shelf: Path, tmp_path: Path) -> None:
    other = next(name for name in FAMILIES if name != family)
    path = as_gguf(made(other, tmp_path / "original"), tmp_path / "tiny.gguf")
    data = (
        path.read_bytes()
        .replace(other.encode() + b".", family.encode() + b".")
        .replace(len(other).to_bytes(8, "little") + other.encode(), len(family).to_bytes(8, "little") + family.encode())
    )
    path.write_bytes(data)
    with pytest.raises(ModelLoadError):
        import_model(path)


def test_heads_that_a_qwen2_cannot_say_are_refused(shelf: Path, tmp_path: Path) -> None:
    path = as_gguf(made("qwen2", tmp_path / "original"), tmp_path / "tiny.gguf")
    data = path.read_bytes()
    for key in (b"qwen2.attention.key_length", b"qwen2.attention.value_length"):
        at = data.index(key) + len(key) + 4  # its type is a number of 4 bytes
        data = data[:at] + (32).to_bytes(4, "little") + data[at + 4 :]
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match="are not as wide as the model"):
        import_model(path)


def test_raw_tokenizers_of_both_kinds_are_written(shelf: Path, tmp_path: Path) -> None:
    folder = import_model(as_gguf(made("qwen2", tmp_path / "original"), tmp_path / "tiny.gguf", pre="qwen2"))
    raw = RawTokenizer.from_file(str(folder.path / "tokenizer.json"))
    assert raw.normalizer is not None
    assert raw.encode("e\u0301").ids == raw.encode("\u00e9").ids
