"""Byte-level BPE out of a GGUF: how text is cut before the merges, and the merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from runtime.loading.gguf.layout import GgufHeader
from runtime.loading.gguf.lists import CONTROL, USER_DEFINED, texts
from runtime.loading.gguf.numbers import fault

_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # signs with the line ends behind them, white space
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"  # contractions, words with the sign before them
_QWEN2 = rf"{_WORDS}|\p{{N}}{_MARKS}"  # digits one by one
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}{_MARKS}"  # digits in threes
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (  # words end where lower case goes over into upper case; a slash goes with the signs before it
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """How text is cut before the merges.

    Attributes:
        pattern: Of the pieces; empty: GPT-2's own.
        digits: Whether each digit is a piece, before the pattern.
        composed: Whether text is brought into Unicode's composed form first.
        whole: Whether a piece that is a token is that token, whatever the merges would make of it.
        adds_bos: Whether raw text begins with a bos, where the file does not say.
    """

    pattern: str = ""
    digits: bool = False
    composed: bool = False
    whole: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Text into pieces spelled in bytes."""
        first: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            first.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern:
            first.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.pattern)
        return pre_tokenizers.Sequence([*first, bytes_of]) if first else bytes_of


# By tokenizer.ggml.pre. Each was checked against the model's own tokenizer or the library's classes of it (see
# `tests/runtime/loading/test_cuts.py`); one that is not here is refused: a wrong cut gives plausible text, wrong numbers.
_LLAMA_BPE = Cut(_LLAMA3, whole=True, adds_bos=True)
CUTS = {
    "gpt-2": Cut(),
    "smollm": Cut(digits=True),
    "qwen2": Cut(_QWEN2, composed=True),
    "deepseek-r1-qwen": Cut(_QWEN2),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "dbrx": Cut(_LLAMA3),
    "tekken": Cut(_TEKKEN, whole=True),
}


def cut_of(header: GgufHeader) -> Cut:
    """How the file's text is cut.

    Raises:
        ModelLoadError: In a way that is not known.
    """
    pre = header.metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in CUTS:
        raise fault(header, f"the pre-tokenizer {str(pre)[:60]!r} is not known (known: {', '.join(CUTS)}); not guessed")
    return CUTS[pre]


def byte_level(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """The tokenizer of a file whose ``tokenizer.ggml.model`` is "gpt2".

    Raises:
        ModelLoadError: A cut that is not known, or merges of tokens that are not there.
    """
    cut = cut_of(header)
    merges = [_merge(header, merge) for merge in texts(header, "tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    for left, right in merges:
        if not {left, right, left + right} <= vocab.keys():
            raise fault(header, f"the merge {left!r} + {right!r} uses a token that is not in the vocabulary")
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=cut.whole))
    tokenizer.pre_tokenizer = cut.pre_tokenizer()
    if cut.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    of_kind = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text, kind in of_kind if kind == CONTROL]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text, kind in of_kind if kind == USER_DEFINED])
    return tokenizer


def _merge(header: GgufHeader, text: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right) or " " in right:
        raise fault(header, f"the merge {text!r} does not name two tokens")
    return left, right
