"""SentencePiece's BPE (Kudo and Richardson 2018) out of a GGUF's tokens, scores and types, as a `tokenizers` model.

A GGUF has no merges of it: SentencePiece joins the two neighbours whose joint piece has the best score. Its trainer gives
falling scores, so the pieces' order is the merges' order, and every way to cut a piece in two is a merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from runtime.loading.gguf.layout import GgufHeader
from runtime.loading.gguf.lists import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, check_unique
from runtime.loading.gguf.numbers import fault

SPACE = "▁"  # U+2581, in a piece
MAX_PIECE = 512  # characters
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_TURNS = ("<start_of_turn>", "<end_of_turn>")  # Gemma's control tokens, which older files have as a user's own
_UNTOLD = "[INST]"  # as a control token: Mistral's tokenizers from then on put no space behind those, the file does not say so
_PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")


def sentencepiece(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """The tokenizer of a file whose ``tokenizer.ggml.model`` is "llama".

    Raises:
        ModelLoadError: Not one of SentencePiece's BPE, or it changes text in a way that is not supported.
    """
    _refuse_other_text(header)
    prefixed = header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    own = (SPACE, " ") if prefixed else (" ", SPACE)  # a user's own are found before spaces are escaped, or behind that
    spelled = [text.replace(*own) if kind == USER_DEFINED else text for text, kind in zip(tokens, kinds, strict=True)]
    check_unique(header, spelled)
    if any(text == _UNTOLD and kind == CONTROL for text, kind in zip(spelled, kinds, strict=True)):
        raise fault(
            header, f"the control token {_UNTOLD}: whether a space follows it is not in the file; use the model's own folder"
        )
    vocab = {text: i for i, text in enumerate(spelled)}
    pieces = _pieces(header, spelled, kinds)
    fallback = _has_bytes(header, spelled, kinds)
    unknown = [text for text, kind in zip(spelled, kinds, strict=True) if kind == UNKNOWN]
    if len(unknown) != 1 and not (fallback and not unknown):
        raise fault(header, f"{len(unknown)} tokens stand for what is unknown; one is possible")
    model = models.BPE(
        vocab,
        _merges(pieces),
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


def _refuse_other_text(header: GgufHeader) -> None:
    """Files whose text is changed before it is cut; llama's, Mistral's, Phi's and Gemma's is not."""
    for key in ("precompiled_charsmap", "remove_extra_whitespaces"):
        if header.metadata.get(f"tokenizer.ggml.{key}"):
            raise fault(header, f"tokenizer.ggml.{key}: a tokenizer that changes its text is not supported")


def _pieces(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """The pieces that text is cut into, best score first."""
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(score, float) for score in scores):
        raise fault(header, "tokenizer.ggml.scores does not give one number to each token")
    found = [(text, score) for text, kind, score in zip(tokens, kinds, scores, strict=True) if kind == NORMAL]
    if any(later >= earlier for (_, earlier), (_, later) in pairwise(found)):
        raise fault(header, "the tokens' scores do not fall from one to the next as SentencePiece's BPE has it: not supported")
    if any(len(text) > MAX_PIECE for text, _ in found):
        raise fault(header, f"a token is longer than {MAX_PIECE} characters")
    return {text: place for place, (text, _) in enumerate(found)}


def _merges(pieces: dict[str, int]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best first; of one piece's the longest left half first.

    Two cuts of one piece have one score. Where they compete (``aa a aa``) SentencePiece takes the one further left.
    """
    return [(text[:cut], text[cut:]) for text in pieces for cut in _halves(text, pieces)]


def _halves(text: str, pieces: dict[str, int]) -> list[int]:
    """Where a text can be cut into two pieces, the last place first."""
    return [cut for cut in range(len(text) - 1, 0, -1) if text[:cut] in pieces and text[cut:] in pieces]


def _has_bytes(header: GgufHeader, tokens: Sequence[str], kinds: Sequence[int]) -> bool:
    """Whether there is a token for each byte: all or none."""
    found = {text for text, kind in zip(tokens, kinds, strict=True) if kind == BYTE}
    if found and found != set(_BYTES):
        raise fault(header, f"{len(found)} tokens stand for bytes; <0x00> to <0xFF> are possible")
    return bool(found)


def _add(tokenizer: Tokenizer, architecture: str, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Control tokens, and a user's own, which are found in text before it is cut."""
    control, own = [], []
    for text, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, UNKNOWN) or (kind == USER_DEFINED and text in _TURNS):
            bare = architecture == "phi3" and text not in _PHI3_PLAIN  # its tokens take the white space behind them along
            control.append(AddedToken(text, special=True, normalized=False, rstrip=bare))
        elif kind == USER_DEFINED:
            own.append(AddedToken(text, special=False, normalized=SPACE in text))
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(own)
