"""Small tokenizers of every kind of spelling, and model folders for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from runtime.loading.model_folder import ModelFolder
from runtime.text import tokenizer as ours
from tests.tiny_models import tiny_tokenizer

CONTROL = ("<s>", "</s>", "<unk>")


def tokenizer_with(*marks: str, adds_bos: bool = True) -> ours.Tokenizer:
    """The tiny models' vocabulary with <s>, </s> and some markers of chat formats."""
    backend = Tokenizer.from_str(tiny_tokenizer().to_str())
    backend.add_special_tokens(["<s>", "</s>", *marks])
    eos = backend.token_to_id("</s>")
    assert eos is not None
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    return ours.Tokenizer(backend, eos_token_ids=[eos], special_texts=named, adds_bos=adds_bos)


def byte_level() -> Tokenizer:
    """All 256 bytes, one merge, three control tokens, and one added token that is not a control token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate([*CONTROL, *alphabet, "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _with_added(tokenizer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Like Llama 2's: U+2581 for a space, ``<0xXX>`` for bytes without a token of their own."""
    pieces = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "日"]
    tokenizer = Tokenizer(
        models.BPE(
            {text: i for i, text in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    _with_added(tokenizer)
    return tokenizer


def metaspace() -> Tokenizer:
    """Like T5's and newer Llama 2 conversions: a prefix space for the first piece only."""
    pieces = [(text, -float(i)) for i, text in enumerate([*CONTROL, "▁", "a", "b", "▁a", "日", "|", "<", ">", "s", "/"])]
    tokenizer = Tokenizer(models.Unigram(pieces, 2, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    _with_added(tokenizer)
    return tokenizer


def wordpiece() -> Tokenizer:
    """Like BERT's."""
    tokenizer = Tokenizer(models.WordPiece({"<unk>": 0, "ab": 1, "##c": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def folder_of(path: Path, tokenizer: Tokenizer | str, **changes: Any) -> ModelFolder:
    """A model folder with nothing but a tokenizer; `changes` are fields of `ModelFolder`."""
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(tokenizer if isinstance(tokenizer, str) else tokenizer.to_str())
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}, "unk_token": "<unk>"}
    fields: dict[str, Any] = {"tokenizer_config": named, **changes}
    return ModelFolder(path, "made", fields.pop("config", {}), "w", "t", **json.loads(json.dumps(fields)))


def _with_added(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("über all", normalized=False)])
