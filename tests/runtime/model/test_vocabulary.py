"""`byte_vocab` and `str_vocab`: the exact bytes of every id, for every spelling, as many as the logits are wide."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pydoc_data import topics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from runtime import LanguageModel, load
from runtime.shelf.source import resolve
from runtime.text.tokenizer import Tokenizer as OurTokenizer
from tests.tiny_models import tiny_path

CONTROL = ("<unk>", "<s>", "</s>")
VOCABULARY = 1000
TEXTS = (
    "Lists may be nested: naïve 🙂\n\n",
    "去巴黎\t\u00a0x",
    "a\x00b\r\n",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "ﬁ  ▁ ",
)


@functools.cache
def sentencepiece() -> Tokenizer:
    """A trained BPE as Llama 2's: U+2581 for a space, ``<0xXX>`` for every byte that has no piece of its own."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    room = VOCABULARY - 256
    trainer = trainers.BpeTrainer(vocab_size=room, special_tokens=list(CONTROL), limit_alphabet=120, show_progress=False)
    trained.train_from_iterator(["".join(topics.topics[key] for key in sorted(topics.topics))[:60_000]], trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    ordered = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces[len(CONTROL) :]]
    merges = [tuple(pair) for pair in model["merges"]]
    made = Tokenizer(
        models.BPE({text: i for i, text in enumerate(ordered)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = trained.normalizer
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    return made


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    """A model whose logits are wider than the SentencePiece vocabulary."""
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(tiny_path("llama_wide"))
    with load((weights, SimpleNamespace(backend_tokenizer=sentencepiece())), backend="hf", threads=1) as made:
        yield made


def test_sentencepiece_with_byte_fallback(model: LanguageModel) -> None:
    width = len(model.next_token_logprobs_sync([5]))
    assert len(model.byte_vocab) == len(model.str_vocab) == model.info.vocab_size == width == 1024
    # given the bytes that every id stands for, by its spelling
    vocab = sentencepiece().get_vocab()
    assert len(vocab) == VOCABULARY
    for text, token in vocab.items():
        if 3 <= token < 259:
            assert model.byte_vocab[token] == bytes([token - 3])
        else:
            assert model.byte_vocab[token] == text.replace("▁", " ").encode()
    # then padding has none, and no byte is missing
    assert model.byte_vocab[VOCABULARY:] == [b""] * 24
    assert model.str_vocab[VOCABULARY:] == [""] * 24
    assert {bytes([byte]) for byte in range(256)} <= set(model.byte_vocab)
    # two ids may have the same bytes: each says its own
    twins = [i for i, data in enumerate(model.byte_vocab) if data == b"e"]
    assert len(twins) == 2


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_sentencepiece_ids_join_to_the_text(model: LanguageModel, text: str) -> None:
    ids = model.tokenize(text)
    expected = b" " + text.replace("▁", " ").encode()  # U+2581 is how this spelling writes a space
    assert b"".join(model.byte_vocab[i] for i in ids) == expected
    assert b"".join(model.decode_token(i) for i in ids) == expected
    assert model.detokenize(ids) == expected.decode()


@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
@settings(deadline=None, max_examples=60)
def test_any_text_survives_sentencepiece(text: str) -> None:
    ours = OurTokenizer(sentencepiece())
    joined = b"".join(ours.byte_vocab()[i] for i in ours.encode(text))
    assert joined in (b" " + text.encode(), text.encode())  # an empty text gets no space in front


@pytest.mark.slow
def test_byte_level_of_a_real_model() -> None:
    # given SmolLM2's tokenizer, and what the library says of each id alone
    ours = OurTokenizer.from_folder(resolve("smollm2"))
    library: Any = Tokenizer.from_str(ours.to_json())
    vocab, texts = ours.byte_vocab(), ours.str_vocab()
    assert len(vocab) == len(texts) == 49_152
    alone = library.decode_batch([[i] for i in range(len(vocab))], skip_special_tokens=False)
    for token, text in enumerate(alone):
        assert vocab[token].decode(errors="replace") == text
        if "\ufffd" not in text:
            assert texts[token] == text
    # then ids are told apart by their bytes, but for those that the vocabulary holds twice
    assert len(set(vocab)) > 49_100
    rng = np.random.default_rng(1)
    for text in (*TEXTS[:2], *TEXTS[3:], "x  1\n\n1. item", "".join(map(chr, rng.integers(0x20, 0x3000, 400)))):
        assert b"".join(vocab[i] for i in ours.encode(text)) == text.encode()
