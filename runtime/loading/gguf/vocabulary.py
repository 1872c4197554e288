"""The tokenizer inside a GGUF, built again with `tokenizers`, and the small files beside it."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from runtime.loading.gguf.bytelevel import byte_level, cut_of
from runtime.loading.gguf.layout import GgufHeader
from runtime.loading.gguf.lists import CONTROL, USER_DEFINED, token_id, tokens_and_kinds
from runtime.loading.gguf.numbers import fault
from runtime.loading.gguf.sentencepiece import sentencepiece

# Control tokens that end an answer, whatever a file names as its one eos
_ENDINGS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "</s>", "<end_of_turn>")

_KINDS = {"gpt2": byte_level, "llama": sentencepiece}  # by tokenizer.ggml.model


def build_tokenizer(header: GgufHeader) -> Tokenizer:
    """The tokenizer of the file.

    Raises:
        ModelLoadError: An unknown kind, or lists that do not fit together.
    """
    kind = header.metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = "'gpt2', byte-level BPE, and 'llama', SentencePiece's BPE"
        raise fault(header, f"a tokenizer of the kind {str(kind)[:60]!r} is not supported (known: {known})")
    return _KINDS[kind](header, *tokens_and_kinds(header))


def tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """tokenizer_config.json: the named tokens, and no clean-up of what was decoded."""
    tokens, _ = tokens_and_kinds(header)
    named = {
        f"{name}_token": tokens[i]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (i := token_id(header, f"tokenizer.ggml.{key}_token_id", len(tokens))) is not None
    }
    return {
        **named,
        "add_bos_token": _adds_bos(header),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": header.metadata.get(f"{header.architecture}.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",  # a model's own class would cut the text its own way again
    }


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """generation_config.json: the token that begins, the tokens that end, the one that fills."""
    tokens, kinds = tokens_and_kinds(header)
    eos = token_id(header, "tokenizer.ggml.eos_token_id", len(tokens))
    endings = [i for i, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED) and tokens[i] in _ENDINGS]
    config = {
        "bos_token_id": token_id(header, "tokenizer.ggml.bos_token_id", len(tokens)),
        "eos_token_id": list(dict.fromkeys([*([] if eos is None else [eos]), *endings])) or None,
        "pad_token_id": token_id(header, "tokenizer.ggml.padding_token_id", len(tokens)),
    }
    return {key: value for key, value in config.items() if value is not None}


def chat_template(header: GgufHeader) -> str | None:
    """The template's source; None where the file has none."""
    template = header.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise fault(header, "tokenizer.chat_template is no text")
    return template


def _adds_bos(header: GgufHeader) -> bool:
    """Whether raw text begins with a bos. Where the file does not say, SentencePiece's and Llama 3's does, as in llama.cpp."""
    silent = header.metadata.get("tokenizer.ggml.model") == "llama" or cut_of(header).adds_bos
    return bool(header.metadata.get("tokenizer.ggml.add_bos_token", silent))
