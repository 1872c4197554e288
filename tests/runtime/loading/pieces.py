"""Small SentencePiece vocabularies, trained with the library itself, and their form in a GGUF file."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import sentencepiece

from tests.runtime.loading.gguf_files import ARRAY, BOOL, F32, I32, STRING, U32, Pair

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SIZE = 1000
# Text with unusual boundaries, which reveals differences
NASTY = (
    "",
    " ",
    "Hello world",
    "  leading, trailing  ",
    "Numbers 12 and 3456,\n\n  tabs\tand 日本語 😀 👩‍👩‍👧",
    "I'll, WE'RE e\u0301te\u0301 \u00e9t\u00e9 \r\n\r\n x",
    "print('a' if x==1 else \"b\")\n\n\n    return…\n",
    "controls \x00\x01\x1f\x7f\u200b\u200d\u2028\ufeff\ufffd and no-break\u00a0\u202f\u3000spaces",
    "one  two   three    four     five      six",
    "=====-----***** aaaaaaaaaaa lllllll ((((",
    "<s> [INST] </s> <unk> <0x41> <0x0A> <|user|> <bos>",
    "▁ already ▁▁ there▁",
    "مرحبا بالعالم नमस्ते Здравствуйте 안녕하세요 𝕏𝟘",
)
LONGEST = 8  # runs of spaces that are one token of Gemma's; the real one has 31
GEMMA_OWN = (
    *("<mask>", "<start_of_turn>", "<end_of_turn>", "\n", "\n\n", "\n\n\n"),
    *("▁" * n for n in range(2, LONGEST + 1)),
    "<table>",
)
PHI3_OWN = ("<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>")


@dataclass(frozen=True)
class Vocabulary:
    """A trained model, and its lists as llama.cpp's converter writes them."""

    model: bytes
    tokens: list[str]
    scores: list[float]
    kinds: list[int]
    prefixed: bool

    @property
    def library(self) -> sentencepiece.SentencePieceProcessor:
        """SentencePiece itself."""
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def pairs(self, **changes: Any) -> tuple[Pair, ...]:
        """The metadata. `changes` replace lists by name."""
        of = {"tokens": self.tokens, "scores": self.scores, "kinds": self.kinds, **changes}
        ids = {"bos": 2, "eos": 1, "unknown": 3} if "<bos>" in self.tokens else {"bos": 1, "eos": 2, "unknown": 0}
        return (
            Pair("tokenizer.ggml.model", STRING, "llama"),
            Pair("tokenizer.ggml.pre", STRING, "default"),
            Pair("tokenizer.ggml.tokens", ARRAY, of["tokens"], STRING),
            Pair("tokenizer.ggml.scores", ARRAY, of["scores"], F32),
            Pair("tokenizer.ggml.token_type", ARRAY, of["kinds"], I32),
            *(Pair(f"tokenizer.ggml.{name}_token_id", U32, i) for name, i in ids.items()),
            *(() if self.prefixed else (Pair("tokenizer.ggml.add_space_prefix", BOOL, 0),)),
        )


@functools.cache
def llama_pieces() -> Vocabulary:
    """Like Llama 2's and Mistral's: a space before the text, single digits, bytes for missing characters."""
    return _listed(_trained(), {}, prefixed=True)


@functools.cache
def gemma_pieces() -> Vocabulary:
    """Like Gemma's: no space before the text; line ends, runs of spaces and tags are user-defined tokens."""
    ids: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    names: dict[str, Any] = {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}
    model = _trained(add_dummy_prefix=False, user_defined_symbols=list(GEMMA_OWN), **ids, **names)
    spelled = {text: text.replace("▁", " ") for text in GEMMA_OWN}  # llama.cpp's converter spells them with spaces
    return _listed(model, spelled, prefixed=False)


@functools.cache
def phi3_pieces() -> Vocabulary:
    """Like Phi-3's: Llama 2's with control tokens after its end, and unused tokens as padding."""
    trained = SIZE - 8
    llama = _listed(_trained(vocab_size=trained), {}, prefixed=True)
    tokens = [*llama.tokens, *PHI3_OWN, *(f"[PAD{i}]" for i in range(trained + 4, SIZE))]
    scores = [*llama.scores, *[-1000.0] * 4, *[-10000.0] * 4]
    return Vocabulary(llama.model, tokens, scores, [*llama.kinds, *[CONTROL] * 4, *[UNUSED] * 4], prefixed=True)


@functools.cache
def training_text() -> str:
    """CPython's documentation, which the tiny models' own tokenizer is trained on too."""
    from pydoc_data import topics

    return "".join(topics.topics[key] for key in sorted(topics.topics))[:200_000]


def random_texts(count: int) -> list[str]:
    """Words of the training text, and characters at which pieces end."""
    draw = np.random.default_rng(5)
    words, signs = training_text().split(" "), list("abcdeo=-_ \n\t .,()é日😀\u0301\x00<s>aaaa     ****#")
    texts = []
    for n in range(count):
        if n % 2:
            texts.append(" ".join(draw.choice(words, draw.integers(1, 20))))
        else:
            texts.append("".join(sign * int(draw.integers(1, 9)) for sign in draw.choice(signs, draw.integers(1, 20))))
    return texts


def _trained(vocab_size: int = SIZE, **changes: Any) -> bytes:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_text().splitlines()),
        model_writer=buffer,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        num_threads=1,
        minloglevel=2,
        **changes,
    )
    return buffer.getvalue()


def _listed(model: bytes, own: dict[str, str], *, prefixed: bool) -> Vocabulary:
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokens, scores, kinds = [], [], []
    for i in range(library.get_piece_size()):
        text = library.id_to_piece(i)
        tests = ((text in own, USER_DEFINED), (library.is_unknown(i), UNKNOWN), (library.is_control(i), CONTROL))
        kinds.append(next((kind for holds, kind in (*tests, (library.is_byte(i), BYTE)) if holds), NORMAL))
        tokens.append(own.get(text, text))
        scores.append(-1000.0 if text in own else library.get_score(i))
    return Vocabulary(model, tokens, scores, kinds, prefixed)
