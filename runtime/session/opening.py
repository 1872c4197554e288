"""What opens sessions: both kinds of `LanguageModel` in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from runtime.session.manifest import Manifest, tokenizer_digest

if TYPE_CHECKING:  # a session talks to a model, which opens it
    from runtime.language_model import LanguageModel
    from runtime.session.config import SessionConfig
    from runtime.session.session import Session


class OpensSessions:
    """`open_session`; see `runtime.members.sessions`."""

    _tokenizer_digest: str | None = None  # worked out once: a large vocabulary takes some milliseconds

    def open_session(self, config: SessionConfig | None = None) -> Session:
        """Empty."""
        from runtime.session.config import SessionConfig
        from runtime.session.session import Session

        model = cast("LanguageModel", self)
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
