from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import InvalidRequestError, ModelLoadError, UnsupportedFeatureError
from runtime.loading.model_folder import open_folder
from runtime.text.tokenizer import Tokenizer, spelling_of
from tests.runtime.text.tokenizers_made import byte_level, folder_of, metaspace, sentencepiece, wordpiece
from tests.tiny_models import tiny_path

MAKERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "sentencepiece": sentencepiece,
    "wordpiece": wordpiece,
}
SHARED = Tokenizer(byte_level())


@pytest.mark.parametrize("name", MAKERS)
def test_the_spelling_is_recognised(name: str) -> None:
    assert spelling_of(MAKERS[name]()) == name


def test_a_metaspace_vocabulary_is_sentencepieces() -> None:
    assert spelling_of(metaspace()) == "sentencepiece"


@given(st.text())
def test_byte_level_text_survives_the_round_trip(text: str) -> None:
    ids = SHARED.encode(text)
    assert b"".join(map(SHARED.token_bytes, ids)) == text.encode()
    assert SHARED.decode(ids) == text
    assert not SHARED.special_ids.intersection(ids)


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF)))
def test_any_string_is_tokenised_without_a_crash(text: str) -> None:
    SHARED.encode(text)
    SHARED.encode(text, special=True)


def test_every_byte_has_a_token() -> None:
    assert {bytes([byte]) for byte in range(256)} <= set(SHARED.byte_vocab())


def test_sentencepiece_bytes_are_exact() -> None:
    # given
    tokenizer = Tokenizer(sentencepiece())
    # when
    ids = tokenizer.encode("a b 日é\x00")
    # then
    assert b"".join(map(tokenizer.token_bytes, ids)) == " a b 日é\x00".encode()
    assert tokenizer.token_bytes(3 + 0xE9) == b"\xe9"
    assert tokenizer.str_vocab()[3 + 0xE9] == "<0xE9>"
    assert tokenizer.str_vocab()[3 + 0x41] == "A"


def test_wordpiece_words_begin_with_a_space() -> None:
    tokenizer = Tokenizer(wordpiece())
    assert tokenizer.byte_vocab() == [b" <unk>", b" ab", b"c"]


def test_added_tokens_are_their_text() -> None:
    vocabulary = SHARED.byte_vocab()
    assert vocabulary[SHARED.added["über all"]] == "über all".encode()
    assert vocabulary[SHARED.special["</s>"]] == b"</s>"


def test_vocabularies_are_as_wide_as_the_logits() -> None:
    n = len(SHARED)
    assert SHARED.byte_vocab(n + 3)[-4:] == [*SHARED.byte_vocab()[-1:], b"", b"", b""]
    assert SHARED.byte_vocab(n - 1) == SHARED.byte_vocab()[:-1]
    assert len(SHARED.str_vocab(n + 3)) == n + 3
    assert SHARED.token_bytes(n + 1) == b""
    with pytest.raises(InvalidRequestError, match="-1 is negative"):
        SHARED.token_bytes(-1)


def test_content_never_becomes_a_control_token() -> None:
    # when
    plain, control = SHARED.encode("ab</s>ab"), SHARED.encode("ab</s>ab", special=True)
    # then
    assert SHARED.special["</s>"] not in plain
    assert SHARED.special["</s>"] in control
    assert SHARED.decode(plain) == SHARED.decode(control) == "ab</s>ab"


def test_a_unigram_models_control_tokens_are_no_pieces_of_text() -> None:
    # given
    tokenizer = Tokenizer(metaspace())
    # when
    ids = tokenizer.encode("a</s>b \u2603")
    # then
    assert tokenizer.special["</s>"] not in ids
    assert tokenizer.decode(ids) == " a</s>b <unk>"


def test_two_threads_do_not_disturb_each_other() -> None:
    # given
    wrong: list[bool] = []

    def encode(special: bool) -> None:
        for _ in range(500):
            found = SHARED.special["</s>"] in SHARED.encode("ab</s>", special=special)
            if found != special:
                wrong.append(special)

    threads = [threading.Thread(target=encode, args=(special,)) for special in (True, False)]
    # when
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # then
    assert wrong == []


def test_what_ends_a_text_is_gathered_from_all_files(tmp_path: Path) -> None:
    # given
    folder = folder_of(
        tmp_path / "m", byte_level(), generation_config={"eos_token_id": [7, 1]}, config={"eos_token_id": 2, "vocab_size": 10}
    )
    # when
    tokenizer = Tokenizer.from_folder(folder)
    # then
    assert tokenizer.eos_token_ids == (7, 1, 2)
    assert (tokenizer.bos_token_id, tokenizer.adds_bos) == (0, False)


@pytest.mark.parametrize("value", [None, [], [None], "</s>", -1, 10**9, [True]])
def test_an_eos_that_is_no_id_is_passed_over(value: object, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", byte_level(), generation_config={"eos_token_id": value})
    assert Tokenizer.from_folder(folder).eos_token_ids == (1,)


def test_whether_a_bos_belongs_in_front(tmp_path: Path) -> None:
    named = {"bos_token": "<s>"}
    by_itself = folder_of(tmp_path / "a", sentencepiece(), tokenizer_config=named)
    told_not_to = folder_of(tmp_path / "b", sentencepiece(), tokenizer_config={**named, "add_bos_token": False})
    told_to = folder_of(tmp_path / "c", byte_level(), tokenizer_config={**named, "add_bos_token": True})
    has_none = folder_of(tmp_path / "d", byte_level(), tokenizer_config={"add_bos_token": True})
    # then
    made = [Tokenizer.from_folder(folder) for folder in (by_itself, told_not_to, told_to, has_none)]
    assert [tokenizer.adds_bos for tokenizer in made] == [True, False, True, False]
    assert [tokenizer.encode("a")[0] == 0 for tokenizer in made] == [False] * 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        '{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}',
        byte_level().to_str().replace('"ByteLevel"', '"Nonsense"'),
        byte_level().to_str().replace('"ab":259', '"ab":4000000000'),
    ],
)
def test_a_tokenizer_that_is_none_is_one_clear_error(text: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", text)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json") as refused:
        Tokenizer.from_folder(folder)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_that_panics_is_one_clear_error(tmp_path: Path) -> None:
    # given: a pattern the library panics on, a BaseException that `except Exception` misses
    import json

    layout = json.loads(byte_level().to_str())
    layout["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(?<=a+)(b"},
        "behavior": "Isolated",
        "invert": False,
    }
    # when, then
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: not a usable tokenizer"):
        Tokenizer.from_folder(folder_of(tmp_path / "m", json.dumps(layout)))


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", byte_level())
    (tmp_path / "m" / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(folder)


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path / "m", backend))
    assert len(tokenizer.encode("x" * 6)) == 6


def test_a_transformers_tokenizer_is_copied() -> None:
    # given
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tiny_path("llama"))
    # when
    ours = Tokenizer.from_transformers(theirs, eos_token_ids=[2, 0])
    theirs.add_tokens(["later"])
    # then
    folder = Tokenizer.from_folder(open_folder(tiny_path("llama")))
    text = "In the beginning, 123 <|im_end|> 日本"
    assert ours.encode(text, special=True) == folder.encode(text, special=True) == theirs.encode(text)
    assert ours.encode(text) == folder.encode(text)
    assert (ours.eos_token_ids, ours.bos_token_id, ours.adds_bos) == ((2, 0), 0, False)
    assert ours.byte_vocab() == folder.byte_vocab()


def test_a_tokenizer_without_a_fast_backend_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="object has no fast tokenizer behind it"):
        Tokenizer.from_transformers(object())
