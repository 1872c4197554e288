"""The bytes of every token, saved so that alternatives can be shown without an engine."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.workbench.refusals import intact
from app.workbench.setup.session_adapters import AdaptedModel, Stack
from runtime import LanguageModel, SessionConfig
from storage import SessionStore, vocabulary_digest
from ui import Refusal, translate

SETTING = "vocabulary"  # the setting with the digest of the last vocabulary
RAN: Final = "ran"  # the setting with the fingerprints of the models that were loaded here, oldest first
MOST_RAN: Final = 1_000


class TokenBytes:
    """Bytes by id, and back."""

    def __init__(self, tokens: list[bytes]) -> None:
        self._take(tokens)

    def _take(self, tokens: list[bytes]) -> None:
        self._tokens = tokens
        self._lowered: list[bytes] = []  # filled by the first search

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token; empty if the vocabulary is not known."""
        return self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""

    @property
    def is_known(self) -> bool:
        """Whether a vocabulary is loaded."""
        return bool(self._tokens)

    def ids_of(self, text: str) -> tuple[int, ...]:
        """The tokens that are exactly a text."""
        wanted = text.encode()
        return tuple(token for token, data in enumerate(self._tokens) if data == wanted and wanted)

    def longest_start(self, text: str) -> bytes:
        """The longest token that a text begins with; empty if there is none."""
        wanted = text.encode()
        return max((data for data in self._tokens if data and wanted.startswith(data)), key=len, default=b"")

    def containing(self, text: str, most: int) -> tuple[int, ...]:
        """At most `most` tokens that contain a text, ignoring ASCII case: equal ones first, then those that begin with it."""
        wanted = text.lower().encode(errors="replace")
        if not self._lowered:
            self._lowered = [data.lower() for data in self._tokens]
        found = [(token, data) for token, data in enumerate(self._lowered) if wanted in data] if wanted else []

        def order(each: tuple[int, bytes]) -> tuple[bool, bool, int, int]:
            bare = each[1].strip(b" ") if wanted.strip(b" ") == wanted else each[1]
            return bare != wanted, not bare.startswith(wanted), len(bare), each[0]

        return tuple(token for token, _ in heapq.nsmallest(most, found, key=order))

    def holding(self, sought: Sequence[int | str] | None) -> tuple[int, ...]:
        """The ids in `sought`, and those of all tokens that contain one of its texts."""
        texts = [each.encode() for each in sought or () if isinstance(each, str)]
        found = {token for token, data in enumerate(self._tokens) if any(text in data for text in texts)}
        return tuple(sorted(found | {each for each in sought or () if isinstance(each, int)}))


class Vocabulary(TokenBytes):
    """The vocabulary of the model that was used last."""

    def __init__(self, store: SessionStore) -> None:
        super().__init__([])
        self._store = store
        self._of: str | None = None
        self._digest = ""
        self._saved: set[str] = set()  # fingerprints under adapters that the store has

    async def load(self) -> None:
        """Reads the saved vocabulary unless one is loaded; the next model's replaces a damaged one."""
        if not self._tokens:
            digest = await intact(self._store.setting(SETTING))
            self._take((await intact(self._store.vocabulary(digest)) if isinstance(digest, str) else None) or [])

    async def learn(self, model: LanguageModel) -> None:
        """Loads and saves the vocabulary of a model."""
        if self._of == model.info.model_fingerprint:
            return
        self._saved.clear()
        tokens = await model.byte_vocab_async()
        digest = self._digest = await asyncio.to_thread(vocabulary_digest, tokens)
        self._take(tokens)
        self._of = model.info.model_fingerprint
        if await intact(self._store.vocabulary(digest)) != self._tokens:  # missing, damaged or manipulated
            await self._store.save_vocabulary(digest, self._tokens)
        await self._save_facts(model, digest)
        await self._store.set_setting(SETTING, digest)

    async def learn_adapted(self, adapted: AdaptedModel) -> None:
        """Loads the vocabulary, and saves the facts about the fingerprint under the adapters."""
        await self.learn(adapted.model)
        if adapted.fingerprint not in self._saved:
            await self._save_facts(adapted.model, self._digest, adapted)
            self._saved.add(adapted.fingerprint)

    async def _save_facts(self, model: LanguageModel, digest: str, adapted: AdaptedModel | None = None) -> None:
        """Saves the model and manifest behind a fingerprint, so that a session can be continued here and elsewhere."""
        info = model.info
        fingerprint, adapters = (info.kv_fingerprint, ()) if adapted is None else (adapted.fingerprint, adapted.adapters)
        known: dict[str, Any] = {"name": info.name, "model_fingerprint": info.model_fingerprint, "vocabulary": digest}
        known |= {"quantisation": info.quantisation} if info.quantisation else {}
        known["manifest"] = await asyncio.to_thread(_manifest, model, adapters)  # reads the whole vocabulary
        if await intact(self._store.model(fingerprint)) != known:
            await self._store.save_model(fingerprint, known)
        ran = await fingerprints_that_ran(self._store)
        if ran[-1:] != [fingerprint]:
            others = [each for each in ran if each != fingerprint]
            await self._store.set_setting(RAN, [*others, fingerprint][-MOST_RAN:])


async def fingerprints_that_ran(store: SessionStore) -> list[str]:
    """Fingerprints of the models that were loaded in this data folder, oldest first."""
    held = await intact(store.setting(RAN))
    return [each for each in held if isinstance(each, str)] if isinstance(held, list) else []


def _manifest(model: LanguageModel, adapters: Stack | None) -> Any:
    """The model's manifest under adapters (None: its own stack), as JSON values."""
    with model.open_session(SessionConfig(adapters=adapters)) as session:
        return msgspec.json.decode(msgspec.json.encode(session.manifest.to_mapping()))


QUOTED = 60  # characters of a text in a refusal


def with_ids(name: str, value: object, vocabulary: TokenBytes) -> object:
    """Replaces texts by token ids in the values of `banned_tokens` and `logit_bias`; other values stay as they are.

    In `logit_bias` a key is an id in digits, a text, or a text in JSON's quotation marks.

    Raises:
        Refusal: A text is not a token of the last model; names the token that it begins with.
    """
    if name == "banned_tokens" and isinstance(value, Sequence) and not isinstance(value, str):
        ids = [token for each in value for token in (_ids(each, vocabulary) if isinstance(each, str) else (each,))]
        return list(dict.fromkeys(ids))
    if name == "logit_bias" and isinstance(value, Mapping):
        return {str(token): bias for key, bias in value.items() for token in _keyed(str(key), vocabulary)}
    return value


def _keyed(key: str, vocabulary: TokenBytes) -> Sequence[object]:
    if key.removeprefix("-").isdecimal():
        return (int(key),)
    try:
        text = json.loads(key) if key.startswith('"') else key
    except ValueError:
        text = key
    return _ids(str(text), vocabulary)


def _ids(text: str, vocabulary: TokenBytes) -> Sequence[int]:
    """The tokens that are exactly a text; several may have the same bytes."""
    if not vocabulary.is_known:
        raise Refusal(
            translate(
                "Workbench",
                "no model was used here yet, so only token ids can be entered; load a model, then enter it again",
            )
        )
    found = vocabulary.ids_of(text)
    if found:
        return found
    quoted = json.dumps(text[:QUOTED], ensure_ascii=False)
    start = vocabulary.longest_start(text)
    if not start:
        raise Refusal(
            translate("Workbench", "the model has no token {0}; click a token and copy its text from the inspector").format(
                quoted
            )
        )
    begins = json.dumps(start.decode(errors="replace"), ensure_ascii=False)
    raise Refusal(
        translate(
            "Workbench", "{0} is more than one token: it begins with {1}. Enter tokens one by one; leading spaces count"
        ).format(quoted, begins)
    )
