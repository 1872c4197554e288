"""Byte-level BPE of GGUF files: text is cut as the models' own tokenizers cut it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import pre_tokenizers

from runtime.loading.gguf.convert import check_gguf
from runtime.loading.gguf.header import GgufHeader
from runtime.loading.gguf.tokenizer import PRE_TOKENIZERS, build_tokenizer, tokenizer_config
from runtime.text.tokenizer import Tokenizer
from tests.runtime.loading.gguf_files import BOOL, STRING, small_llama
from tests.runtime.loading.pieces import NASTY, random_texts
from tests.tiny_models import tiny_tokenizer

TEXTS = (
    *NASTY,
    "camelCaseWords ABCdef HTTPServer ǅungla ñandú ÑANDÚ 1st 22nd 4444 55555",
    "https://example.org/a/b?c=d&e=f//g path\\to\\file -->\n\n/// **bold**\r\n",
    "don't DON'T they'RE it'Ll 'tis 's ٣٤٥ ⅷ ½ x² 日本語日本 한국 e\u0301 \u0301",
)
LAYOUT: dict[str, Any] = json.loads(tiny_tokenizer().to_str())["model"]
MERGES = [merge if isinstance(merge, str) else " ".join(merge) for merge in LAYOUT["merges"]]


def ours(pre: str) -> RawTokenizer:
    """The tokenizer that an import would write, over the tiny models' vocabulary."""
    return build_tokenizer(dataclasses.replace(_header(), metadata={**_header().metadata, "tokenizer.ggml.pre": pre}))


def _header() -> Any:
    tokens = sorted(LAYOUT["vocab"], key=LAYOUT["vocab"].__getitem__)
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": MERGES,
    }
    embedding: Any = SimpleNamespace(shape=(len(tokens), 8))
    return GgufHeader(Path("tiny.gguf"), metadata, {"token_embd.weight": embedding}, 0)


def theirs(pre: str) -> RawTokenizer:
    """The library's own: classes of the models where it has them, else its own reading of such a file."""
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    merges = [tuple(merge.split(" ")) for merge in MERGES]
    if pre == "qwen2":
        found: RawTokenizer = Qwen2Tokenizer(LAYOUT["vocab"], merges).backend_tokenizer
    elif pre in ("llama-bpe", "llama3", "llama-v3"):
        found = _llama3(TikTokenConverter).converted()
    elif pre == "smollm":
        found = convert_gguf_tokenizer("llama", _lists("gpt-2"))[0]
        found.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), found.pre_tokenizer])
    else:
        found = convert_gguf_tokenizer("llama", _lists(pre))[0]
    found.encode_special_tokens = True
    return found


def _lists(pre: str) -> dict[str, Any]:
    tokens = sorted(LAYOUT["vocab"], key=LAYOUT["vocab"].__getitem__)
    return {"tokens": tokens, "merges": MERGES, "tokenizer_type": "gpt2", "pre_tokenizer_type": pre}


def _llama3(base: Any) -> Any:
    """Transformers' converter of Llama 3's own file, which is read by a library that is not needed for this."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    spelled = {char: byte for byte, char in bytes_to_unicode().items()}
    ranks = {bytes(spelled[char] for char in token): i for token, i in LAYOUT["vocab"].items() if not token.startswith("<|")}
    return type("Converter", (base,), {"load_tiktoken_bpe": staticmethod(lambda url: ranks)})("")


@pytest.fixture(scope="module", params=PRE_TOKENIZERS)
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, RawTokenizer]:
    return Tokenizer(ours(request.param)), theirs(request.param)


@pytest.mark.sampled(1)
def test_text_is_cut_as_the_models_own_tokenizer_cuts_it(both: tuple[Tokenizer, RawTokenizer]) -> None:
    mine, library = both
    for text in (*TEXTS, *random_texts(60)):
        assert mine.encode(text) == library.encode(text, add_special_tokens=False).ids, text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_is_cut_as_llama_3s(text: str) -> None:
    assert _LLAMA[0].encode(text) == _LLAMA[1].encode(text, add_special_tokens=False).ids


_LLAMA = (Tokenizer(ours("llama-bpe")), theirs("llama-bpe"))


def test_no_two_ways_to_cut_are_the_same() -> None:
    """Else one of them could be taken for another and no test would see it."""
    different = {cut: tuple(tuple(cut.build().pre_tokenize_str(text)) for text in TEXTS) for cut in PRE_TOKENIZERS.values()}
    assert len({(parts, cut.composed, cut.whole) for cut, parts in different.items()}) == len(different)


def test_a_piece_that_is_a_token_is_that_token_whatever_the_merges_make_of_it() -> None:
    """Llama 3 has tokens that no merge leads to."""
    for pre, expected in (("llama-bpe", ["hello"]), ("smollm", ["he", "l", "l", "o"])):
        file = small_llama().with_pair("tokenizer.ggml.pre", STRING, pre)
        tokens = next(pair.value for pair in file.pairs if pair.key == "tokenizer.ggml.tokens")
        header = _header()
        lists = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["h e"], "tokenizer.ggml.pre": pre}
        lists["tokenizer.ggml.token_type"] = [1] * len(tokens)
        header.tensors["token_embd.weight"].shape = (len(tokens), 8)
        built = build_tokenizer(dataclasses.replace(header, metadata={**header.metadata, **lists}))
        assert built.encode("hello").tokens == expected


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("smollm", False), ("qwen2", False), ("tekken", False)])
def test_a_bos_comes_first_as_llama_cpp_has_it_where_the_file_is_silent(pre: str, adds: bool, tmp_path: Path) -> None:
    silent = small_llama().without("tokenizer.ggml.add_bos_token").with_pair("tokenizer.ggml.pre", STRING, pre)
    said = silent.with_pair("tokenizer.ggml.add_bos_token", BOOL, int(not adds))
    found = [
        tokenizer_config(check_gguf(file.write(tmp_path / "tiny.gguf")).header)["add_bos_token"] for file in (silent, said)
    ]
    assert found == [adds, not adds]
