from __future__ import annotations

import pytest

from tests.tiny_models import BUILDERS, SPECIALS, VOCABULARY, tiny_folder, tiny_tokenizer


def test_the_tokenizer_round_trips_any_text() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert [tokenizer.token_to_id(text) for text in SPECIALS] == [0, 1, 2]
    for text in ("class Foo(Base):\n    pass", "naïve 🙂 去巴黎", "\x00\t\r\n  1. item"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", BUILDERS)
def test_a_folder_is_complete_and_built_once(name: str) -> None:
    folder = tiny_folder(name)
    stamp = (folder.path / "model.safetensors").stat().st_mtime_ns
    assert tiny_folder(name).weights_digest == folder.weights_digest
    assert (folder.path / "model.safetensors").stat().st_mtime_ns == stamp
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder.path / file).is_file()
    assert folder.config["vocab_size"] >= VOCABULARY
