"""The member of `LanguageModel` that opens sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a session talks to a model, which opens it
    from runtime.session.config import SessionConfig
    from runtime.session.session import Session


class SessionMembers(Protocol):
    """Sessions: a path of tokens that grows, is cut and branches, with its KV kept in the engine."""

    def open_session(self, config: SessionConfig | None = None) -> Session:
        """An empty session; computes nothing and never blocks. See `Session`.

        Raises:
            InvalidRequestError: A setting out of range.
            ManifestMismatchError: `config.manifest` was made with another model, tokenizer, template or setting.
        """
