"""SentencePiece vocabularies of GGUF files: the ids of SentencePiece itself, and of transformers where control tokens are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import ModelLoadError
from runtime.loading.gguf.convert import check_gguf
from runtime.loading.gguf.tokenizer import build_tokenizer, generation_config, tokenizer_config
from runtime.shelf.importing import import_model
from runtime.text.tokenizer import Tokenizer
from tests.runtime.loading.as_gguf import as_gguf
from tests.runtime.loading.gguf_files import ARRAY, BOOL, STRING, U32, GgufFile, Pair, small_llama, stored
from tests.runtime.loading.pieces import (
    CONTROL,
    GEMMA_OWN,
    LONGEST,
    NASTY,
    NORMAL,
    UNKNOWN,
    UNUSED,
    Vocabulary,
    gemma_pieces,
    llama_pieces,
    phi3_pieces,
    random_texts,
)
from tests.runtime.loading.test_families import made

KINDS = {"llama": llama_pieces, "gemma": gemma_pieces}


def file_of(pairs: Sequence[Pair], size: int) -> GgufFile:
    """A small llama of this vocabulary."""
    import numpy as np

    good = small_llama()
    own = tuple(pair for pair in good.pairs if not pair.key.startswith("tokenizer.ggml."))
    embedding = stored("token_embd.weight", np.zeros((size, 64), np.float32))
    return dataclasses.replace(good, pairs=(*own, *pairs), tensors=(embedding, *good.tensors[1:]))


def built(vocabulary: Vocabulary, path: Path, architecture: str = "llama") -> Tokenizer:
    header = check_gguf(file_of(vocabulary.pairs(), len(vocabulary.tokens)).write(path / "tiny.gguf")).header
    if architecture != "llama":
        header = dataclasses.replace(header, metadata={**header.metadata, "general.architecture": architecture})
    return Tokenizer(build_tokenizer(header), special_texts={"unk_token": "<unk>"})


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Vocabulary]:
    vocabulary = KINDS[request.param]()
    return built(vocabulary, tmp_path_factory.mktemp("pieces")), vocabulary


@pytest.mark.slow
def test_text_becomes_the_ids_of_sentencepiece(pair: tuple[Tokenizer, Vocabulary]) -> None:
    ours, vocabulary = pair
    library = vocabulary.library
    for text in (*NASTY, *random_texts(300)):
        assert ours.encode(text) == library.encode(text), text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_becomes_the_ids_of_sentencepiece(text: str) -> None:
    for of_kind in KINDS.values():
        assert _cached(of_kind).encode(text) == of_kind().library.encode(text)


@pytest.mark.slow
@given(st.text(st.sampled_from("ab ▁\n=el."), max_size=60))
def test_few_characters_in_any_order_become_the_ids_of_sentencepiece(text: str) -> None:
    for of_kind in KINDS.values():
        assert _cached(of_kind).encode(text) == of_kind().library.encode(text)


def test_the_bytes_of_tokens_are_the_text_again(pair: tuple[Tokenizer, Vocabulary]) -> None:
    ours, vocabulary = pair
    for text in NASTY:
        before = " " if vocabulary.prefixed and text else ""
        assert ours.decode(ours.encode(text)) == before + text.replace("▁", " ")


def test_gemmas_runs_of_spaces_and_lines_are_one_token(tmp_path: Path) -> None:
    ours, tokens = built(gemma_pieces(), tmp_path), gemma_pieces().tokens
    assert ours.encode("a    b\n\n\nc<table>") == [tokens.index(text) for text in ("a", "    ", "b", "\n\n\n", "c", "<table>")]
    assert ours.token_bytes(tokens.index("    ")) == b"    "


def test_turns_are_control_tokens_whatever_the_file_calls_them(tmp_path: Path) -> None:
    ours, tokens = built(gemma_pieces(), tmp_path), gemma_pieces().tokens
    assert {"<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"} <= ours.special.keys()
    assert ours.encode("<end_of_turn>", special=True) == [tokens.index("<end_of_turn>")]
    assert tokens.index("<end_of_turn>") not in ours.encode("<end_of_turn>")  # of a text that a person wrote


def theirs_of(architecture: str, vocabulary: Vocabulary) -> Any:
    """Transformers' own reading of such a file; its phi3 is Llama 2's as well."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    lists = {"tokens": vocabulary.tokens, "scores": vocabulary.scores, "token_type": vocabulary.kinds}
    return convert_gguf_tokenizer(architecture, {**lists, "tokenizer_type": "llama"})[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "templates"),
    [
        ("llama", ["{}", "<s>[INST] {} [/INST]", "<s> {}</s><s>{} </s>", "{}</s>\n{}"]),
        ("gemma", ["{}", "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n", "<bos> {}<eos>{}"]),
    ],
)
def test_rendered_templates_become_the_ids_of_transformers(kind: str, templates: list[str], tmp_path: Path) -> None:
    ours = built(KINDS[kind](), tmp_path)
    theirs = theirs_of({"llama": "phi3", "gemma": "gemma2"}[kind], KINDS[kind]())
    for template in templates:
        for text in (*NASTY, *random_texts(40)):
            whole = template.format(text, text)
            longer = (
                " " * (LONGEST + 1) in whole
            )  # where that reading starts from the shortest run, SentencePiece from the longest
            if "<unk>" not in text and not longer:  # <unk>: a control token in Llama's own folder and here, plain text there
                assert ours.encode(whole, special=True) == theirs.encode(whole, add_special_tokens=False).ids, whole


def test_phi3s_are_transformers_own_reading_of_such_a_file(tmp_path: Path) -> None:
    ours, theirs = built(phi3_pieces(), tmp_path, "phi3"), theirs_of("phi3", phi3_pieces())
    for text in (*NASTY, *random_texts(40)):
        if "<" not in text:
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text


def test_phi3s_control_tokens_take_the_space_behind_them_along(tmp_path: Path) -> None:
    """As Phi-3's own tokenizer.json says, and llama.cpp does for it; the file itself is silent."""
    ours, tokens = built(phi3_pieces(), tmp_path, "phi3"), phi3_pieces().tokens
    (user, end) = (tokens.index("<|user|>"), tokens.index("<|end|>"))
    hello = ours.encode("Hello")
    assert ours.encode("<|user|>\nHello<|end|>\n \n", special=True) == [user, *hello, end]
    assert ours.encode("<s> Hello", special=True) == [1, *ours.encode(" Hello")]


@pytest.mark.parametrize(("said", "adds"), [((), True), ((Pair("tokenizer.ggml.add_bos_token", BOOL, 0),), False)])
def test_a_bos_comes_first_unless_the_file_says_no(said: tuple[Pair, ...], adds: bool, tmp_path: Path) -> None:
    pieces = llama_pieces()
    header = check_gguf(file_of((*pieces.pairs(), *said), len(pieces.tokens)).write(tmp_path / "tiny.gguf")).header
    assert tokenizer_config(header)["add_bos_token"] is adds
    assert (tokenizer_config(header)["bos_token"], tokenizer_config(header)["unk_token"]) == ("<s>", "<unk>")
    assert generation_config(header) == {"bos_token_id": 1, "eos_token_id": [2]}


def test_an_ending_counts_though_it_is_called_a_users_own(tmp_path: Path) -> None:
    pieces = gemma_pieces()
    header = check_gguf(file_of(pieces.pairs(), len(pieces.tokens)).write(tmp_path / "tiny.gguf")).header
    assert generation_config(header)["eos_token_id"] == [1, 4 + GEMMA_OWN.index("<end_of_turn>")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama, mistral", llama_pieces),
        pytest.param("phi3", phi3_pieces, marks=pytest.mark.slow),
        pytest.param("gemma3", gemma_pieces, marks=pytest.mark.slow),
    ],
)
def test_an_imported_folder_has_that_tokenizer(name: str, kind: Callable[[], Vocabulary], shelf: Path, tmp_path: Path) -> None:
    # given
    from transformers import AutoTokenizer

    original = made(name, tmp_path / "original")
    # when
    folder = import_model(as_gguf(original, tmp_path / "tiny.gguf", vocabulary=kind().pairs()))
    # then
    ours, theirs, library = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder.path), kind().library
    assert ours.adds_bos
    assert ours.eos_token_ids[0] == library.eos_id()
    for text in NASTY:
        assert ours.encode(text) == library.encode(text)
        if "<" not in text:
            assert theirs.encode(text, add_special_tokens=False) == library.encode(text)


def _spoiled() -> dict[str, tuple[tuple[Pair, ...], str]]:
    llama = llama_pieces()
    scores, kinds, tokens = llama.scores, llama.kinds, llama.tokens
    first = kinds.index(NORMAL)
    level = [*scores[: first + 1], scores[first], *scores[first + 2 :]]
    return {
        "scores that do not fall": (llama.pairs(scores=level), "do not fall"),
        "scores too few": (llama.pairs(scores=scores[:-1]), "one number to each token"),
        "no scores": (tuple(p for p in llama.pairs() if not p.key.endswith("scores")), "one number to each token"),
        "a byte missing": (llama.pairs(kinds=[*kinds[:40], NORMAL, *kinds[41:]], scores=scores), "stand for bytes|do not fall"),
        "two for the unknown": (llama.pairs(kinds=[UNKNOWN, UNKNOWN, *kinds[2:]]), "2 tokens stand for what is unknown"),
        "a piece that is not used": (llama.pairs(kinds=[*kinds[:-1], UNUSED]), "is not used, and text would"),
        "an enormous piece": (llama.pairs(tokens=[*tokens[:-1], "a" * 5000]), "longer than 512"),
        "a token twice": (llama.pairs(tokens=[*tokens[:-1], tokens[300]]), "twice"),
        "text changed before": (
            (*llama.pairs(), Pair("tokenizer.ggml.precompiled_charsmap", ARRAY, [1], U32)),
            "changes its text",
        ),
        "spaces taken out": ((*llama.pairs(), Pair("tokenizer.ggml.remove_extra_whitespaces", BOOL, 1)), "changes its text"),
        "Mistral 0.3": (
            llama.pairs(tokens=[*tokens[:-1], "[INST]"], kinds=[*kinds[:-1], CONTROL]),
            r"the control token \[INST\]",
        ),
        "unigram": (tuple(p if p.key != "tokenizer.ggml.model" else Pair(p.key, STRING, "t5") for p in llama.pairs()), "'t5'"),
    }


@pytest.mark.parametrize("what", _spoiled())
def test_what_is_not_sentencepieces_bpe_is_refused(what: str, tmp_path: Path) -> None:
    pairs, complaint = _spoiled()[what]
    header = check_gguf(file_of(pairs, len(llama_pieces().tokens)).write(tmp_path / "tiny.gguf")).header
    with pytest.raises(ModelLoadError, match=complaint) as refused:
        build_tokenizer(header)
    assert "tiny.gguf" in str(refused.value)


_BUILT: dict[Callable[[], Vocabulary], Tokenizer] = {}


def _cached(of_kind: Callable[[], Vocabulary]) -> Tokenizer:
    if of_kind not in _BUILT:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            _BUILT[of_kind] = built(of_kind(), Path(folder))
    return _BUILT[of_kind]
