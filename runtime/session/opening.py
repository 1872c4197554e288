"""What opens sessions: both kinds of `LanguageModel` in the same way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from runtime.errors import AdapterError, InvalidRequestError, SnapshotMismatchError
from runtime.options.checking import shown
from runtime.session.manifest import Manifest, tokenizer_digest

if TYPE_CHECKING:  # a session talks to a model, which opens it
    from runtime.language_model import LanguageModel
    from runtime.session.config import SessionConfig
    from runtime.session.session import Session
    from runtime.session.snapshot import Snapshot


class OpensSessions:
    """`open_session`, `resume` and `resume_text`; see `runtime.members.sessions`."""

    _tokenizer_digest: str | None = None  # worked out once: a large vocabulary takes some milliseconds

    def open_session(self, config: SessionConfig | None = None) -> Session:
        """Empty."""
        from runtime.session.config import SessionConfig
        from runtime.session.session import Session

        model = cast("LanguageModel", self)
        if config is not None and not isinstance(config, SessionConfig):
            raise InvalidRequestError(f"config is a SessionConfig(top_k=..., options=...), not {shown(config)}")
        config = (config or SessionConfig()).check(model.info.context_length)
        if self._tokenizer_digest is None:
            self._tokenizer_digest = tokenizer_digest(model.byte_vocab)
        digest = self._tokenizer_digest

        def manifest() -> Manifest:
            return Manifest.of(model.info, tokenizer=digest, template=model.chat_template, adapters=config.adapters)

        now = manifest()
        if config.manifest is not None:
            config.manifest.require(now)
        return Session(model, config, manifest)

    def resume(self, snapshot: Snapshot) -> Session:
        """As it was."""
        from runtime.session.config import SessionConfig
        from runtime.session.messages import Said
        from runtime.session.path import Path

        snapshot = _checked(snapshot)
        model = cast("LanguageModel", self)
        length = model.info.context_length
        snapshot = replace(snapshot, manifest=snapshot.manifest.named_here(model.info))
        self._require(snapshot)
        config = SessionConfig(
            snapshot.top_k, _fitting(snapshot.limit, length), None, snapshot.options, snapshot.manifest.stack
        )
        session = self.open_session(config)
        session.take(
            Path(snapshot.ids, snapshot.marks, snapshot.prefix),
            Said(snapshot.messages) if snapshot.messages else None,
            snapshot.generation,
        )
        return session

    async def resume_text(self, snapshot: Snapshot) -> Session:
        """What it says, in this model's tokens."""
        from runtime.session.config import SessionConfig
        from runtime.session.path import Mark, Path

        snapshot = _checked(snapshot)
        model = cast("LanguageModel", self)
        session = self.open_session(
            SessionConfig(snapshot.top_k, _fitting(snapshot.limit, model.info.context_length), None, snapshot.options)
        )
        ids = await model.tokenize_async(snapshot.text.decode(errors="replace"))
        session.take(Path(ids, (Mark("prefix", "text", 0),) if ids else (), len(ids)), None, None)
        return session

    def resume_text_sync(self, snapshot: Snapshot) -> Session:
        """`resume_text`, blocking."""
        from runtime.session.blocking import blocking

        return blocking(self.resume_text(snapshot))

    def _require(self, snapshot: Snapshot) -> None:
        """Refuses a snapshot of something else than this model as it is now."""
        model = cast("LanguageModel", self)
        if self._tokenizer_digest is None:
            self._tokenizer_digest = tokenizer_digest(model.byte_vocab)
        try:
            now = Manifest.of(
                model.info,
                tokenizer=self._tokenizer_digest,
                template=model.chat_template,
                adapters=snapshot.manifest.stack,
            )
        except AdapterError as missing:
            raise SnapshotMismatchError(f"the snapshot runs under adapters that are not loaded: {missing}") from missing
        snapshot.require(now)


def _checked(snapshot: object) -> Snapshot:
    from runtime.session.snapshot import Snapshot

    if not isinstance(snapshot, Snapshot):
        raise InvalidRequestError(f"resume takes a Snapshot (see Snapshot.from_mapping), not {snapshot!r:.60}")
    return snapshot


def _fitting(limit: int | None, context: int) -> int | None:
    return None if limit is None else min(limit, context)
