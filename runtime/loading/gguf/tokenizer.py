"""The tokenizer of a GGUF file, rebuilt with `tokenizers`; its chat template and the configurations with token ids.

transformers' converter (5.23, `integrations.gguf`) is not used: it has no entry for "smollm" and silently splits an unknown
kind as GPT-2 ("x  1" of SmolLM2 gets other ids), leaves out Llama 3's `ignore_merges` and Qwen 2's NFC, is missing from the
oldest supported transformers, and takes seconds to import.

SentencePiece's BPE (Kudo and Richardson 2018) has no merges in a GGUF: SentencePiece joins the two neighbours whose joint piece
has the best score. Its trainer gives falling scores, so the order of the pieces is the order of the merges, and each way to
split a piece into two pieces is a merge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from runtime.loading.gguf.header import GgufHeader, fault

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # of tokenizer.ggml.token_type


def tokens_and_kinds(header: GgufHeader) -> tuple[list[str], list[int]]:
    """Every token in the file's spelling, and its kind.

    Raises:
        ModelLoadError: They do not fit the embedding or each other, or a token occurs twice.
    """
    tokens = texts(header, "tokenizer.ggml.tokens")
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    rows = header.tensors["token_embd.weight"].shape[0]
    if len(tokens) != rows:
        raise fault(header, f"{len(tokens):,} tokens for {rows:,} rows of the embedding")
    if not isinstance(kinds, list) or len(kinds) != len(tokens) or any(kind not in range(7) for kind in kinds):
        raise fault(header, "tokenizer.ggml.token_type does not give one known type to each token")
    check_unique(header, tokens)
    return tokens, kinds


def check_unique(header: GgufHeader, tokens: list[str]) -> None:
    """Refuses a vocabulary in which a token occurs twice.

    Raises:
        ModelLoadError: Names the token.
    """
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise fault(header, f"the token {twice!r} stands in the vocabulary twice")


def texts(header: GgufHeader, key: str) -> list[str]:
    """Reads a non-empty list of texts from the metadata.

    Raises:
        ModelLoadError: It is missing, empty, or of another type.
    """
    found = header.metadata.get(key)
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise fault(header, f"{key} is missing or no list of texts")
    return found


def token_id(header: GgufHeader, key: str, count: int) -> int | None:
    """The token id under a key of the metadata; None where the file has none.

    Raises:
        ModelLoadError: The value is not an id of the vocabulary.
    """
    value = header.metadata.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count):
        raise fault(header, f"{key} is {value!r}; the vocabulary has {count:,} tokens")
    return value


_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # punctuation with the line ends after it, white space
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"  # contractions, words with the punctuation before them
_QWEN2 = rf"{_WORDS}|\p{{N}}{_MARKS}"  # digits one by one
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}{_MARKS}"  # digits in threes
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (  # words end where lower case changes to upper case; a slash belongs to the punctuation before it
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before the merges."""

    pattern: str = ""  # regular expression of the pieces; empty: GPT-2's own
    digits: bool = False  # each digit is a piece, before the pattern applies
    composed: bool = False  # text is normalised to NFC first
    whole: bool = False  # a piece that is a token is taken whole, without merges (`ignore_merges`)
    adds_bos: bool = False  # default for `add_bos_token`: raw text begins with a bos

    def build(self) -> pre_tokenizers.PreTokenizer:
        """A pre-tokeniser that splits text into pieces, spelled in GPT-2's byte characters."""
        first: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            first.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern:
            first.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.pattern)
        return pre_tokenizers.Sequence([*first, bytes_of]) if first else bytes_of


# By tokenizer.ggml.pre. Each was compared with the model's own tokenizer or with its class in transformers
# (`tests/runtime/loading/test_pre_tokenizers.py`). Others are refused: a wrong split gives plausible text and wrong numbers.
_LLAMA_BPE = PreTokenizer(_LLAMA3, whole=True, adds_bos=True)
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    "qwen2": PreTokenizer(_QWEN2, composed=True),
    "deepseek-r1-qwen": PreTokenizer(_QWEN2),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "dbrx": PreTokenizer(_LLAMA3),
    "tekken": PreTokenizer(_TEKKEN, whole=True),
}


def pre_tokenizer_of(header: GgufHeader) -> PreTokenizer:
    """The pre-tokeniser that the file names.

    Raises:
        ModelLoadError: It is unknown.
    """
    pre = header.metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise fault(
            header, f"the pre-tokenizer {str(pre)[:60]!r} is not known (known: {', '.join(PRE_TOKENIZERS)}); not guessed"
        )
    return PRE_TOKENIZERS[pre]


def byte_level(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """The tokenizer of a file whose ``tokenizer.ggml.model`` is "gpt2".

    Raises:
        ModelLoadError: The pre-tokeniser is unknown, or a merge uses a token that is not in the vocabulary.
    """
    split = pre_tokenizer_of(header)
    merges = [_merge(header, merge) for merge in texts(header, "tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    for left, right in merges:
        if not {left, right, left + right} <= vocab.keys():
            raise fault(header, f"the merge {left!r} + {right!r} uses a token that is not in the vocabulary")
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=split.whole))
    tokenizer.pre_tokenizer = split.build()
    if split.composed:
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


SPACE = "▁"  # U+2581, in a piece
MAX_PIECE = 512  # characters
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_TURNS = ("<start_of_turn>", "<end_of_turn>")  # Gemma's control tokens; user-defined in older files
_AMBIGUOUS = "[INST]"  # as a control token: later Mistral tokenizers put no space after it, and the file does not say
_PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")  # special tokens that do not absorb the white space after them


def sentencepiece(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """The tokenizer of a file whose ``tokenizer.ggml.model`` is "llama".

    Raises:
        ModelLoadError: It is not SentencePiece's BPE, or uses a feature that is not supported.
    """
    _refuse_normalisation(header)
    prefixed = header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    own = (SPACE, " ") if prefixed else (" ", SPACE)  # user-defined tokens are found before spaces are escaped, or after
    spelled = [text.replace(*own) if kind == USER_DEFINED else text for text, kind in zip(tokens, kinds, strict=True)]
    check_unique(header, spelled)
    if any(text == _AMBIGUOUS and kind == CONTROL for text, kind in zip(spelled, kinds, strict=True)):
        raise fault(
            header, f"the control token {_AMBIGUOUS}: whether a space follows it is not in the file; use the model's own folder"
        )
    vocab = {text: i for i, text in enumerate(spelled)}
    pieces = _pieces(header, spelled, kinds)
    fallback = _has_bytes(header, spelled, kinds)
    unknown = [text for text, kind in zip(spelled, kinds, strict=True) if kind == UNKNOWN]
    if len(unknown) != 1 and not (fallback and not unknown):
        raise fault(header, f"{len(unknown)} tokens stand for what is unknown; one is possible")
    model = models.BPE(
        vocab,
        # best piece first, and of one piece the longest left half: its splits have the same score, and where they compete
        # (``aa a aa``) SentencePiece takes the leftmost
        [(text[:cut], text[cut:]) for text in pieces for cut in _halves(text, pieces)],
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=fallback,
    )
    unused = {text for text, kind in zip(spelled, kinds, strict=True) if kind == UNUSED}
    reachable = next((text for text in unused if len(text) == 1 or _halves(text, pieces)), None)
    if reachable is not None:
        raise fault(header, f"the token {reachable!r} is not used, and text would be cut into it: not supported")
    tokenizer = Tokenizer(model)
    escaped = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), escaped]) if prefixed else escaped
    joined = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)] if prefixed else joined)
    _add(tokenizer, header.architecture, spelled, kinds)
    return tokenizer


def _refuse_normalisation(header: GgufHeader) -> None:
    """Refuses tokenizers that normalise text; those of Llama, Mistral, Phi and Gemma do not."""
    for key in ("precompiled_charsmap", "remove_extra_whitespaces"):
        if header.metadata.get(f"tokenizer.ggml.{key}"):
            raise fault(header, f"tokenizer.ggml.{key}: a tokenizer that changes its text is not supported")


def _pieces(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """Rank of each piece by its score, best first."""
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(score, float) for score in scores):
        raise fault(header, "tokenizer.ggml.scores does not give one number to each token")
    found = [(text, score) for text, kind, score in zip(tokens, kinds, scores, strict=True) if kind == NORMAL]
    if any(later >= earlier for (_, earlier), (_, later) in pairwise(found)):
        raise fault(header, "the tokens' scores do not fall from one to the next as SentencePiece's BPE has it: not supported")
    if any(len(text) > MAX_PIECE for text, _ in found):
        raise fault(header, f"a token is longer than {MAX_PIECE} characters")
    return {text: place for place, (text, _) in enumerate(found)}


def _halves(text: str, pieces: dict[str, int]) -> list[int]:
    """Positions at which a text splits into two pieces, the last first."""
    return [cut for cut in range(len(text) - 1, 0, -1) if text[:cut] in pieces and text[cut:] in pieces]


def _has_bytes(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> bool:
    """Whether the vocabulary has tokens for bytes; it must have all 256 or none."""
    found = {text for text, kind in zip(tokens, kinds, strict=True) if kind == BYTE}
    if found and found != set(_BYTES):
        raise fault(header, f"{len(found)} tokens stand for bytes; <0x00> to <0xFF> are possible")
    return bool(found)


def _add(tokenizer: Tokenizer, architecture: str, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Adds control and user-defined tokens, which are found in text before it is split."""
    control, own = [], []
    for text, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, UNKNOWN) or (kind == USER_DEFINED and text in _TURNS):
            bare = architecture == "phi3" and text not in _PHI3_PLAIN  # Phi-3's tokens absorb the white space after them
            control.append(AddedToken(text, special=True, normalized=False, rstrip=bare))
        elif kind == USER_DEFINED:
            own.append(AddedToken(text, special=False, normalized=SPACE in text))
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(own)


# Control tokens that end an answer, in addition to the file's eos
_ENDINGS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "</s>", "<end_of_turn>")

_KINDS = {"gpt2": byte_level, "llama": sentencepiece}  # by tokenizer.ggml.model


def build_tokenizer(header: GgufHeader) -> Tokenizer:
    """The tokenizer of the file.

    Raises:
        ModelLoadError: Its kind is unknown, or its lists contradict each other.
    """
    kind = header.metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = "'gpt2', byte-level BPE, and 'llama', SentencePiece's BPE"
        raise fault(header, f"a tokenizer of the kind {str(kind)[:60]!r} is not supported (known: {known})")
    return _KINDS[kind](header, *tokens_and_kinds(header))


def tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """Content of tokenizer_config.json: the named tokens, and no clean-up of decoded text."""
    tokens, _ = tokens_and_kinds(header)
    # As in llama.cpp, raw text begins with a bos with SentencePiece and Llama 3
    usual = header.metadata.get("tokenizer.ggml.model") == "llama" or pre_tokenizer_of(header).adds_bos
    named = {
        f"{name}_token": tokens[i]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (i := token_id(header, f"tokenizer.ggml.{key}_token_id", len(tokens))) is not None
    }
    return {
        **named,
        "add_bos_token": bool(header.metadata.get("tokenizer.ggml.add_bos_token", usual)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": header.metadata.get(f"{header.architecture}.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",  # the model's own class would split text by its own rules
    }


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """Content of generation_config.json: ids of bos, eos (one or several) and pad."""
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
    """Source of the chat template; None where the file has none."""
    template = header.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise fault(header, "tokenizer.chat_template is no text")
    return template
