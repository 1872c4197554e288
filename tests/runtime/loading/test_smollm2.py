"""The embedded model as imported, compared with mlx's reading of the same GGUF file and with known ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from runtime.errors import ModelLoadError
from runtime.loading.gguf.convert import check_gguf
from runtime.loading.gguf.decoder import unpermuted
from runtime.loading.integrity import sha256_of
from runtime.loading.model_folder import ModelFolder
from runtime.loading.paths import shelf_path
from runtime.shelf.embedded import GGUF_SHA256, fetch_embedded
from runtime.shelf.importing import SOURCE
from runtime.shelf.source import resolve
from runtime.text.chat import render_chat_ids
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smollm2() -> ModelFolder:
    return resolve("smollm2")


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFolder) -> Tokenizer:
    return Tokenizer.from_folder(smollm2)


def test_every_tensor_equals_mlxs_reading_of_the_file(smollm2: ModelFolder) -> None:
    # given
    import mlx.core as mx

    source = smollm2.path / SOURCE
    tensors = check_gguf(source).tensors
    arrays = mx.load(str(source))
    assert isinstance(arrays, dict)
    # when, then
    with safe_open(smollm2.weights[0], framework="np") as ours:
        assert sorted(ours.keys()) == sorted(tensor.target for tensor in tensors)
        for tensor in tensors:
            packed = arrays[tensor.source]
            stem = tensor.source.removesuffix(".weight")
            if packed.dtype == mx.uint32:
                scales, biases = (arrays[f"{stem}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
                bits = packed.shape[-1] * 32 // (scales.shape[-1] * 32)
                packed = mx.dequantize(packed, scales, biases, group_size=32, bits=bits)
            theirs = np.array(packed.astype(mx.float32))
            if tensor.permuted_heads:
                theirs = unpermuted(theirs, tensor.permuted_heads)
            # equal up to the rounding of one multiply-add
            np.testing.assert_allclose(ours.get_tensor(tensor.target), theirs, rtol=3e-7, atol=3e-8, err_msg=tensor.target)


def test_the_config_has_the_models_values(smollm2: ModelFolder) -> None:
    config = smollm2.config
    assert smollm2.name == "SmolLM2-135M-Instruct"
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (30, 576, 49152)
    assert (config["rope_theta"], config["rms_norm_eps"], config["tie_word_embeddings"]) == (100_000.0, 1e-5, True)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("\n\n1. item", [1116, 33, 30, 5033]), ("x  1", [104, 256, 33]), ("", [])],
)
def test_known_texts_have_known_ids(text: str, ids: list[int], tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(text) == ids


@pytest.mark.parametrize(
    "text",
    [
        "Name three colours.",
        "1. one\n2. two\n\n10. ten",
        "def f(x):\n\treturn x  # 3.14",
        "日本語と中文，한국어",
        "👩‍👩‍👧‍👦 emoji 😀 \U0001f3f4",
        "e\u0301 combining, \u202eright to left\u202c",
        "\x00\x01\x1b[31m control",
        "<|im_start|>user\n<|im_end|>",
        "a" * 5000,
    ],
)
def test_text_survives_the_round_trip(text: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer.special_ids.intersection(ids)


def test_eos_bos_and_special_tokens_are_known(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_ids == (2, 0)
    assert (tokenizer.bos_token_id, tokenizer.adds_bos) == (1, False)
    assert len(tokenizer.special_ids) == 17
    assert len(tokenizer) == 49152


def test_every_token_has_its_bytes(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.byte_vocab()
    assert all(vocabulary)
    assert len(tokenizer.byte_vocab(50_000)) == 50_000
    assert {bytes([byte]) for byte in range(0x20, 0x7F)} <= set(vocabulary)


def test_bytes_missing_from_the_vocabulary_are_left_out_as_by_transformers(smollm2: ModelFolder, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2.path)
    for text in ("a\x04b", "a\U0010ffffb", "\x13"):
        assert tokenizer.encode(text) == theirs.encode(text)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi 12"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1. a\n2. b"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": " c "}],
    ],
)
def test_a_chat_is_rendered_as_by_transformers(
    messages: list[dict[str, str]], smollm2: ModelFolder, tokenizer: Tokenizer
) -> None:
    # given
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2.path)
    template = ChatTemplate.from_folder(smollm2, tokenizer)
    assert template is not None
    for prompt in (True, False):
        # when
        ids = render_chat_ids(tokenizer, template, messages, add_generation_prompt=prompt)
        # then
        assert ids == theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
    template.close()


def test_a_damaged_embedded_model_is_rebuilt_without_the_network(shelf: Path, smollm2: ModelFolder, tmp_path: Path) -> None:
    # given: a copy with a changed config
    shutil.copytree(smollm2.path, shelf_path("smollm2"))
    (shelf_path("smollm2") / "config.json").write_text(json.dumps({**smollm2.config, "rope_theta": 1.0}))
    with pytest.raises(ModelLoadError, match=r"config\.json is damaged or was changed.*fetch it again: `elsewise models get"):
        resolve("smollm2")
    # when
    again = fetch_embedded()
    # then
    assert (again.weights_digest, again.text_digest) == (smollm2.weights_digest, smollm2.text_digest)
    assert sha256_of(again.path / SOURCE) == GGUF_SHA256
