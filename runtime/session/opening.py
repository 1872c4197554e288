"""Opens sessions of a model: empty, from a snapshot, or with a snapshot's text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from runtime.adapters.uses import Adapters
from runtime.errors import AdapterError, InvalidRequestError, SnapshotMismatchError
from runtime.options.checking import shown
from runtime.session.manifest import Manifest
from runtime.session.session import Session, SessionConfig
from runtime.session.snapshot import Snapshot
from runtime.session.state import SessionPath
from runtime.session.status import Mark
from runtime.session.token_boundary import Conversation

if TYPE_CHECKING:  # circular: the model imports this module
    from runtime.api.language_model import LanguageModel


def open_session(model: LanguageModel, config: SessionConfig | None = None) -> Session:
    """See `LanguageModel.open_session`."""
    if config is not None and not isinstance(config, SessionConfig):
        raise InvalidRequestError(f"config is a SessionConfig(top_k=..., options=...), not {shown(config)}")
    config = (config or SessionConfig()).check(model.info.context_length)

    manifest_now = partial(_manifest, model, config.adapters)
    now = manifest_now()
    if config.manifest is not None:
        config.manifest.require(now)
    return Session(model, config, manifest_now)


def resume(model: LanguageModel, snapshot: Snapshot) -> Session:
    """See `LanguageModel.resume`."""
    snapshot = _checked(snapshot)
    length = model.info.context_length
    snapshot = replace(snapshot, manifest=snapshot.manifest.named_here(model.info))
    try:
        now = _manifest(model, snapshot.manifest.stack)
    except AdapterError as missing:
        raise SnapshotMismatchError(f"the snapshot runs under adapters that are not loaded: {missing}") from missing
    snapshot.require(now)
    config = SessionConfig(snapshot.top_k, _fitting(snapshot.limit, length), None, snapshot.options, snapshot.manifest.stack)
    session = open_session(model, config)
    session.take(
        SessionPath(snapshot.ids, snapshot.marks, snapshot.prefix),
        Conversation(snapshot.messages) if snapshot.messages else None,
        snapshot.generation,
    )
    return session


async def resume_text(model: LanguageModel, snapshot: Snapshot) -> Session:
    """See `LanguageModel.resume_text`."""
    snapshot = _checked(snapshot)
    limit = _fitting(snapshot.limit, model.info.context_length)
    session = open_session(model, SessionConfig(snapshot.top_k, limit, None, snapshot.options))
    ids = await model.tokenize_async(snapshot.text.decode(errors="replace"))
    session.take(SessionPath(ids, (Mark("prefix", "text", 0),) if ids else (), len(ids)), None, None)
    return session


def _manifest(model: LanguageModel, adapters: Adapters) -> Manifest:
    return Manifest.of(model.info, tokenizer=model.tokenizer_digest, template=model.chat_template, adapters=adapters)


def _checked(snapshot: object) -> Snapshot:
    if not isinstance(snapshot, Snapshot):
        raise InvalidRequestError(f"resume takes a Snapshot (see Snapshot.from_mapping), not {snapshot!r:.60}")
    return snapshot


def _fitting(limit: int | None, context: int) -> int | None:
    return None if limit is None else min(limit, context)
