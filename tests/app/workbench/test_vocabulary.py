"""The stored bytes of every token: damage in the store is repaired by the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.workbench.prompt.vocabulary import SETTING, TokenBytes, Vocabulary
from storage import SessionStore, vocabulary_digest
from tests.fakes import fake_model
from tests.storage.helpers import sql, with_store


@pytest.mark.parametrize("damage", ["planted", "damaged"])
def test_a_wrong_vocabulary_is_replaced(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "sessions.sqlite3"
    with fake_model() as model:
        tokens: Sequence[bytes] = model.byte_vocab
        digest = vocabulary_digest(tokens)

        async def plant(store: SessionStore) -> None:
            await store.save_vocabulary(digest, [b"x"] * len(tokens))

        async def learn(store: SessionStore) -> None:
            await Vocabulary(store).learn(model)
            assert await store.vocabulary(digest) == tokens

        with_store(path, plant)
        if damage == "damaged":
            sql(path, "UPDATE vocabularies SET sha256 = x'00'")
        with_store(path, learn)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE vocabularies SET tokens = x'90'",
        "UPDATE models SET info = '{}'",
        "UPDATE settings SET value = '0' WHERE key = 'vocabulary'",
        "UPDATE settings SET value = '0' WHERE key = 'ran'",
    ],
)
def test_a_damaged_vocabulary_is_ignored_and_saved_again_by_the_model(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "sessions.sqlite3"
    with fake_model() as model:

        async def learn(store: SessionStore) -> None:
            vocabulary = Vocabulary(store)
            await vocabulary.load()
            await vocabulary.learn(model)
            assert vocabulary.is_known
            assert await store.verify() == []

        with_store(path, learn)
        sql(path, damage)
        with_store(path, learn)


def test_tokens_are_found_by_their_text() -> None:
    found = TokenBytes([b"rain", b" Rain", b"ing", b" train", b"rainbow", b" rains", b"\xff"])
    assert found.containing("rain", 9) == (0, 1, 5, 4, 3)
    assert found.containing("RAIN", 2) == (0, 1)
    assert found.containing(" rain", 9) == (1, 5)
    assert found.containing("", 9) == found.containing("snow", 9) == ()


def test_the_vocabulary_is_lowercased_once_for_each_model(tmp_path: Path) -> None:
    lowered: list[bytes] = []

    class Counted(bytes):
        def lower(self) -> bytes:
            lowered.append(self)
            return super().lower()

    found = TokenBytes([Counted(b"Rain"), Counted(b"ing")])
    assert found.containing("r", 9) == found.containing("ra", 9) == (0,)
    assert lowered == [b"Rain", b"ing"]

    async def learn(store: SessionStore) -> None:
        digest = vocabulary_digest([b"planted"])
        await store.save_vocabulary(digest, [b"planted"])
        await store.set_setting(SETTING, digest)
        vocabulary = Vocabulary(store)
        assert vocabulary.containing("planted", 1) == ()
        await vocabulary.load()
        assert vocabulary.containing("planted", 1) == (0,)
        with fake_model() as model:
            await vocabulary.learn(model)
        assert vocabulary.containing("planted", 1) == ()

    with_store(tmp_path / "sessions.sqlite3", learn)
