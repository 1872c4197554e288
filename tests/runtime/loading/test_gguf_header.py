from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import ModelLoadError
from runtime.loading.gguf.convert import check_gguf
from runtime.loading.gguf.decoder import FAMILIES
from runtime.loading.gguf.header import read_header
from runtime.loading.gguf.tokenizer import PRE_TOKENIZERS
from tests.pages import PAGES
from tests.runtime.loading.gguf_files import SPECIALS, U32, bad_files, small_llama, unsuitable_files

BAD = bad_files()
UNSUITABLE = unsuitable_files()
SEEN_WHILE_CONVERTING = {
    "NaN in the weights",
    "unknown pre-tokenizer",
    "pre-tokenizer that is a list",
    "no pre-tokenizer",
    "SentencePiece without scores",
    "unigram",
    "a kind of tokenizer that is a list",
    "no tokens",
    "too few tokens",
    "a token twice",
    "types of another length",
    "unknown token type",
    "merge of unknown tokens",
    "merge of one token",
    "eos beyond the vocabulary",
    "template that is a number",
}


def test_all_metadata_and_tensors_of_a_sound_file_are_read(tmp_path: Path) -> None:
    # given
    file = small_llama()
    # when
    header = read_header(file.write(tmp_path / "good.gguf"))
    # then
    assert header.architecture == "llama"
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.tokens"][:3] == list(SPECIALS)
    assert header.metadata["tokenizer.ggml.add_bos_token"] is False
    whole = (tmp_path / "good.gguf").read_bytes()
    for tensor in file.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tensor.shape
        assert whole[info.offset : info.offset + info.nbytes] == tensor.data


def test_a_different_alignment_is_respected(tmp_path: Path) -> None:
    # given
    import dataclasses

    file = dataclasses.replace(small_llama().with_pair("general.alignment", U32, 256), alignment=256)
    # when
    header = read_header(file.write(tmp_path / "wide.gguf"))
    # then
    assert {info.offset % 256 for info in header.tensors.values()} == {0}


def test_there_are_at_least_36_damaged_gguf_files() -> None:
    assert len(BAD) >= 36


@pytest.mark.parametrize("what", BAD)
def test_a_damaged_gguf_file_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    # given
    path = tmp_path / "spoiled.gguf"
    path.write_bytes(BAD[what])
    # when
    with pytest.raises(ModelLoadError) as refused:
        read_header(path)
    # then
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == BAD[what]


@pytest.mark.parametrize("content", [b"GGUF", b"GGUFxxxx", b"GGUF" + b"\0" * 19])
def test_a_file_shorter_than_its_header_is_reported_as_truncated(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError) as refused:
        read_header(path)
    assert str(refused.value) == (
        f"{path}: a GGUF file cut short: {len(content)} bytes, its header alone has 24; fetch it again"
    )


@pytest.mark.parametrize("what", sorted(UNSUITABLE.keys() - SEEN_WHILE_CONVERTING))
def test_a_sound_file_of_an_unsupported_kind_is_refused_before_conversion(what: str, tmp_path: Path) -> None:
    # given
    path = UNSUITABLE[what].write(tmp_path / "other.gguf")
    read_header(path)
    # when, then
    with pytest.raises(ModelLoadError, match=r"other\.gguf"):
        check_gguf(path)


def test_the_error_for_an_unsupported_architecture_names_the_supported_ones(tmp_path: Path) -> None:
    path = UNSUITABLE["another architecture"].write(tmp_path / "other.gguf")
    with pytest.raises(
        ModelLoadError, match="'mamba' cannot be imported from GGUF; llama, qwen2, qwen3, phi3, gemma2, gemma3 "
    ):
        check_gguf(path)


def test_the_documentation_names_the_supported_families_and_pre_tokenizers() -> None:
    told = PAGES["docs/models.md"]
    for name in (*FAMILIES, *PRE_TOKENIZERS):
        assert f"`{name}`" in told, name


def test_a_device_is_refused_without_reading(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="it is a device; only regular files are read"):
        read_header(Path("/dev/null"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"gone\.gguf: cannot be read"):
        read_header(tmp_path / "gone.gguf")
