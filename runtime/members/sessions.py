"""The members of `LanguageModel` that open sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a session talks to a model, which opens it
    from runtime.session.config import SessionConfig
    from runtime.session.session import Session
    from runtime.session.snapshot import Snapshot


class SessionMembers(Protocol):
    """Sessions: a path of tokens that grows, is cut and branches, with its KV kept in the engine."""

    def open_session(self, config: SessionConfig | None = None) -> Session:
        """An empty session; computes nothing and never blocks. See `Session`.

        Raises:
            InvalidRequestError: A setting out of range.
            ManifestMismatchError: `config.manifest` was made with another model, tokenizer, template or setting.
        """

    def resume(self, snapshot: Snapshot) -> Session:
        """A session as it was when `Session.snapshot` was taken: tokens, segments, options, an answer in the middle.

        Computes nothing and never blocks: its KV is found in memory or on disk when somebody asks, or computed then.
        `Session.go_on` goes on with its answer, its grammar included.

        Raises:
            SnapshotMismatchError: Another model, tokenizer, template, setting or adapter; each part that differs is named.
            ContextOverflowError: It is longer than this model's context.
        """

    async def resume_text(self, snapshot: Snapshot) -> Session:
        """A session of any model with the text of a snapshot, tokenised anew; special strings in it are plain text.

        Raises:
            ContextOverflowError: It is longer than this model's context.
        """

    def resume_text_sync(self, snapshot: Snapshot) -> Session:
        """`resume_text`, blocking."""
