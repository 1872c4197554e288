"""Tokens into a session: prefixes, conversations, suffixes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runtime.errors import InvalidRequestError
from runtime.info import Message, OnProgress
from runtime.session.blocking import blocking
from runtime.session.core import SessionCore
from runtime.session.messages import Said, delta
from runtime.session.seam import TextOrIds
from runtime.session.status import (
    Divergence,
    PrefixStatus,
    SegmentKind,
    SuffixStatus,
    byte_hash,
    token_hash,
)
from runtime.text.chat import check_messages

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

SHOWN = 8  # tokens of each side, where a prefix diverges


class Filling(SessionCore):
    """`ensure_prefix`, `ensure_messages`, `prefill_suffix` and `prefill`; see `Session`."""

    async def ensure_prefix(self, prefix: TextOrIds, *, label: str = "", on_progress: OnProgress | None = None) -> PrefixStatus:
        """Makes `prefix` the session's tokens: what it has in common with them stays, the rest is dropped and counted.

        Generated tokens that `prefix` repeats stay as they are. Where the prefill fails, or is cancelled, the session holds
        what it had in common.

        Args:
            prefix: A text (with a BOS in front where the model wants one), or ids.
            label: Of the segment of new tokens.
            on_progress: Hears how far it is.
        """
        with self._entered("ensure_prefix"):
            ids = await self._standing.seam.ids(prefix, first=True, what="prefix")
            return await self._ensure(ids, label, on_progress, _ended_there)

    async def ensure_messages(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        on_progress: OnProgress | None = None,
    ) -> PrefixStatus:
        """`ensure_prefix` of a conversation, as the chat template writes it.

        As far as the template repeats the text that stands here, its tokens stay, generated ones as they were drawn, and
        only what comes after is tokenised. Where it writes something else (it leaves out thinking, or a date has changed),
        reuse ends there, and `explain_context` says where and why.

        Raises:
            UnsupportedFeatureError: There is no chat template.
        """
        with self._entered("ensure_messages"):
            if tools is not None and (not isinstance(tools, list | tuple) or not all(isinstance(t, Mapping) for t in tools)):
                raise InvalidRequestError(f"tools is a list of mappings, not {tools!r:.60}")
            messages = check_messages(messages)
            full = await self.model.render_chat_async(messages, tools=tools, add_generation_prompt=add_generation_prompt)
            ids = delta(self.model, self._path.ids, full)
            said = Said.of(messages)

            def why(at: int) -> str:
                path = self._path
                said_since = [token for token in path.ids[path.prefix :] if not self.model.is_eos(token)]
                return said.why(self._standing.said, _text(self.model, said_since) if at >= path.prefix else None)

            status = await self._ensure(ids, "messages", on_progress, why)
            self._standing.said = said
            return status

    async def prefill_suffix(
        self, suffix: TextOrIds, *, label: str = "", on_progress: OnProgress | None = None
    ) -> SuffixStatus:
        """Adds a text or ids at the end, after the prefix; `ensure_prefix` drops them again.

        Where it fails, or is cancelled, the session is as it was before.
        """
        with self._entered("prefill_suffix"):
            return await self._extend("suffix", suffix, label, on_progress)

    async def prefill(self, ids: TextOrIds, *, label: str = "", on_progress: OnProgress | None = None) -> SuffixStatus:
        """The primitive under `prefill_suffix`: any tokens, at the end, wherever they come from."""
        with self._entered("prefill"):
            return await self._extend("prefill", ids, label, on_progress)

    async def joint_differs(self, suffix: str) -> bool:
        """Whether tokenising `suffix` together with the text before it would give other tokens at the seam.

        Looked at are the last 64 tokens. After a control token there is nothing to join.
        """
        with self._entered("joint_differs"):
            return await self._standing.seam.differs(self._path.ids, suffix)

    def ensure_prefix_sync(self, prefix: TextOrIds, *, label: str = "") -> PrefixStatus:
        """`ensure_prefix`, blocking."""
        return blocking(self.ensure_prefix(prefix, label=label))

    def ensure_messages_sync(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> PrefixStatus:
        """`ensure_messages`, blocking."""
        return blocking(self.ensure_messages(messages, tools=tools, add_generation_prompt=add_generation_prompt))

    def prefill_suffix_sync(self, suffix: TextOrIds, *, label: str = "") -> SuffixStatus:
        """`prefill_suffix`, blocking."""
        return blocking(self.prefill_suffix(suffix, label=label))

    def prefill_sync(self, ids: TextOrIds, *, label: str = "") -> SuffixStatus:
        """`prefill`, blocking."""
        return blocking(self.prefill(ids, label=label))

    def joint_differs_sync(self, suffix: str) -> bool:
        """`joint_differs`, blocking."""
        return blocking(self.joint_differs(suffix))

    async def _ensure(
        self, ids: list[int], label: str, on_progress: OnProgress | None, why: Callable[[int], str]
    ) -> PrefixStatus:
        path = self._path
        kept = path.common(ids)
        self._check_room("prefix", kept, len(ids) - kept)
        divergence = self._diverged(kept, ids, why) if kept < len(path) else None
        dropped = len(path) - kept
        try:
            work = await self._fill(ids, kept, on_progress)
            self._guard.check()
        except BaseException:
            path.truncate(kept)
            self._standing.generation = None
            path.prefix, self._standing.divergence = kept, divergence
            self._keep()
            raise
        path.truncate(kept)
        self._standing.generation = None
        path.append("prefix", ids[kept:], label)
        path.prefix, self._standing.divergence = len(path), divergence
        self._keep()
        return PrefixStatus(
            reused=max(len(ids) - work.computed, 0),
            prefilled=work.computed,
            dropped=dropped,
            prefix=path.prefix,
            resident=len(path),
            available=self.limit - len(path),
            byte_hash=byte_hash([self.model.decode_token(token) for token in path.ids]),
            token_hash=token_hash(path.ids),
            manifest_digest=self.manifest.digest,
            run=work.run,
        )

    async def _extend(self, kind: SegmentKind, given: TextOrIds, label: str, on_progress: OnProgress | None) -> SuffixStatus:
        path, started = self._path, time.monotonic()
        ids = await self._standing.seam.ids(given, first=not len(path), what=kind)
        self._check_room(kind, len(path), len(ids))
        differs = await self._standing.seam.differs(path.ids, given) if isinstance(given, str) else None
        work = await self._fill([*path.ids, *ids], len(path), on_progress)
        self._guard.check()
        path.append(kind, ids, label)
        self._standing.generation = None
        self._keep()
        return SuffixStatus(
            suffix=len(ids),
            prefix=path.prefix,
            resident=len(path),
            available=self.limit - len(path),
            digest=token_hash(path.ids),
            seconds=time.monotonic() - started,
            prefilled=work.computed,
            joint_differs=differs,
            run=work.run,
        )

    def _diverged(self, at: int, ids: Sequence[int], why: Callable[[int], str]) -> Divergence:
        held, found = (_text(self.model, part[at : at + SHOWN]) for part in (self._path.ids, ids))
        reason = why(at) if at < len(ids) else "the new prefix ends there; what came after was dropped"
        return Divergence(at, held, found, reason)


def _text(model: LanguageModel, ids: Sequence[int]) -> str:
    return b"".join(model.decode_token(token) for token in ids).decode(errors="replace")


def _ended_there(_: int) -> str:
    return "the new prefix has another token there"
