"""The bytes of every token, kept: what is wrong in the store is put right by the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.workbench.prompt.vocabulary import Vocabulary
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
