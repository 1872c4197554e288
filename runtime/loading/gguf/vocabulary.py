"""The tokenizer inside a GGUF, built again with `tokenizers`, and the small files beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from runtime.errors import ModelLoadError
from runtime.loading.gguf.layout import GgufHeader

CONTROL, USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type

# Control tokens that end an answer, whatever a file names as its one eos
_ENDINGS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "</s>", "<end_of_turn>")


# Contractions, words with the sign before them, single digits, signs with the line ends behind them, white space.
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _qwen2() -> pre_tokenizers.PreTokenizer:
    parts = pre_tokenizers.Split(Regex(_QWEN2), behavior="isolated")
    return pre_tokenizers.Sequence([parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# How text is cut before the merges, by tokenizer.ggml.pre. Each was checked against the model's own tokenizer (qwen2: the
# library's class of it); one that is not here is refused, because a wrong cut gives plausible text and wrong numbers.
PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"gpt-2": _gpt2, "smollm": _smollm, "qwen2": _qwen2}
COMPOSED = ("qwen2",)  # of them: text is brought into Unicode's composed form first


def build_tokenizer(header: GgufHeader) -> Tokenizer:
    """The tokenizer of the file.

    Raises:
        ModelLoadError: An unknown kind, or lists that do not fit together.
    """
    tokens, types = _tokens(header)
    merges = [_merge(header, merge) for merge in _texts(header, "tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    for left, right in merges:
        if not {left, right, left + right} <= vocab.keys():
            raise _fault(header, f"the merge {left!r} + {right!r} uses a token that is not in the vocabulary")
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(header)
    if header.metadata["tokenizer.ggml.pre"] in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    kinds = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text, kind in kinds if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text, kind in kinds if kind == USER_DEFINED])
    return tokenizer


def tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """tokenizer_config.json: the named tokens, and no clean-up of what was decoded."""
    tokens, _ = _tokens(header)
    named = {
        f"{name}_token": tokens[i]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (i := _token_id(header, f"tokenizer.ggml.{key}_token_id", len(tokens))) is not None
    }
    return {
        **named,
        "add_bos_token": bool(header.metadata.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": header.metadata.get(f"{header.architecture}.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",  # a model's own class would cut the text its own way again
    }


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """generation_config.json: the token that begins, the tokens that end, the one that fills."""
    tokens, types = _tokens(header)
    eos = _token_id(header, "tokenizer.ggml.eos_token_id", len(tokens))
    endings = [i for i, kind in enumerate(types) if kind == CONTROL and tokens[i] in _ENDINGS]
    config = {
        "bos_token_id": _token_id(header, "tokenizer.ggml.bos_token_id", len(tokens)),
        "eos_token_id": list(dict.fromkeys([*([] if eos is None else [eos]), *endings])) or None,
        "pad_token_id": _token_id(header, "tokenizer.ggml.padding_token_id", len(tokens)),
    }
    return {key: value for key, value in config.items() if value is not None}


def chat_template(header: GgufHeader) -> str | None:
    """The template's source; None where the file has none."""
    template = header.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise _fault(header, "tokenizer.chat_template is no text")
    return template


def _pre_tokenizer(header: GgufHeader) -> pre_tokenizers.PreTokenizer:
    model, pre = header.metadata.get("tokenizer.ggml.model"), header.metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise _fault(header, f"a tokenizer of the kind {model!r} is not supported (known: 'gpt2', byte-level BPE)")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise _fault(header, f"the pre-tokenizer {pre!r} is not known (known: {', '.join(PRE_TOKENIZERS)}); not guessed")
    return PRE_TOKENIZERS[pre]()


def _tokens(header: GgufHeader) -> tuple[list[str], list[int]]:
    tokens = _texts(header, "tokenizer.ggml.tokens")
    types = header.metadata.get("tokenizer.ggml.token_type")
    rows = header.tensors["token_embd.weight"].shape[0]
    if len(tokens) != rows:
        raise _fault(header, f"{len(tokens):,} tokens for {rows:,} rows of the embedding")
    if not isinstance(types, list) or len(types) != len(tokens) or any(kind not in range(7) for kind in types):
        raise _fault(header, "tokenizer.ggml.token_type does not give one known type to each token")
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise _fault(header, f"the token {twice!r} stands in the vocabulary twice")
    return tokens, types


def _texts(header: GgufHeader, key: str) -> list[str]:
    texts = header.metadata.get(key)
    if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
        raise _fault(header, f"{key} is missing or no list of texts")
    return texts


def _merge(header: GgufHeader, text: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right) or " " in right:
        raise _fault(header, f"the merge {text!r} does not name two tokens")
    return left, right


def _token_id(header: GgufHeader, key: str, count: int) -> int | None:
    value = header.metadata.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count):
        raise _fault(header, f"{key} is {value!r}; the vocabulary has {count:,} tokens")
    return value


def _fault(header: GgufHeader, what: str) -> ModelLoadError:
    return ModelLoadError(f"{header.path}: {what}")
