"""The bytes of every token, kept in the store so that alternatives can be shown without an engine."""

from __future__ import annotations

from collections.abc import Sequence

from runtime import LanguageModel
from storage import SessionStore, StoreDamagedError, vocabulary_digest

SETTING = "vocabulary"  # the digest of the one used last


class Vocabulary:
    """Bytes by id, of the model that was used last."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._tokens: list[bytes] = []
        self._of: str | None = None

    def bytes_of(self, token_id: int) -> bytes:
        """Empty where the vocabulary is not known."""
        return self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""

    def holding(self, sought: Sequence[int | str] | None) -> tuple[int, ...]:
        """The ids among `sought`, and those of all tokens that contain one of its texts."""
        texts = [each.encode() for each in sought or () if isinstance(each, str)]
        found = {token for token, data in enumerate(self._tokens) if any(text in data for text in texts)}
        return tuple(sorted(found | {each for each in sought or () if isinstance(each, int)}))

    async def load(self) -> None:
        """Reads the one that was used last, if none is there yet."""
        if not self._tokens:
            digest = await self._store.setting(SETTING)
            self._tokens = (await self._store.vocabulary(digest) if isinstance(digest, str) else None) or []

    async def learn(self, model: LanguageModel) -> None:
        """Takes the model's, and saves it for later."""
        if self._of == model.info.model_fingerprint:
            return
        self._tokens = model.byte_vocab
        self._of = model.info.model_fingerprint
        digest = vocabulary_digest(self._tokens)
        if await self._held(digest) != self._tokens:  # nothing is there, it is damaged, or something else was planted
            await self._store.save_vocabulary(digest, self._tokens)
        info = model.info
        known = {"name": info.name, "model_fingerprint": info.model_fingerprint, "vocabulary": digest}
        if await self._store.model(info.kv_fingerprint) != known:  # so that whoever opens the session elsewhere can find it
            await self._store.save_model(info.kv_fingerprint, known)
        await self._store.set_setting(SETTING, digest)

    async def _held(self, digest: str) -> list[bytes] | None:
        try:
            return await self._store.vocabulary(digest)
        except StoreDamagedError:
            return None
