"""`Session`: a path that is prefilled, continued, cut and forked."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

from runtime.errors import ContextOverflowError, InvalidRequestError
from runtime.info import OnProgress
from runtime.language_model import LanguageModel, Message
from runtime.options import GenerationOptions
from runtime.records import Finish, Float32, TokenRecord
from runtime.session.blocking import blocking
from runtime.session.config import SessionConfig, checked_options
from runtime.session.guard import Guard
from runtime.session.hold import Hold
from runtime.session.manifest import Manifest
from runtime.session.messages import Said, delta
from runtime.session.path import Path
from runtime.session.seam import Seam, TextOrIds
from runtime.session.status import (
    ContextReport,
    Divergence,
    PrefixStatus,
    SegmentKind,
    SuffixStatus,
    Truncation,
    byte_hash,
    token_hash,
)
from runtime.session.work import Work, fill

SHOWN = 8  # tokens of each side, where a prefix diverges


class Session:
    """A path of tokens on one model, opened by `LanguageModel.open_session`. An (async) context manager.

    Coroutines have blocking twins `<name>_sync`; everything else never blocks. Works on any loop and in any thread, but
    does one thing at a time: a second caller gets `SessionBusyError`, not a queue. `fork` is allowed at any time.

    Raises (every member that asks for something):
        SessionBusyError: Something else goes on in this session.
        SessionClosedError: It, or its model, was closed.
        SessionFatalError: The engine died under it, or something unforeseen failed; `__cause__` is the first fault. Its pin
            is let go. Whoever meets the fault itself gets that.
        ManifestMismatchError: The model's settings are not those that the session was opened with.
        ContextOverflowError: More tokens than the session may hold; nothing was changed.
        InvalidRequestError: Bad ids, texts or options; nothing was changed.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: SessionConfig,
        manifest: Callable[[], Manifest],
        *,
        like: Session | None = None,
    ) -> None:
        """For `open_session` and `fork`."""
        self.model = model
        self.config = config
        self._manifest_now = manifest
        self._guard = Guard(self._let_go)
        if like is None:
            self.manifest = manifest()
            self._info = model.info
            self._path, self._hold, self._seam = Path(), Hold(model), Seam(model)
            self._said: Said | None = None
            self._divergence: Divergence | None = None
            self._row: tuple[int, Float32] | None = None  # the path's version, and what follows it
        else:
            self.manifest, self._info = like.manifest, like._info
            self._path, self._hold, self._seam = like._path.copy(), like._hold.shared(), like._seam
            self._said, self._divergence, self._row = like._said, like._divergence, None

    # ---- what stands here: never blocks, never raises -------------------------------------------------------------

    @property
    def ids(self) -> list[int]:
        """The tokens; readable after the end too."""
        return list(self._path.ids)

    def __len__(self) -> int:
        return len(self._path)

    @property
    def limit(self) -> int:
        """Tokens that it may hold."""
        return self.config.limit or self.model.info.context_length

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._guard.closed

    def explain_context(self) -> ContextReport:
        """What stands in it, and where reuse ended.

        Raises:
            SessionFatalError: A fatal fault came before.
        """
        if not self.closed:
            self._guard.check()
        path = self._path
        return ContextReport(
            resident=len(path),
            prefix=path.prefix,
            limit=self.limit,
            available=self.limit - len(path),
            byte_hash=byte_hash([self.model.decode_token(token) for token in path.ids]),
            token_hash=token_hash(path.ids),
            manifest_digest=self.manifest.digest,
            segments=path.segments(),
            closed=self.closed,
            divergence=self._divergence,
        )

    # ---- prefill ------------------------------------------------------------------------------------------------------

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
            ids = await self._seam.ids(prefix, first=True, what="prefix")
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
            full = await self.model.render_chat_async(messages, tools=tools, add_generation_prompt=add_generation_prompt)
            ids = delta(self.model, self._path.ids, full)
            said = Said.of(messages)
            status = await self._ensure(ids, "messages", on_progress, lambda at: said.why(self._said, at, self))
            self._said = said
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
            return await self._seam.differs(self._path.ids, suffix)

    # ---- one token at a time ------------------------------------------------------------------------------------------

    async def logprobs(self) -> Float32:
        """Log-probabilities of the next token, ``(vocab,) float32``, natural: float32 log-softmax of the raw logits.

        Known already after a prefill and while `advance` goes one token a time: one token is computed for each then, none
        where the vector is kept.
        """
        with self._entered("logprobs"):
            return await self._next()

    def advance(self, token: int, at: int | None = None) -> int:
        """Takes a chosen token; computes nothing until somebody asks what follows.

        Args:
            token: Its id.
            at: The place that it is meant for, counted from 0; another than the session's end is refused.

        Returns:
            The session's length now.
        """
        with self._entered("advance"):
            (checked,) = self._seam.check([token], "advance")
            if at is not None and at != len(self._path):
                raise InvalidRequestError(
                    f"advance: the token is meant for place {at!r}, the session stands at {len(self._path):,}; "
                    "truncate it first, or choose from its own logprobs"
                )
            self._check_room("advance", len(self._path), 1)
            self._path.push("picked", checked)
            return len(self._path)

    async def decode(
        self, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRecord, None]:
        """Draws tokens, one record each, and keeps them; called without await.

        Starts from what is known of the next token: no forward comes before the first record where a prefill or `logprobs`
        came before. Closed early (best with `contextlib.aclosing`), the session holds what was given out. At the session's
        limit the last record's `finish_reason` is "context".
        """
        with self._entered("decode"):
            options = self._options(options)
            stream = self.model.generate(self._start_decode(), options, on_progress=on_progress)
            try:
                async with aclosing(stream) as records:
                    async for record in records:
                        taken = self._take(record)
                        yield taken
                        if taken.finish_reason is not None:
                            break
            finally:
                self._keep()

    def decode_sync(
        self, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Iterator[TokenRecord]:
        """`decode`, blocking; closing the iterator stops it."""
        with self._entered("decode"):
            options = self._options(options)
            stream = self.model.generate_sync(self._start_decode(), options, on_progress=on_progress)
            try:
                with closing(cast("Any", stream)) as records:
                    for record in records:
                        taken = self._take(record)
                        yield taken
                        if taken.finish_reason is not None:
                            break
            finally:
                self._keep()

    # ---- back and aside -----------------------------------------------------------------------------------------------

    async def truncate(self, n: int, *, on_progress: OnProgress | None = None) -> Truncation:
        """The first `n` tokens stay.

        On recurrent models the state is kept at checkpoints only: what lies between the last one and `n` is computed again
        now, and counted.
        """
        with self._entered("truncate"):
            if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= len(self._path):
                raise InvalidRequestError(f"truncate: {n!r} tokens cannot stay of the {len(self._path):,} that are resident")
            dropped = self._path.truncate(n)
            self._hold.move(self._path.ids)
            work = Work()
            if n and dropped and "recurrent" in self.model.info.attention_kinds:
                work = await fill(self.model, self._path.ids, n, None, on_progress)
                self._keep()
            return Truncation(n, dropped, work.computed, self.limit - n)

    def fork(self) -> Session:
        """Another session with the same tokens. No KV is copied: both read the same until they part."""
        self._guard.check()
        return Session(self.model, self.config, self._manifest_now, like=self)

    def close(self) -> None:
        """Lets its KV go (others may still use it); a running `decode` ends. Never blocks; a second call does nothing."""
        self._guard.close()

    async def close_async(self) -> None:
        """`close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- blocking twins -----------------------------------------------------------------------------------------------

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

    def logprobs_sync(self) -> Float32:
        """`logprobs`, blocking."""
        return blocking(self.logprobs())

    def truncate_sync(self, n: int) -> Truncation:
        """`truncate`, blocking."""
        return blocking(self.truncate(n))

    # ---- inside -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _entered(self, what: str) -> Iterator[None]:
        with self._guard.entered(what):
            info = self.model.info
            if info is not self._info:  # news of the model: perhaps another stack of adapters
                self.manifest.require(self._manifest_now())
                self._info = info
            yield

    def _let_go(self) -> None:
        self._hold.release()
        self._row = None

    def _keep(self) -> None:
        """The pin follows to where the session ends now."""
        if not self.closed:
            self._hold.move(self._path.ids)

    def _check_room(self, stage: str, resident: int, additional: int) -> None:
        if resident + additional > self.limit:
            raise ContextOverflowError(stage, resident, additional, self.limit)

    async def _ensure(
        self, ids: list[int], label: str, on_progress: OnProgress | None, why: Callable[[int], str]
    ) -> PrefixStatus:
        path = self._path
        kept = path.common(ids)
        self._check_room("prefix", kept, len(ids) - kept)
        divergence = self._diverged(kept, ids, why) if kept < len(path) else None
        dropped = len(path) - kept
        try:
            work = await fill(self.model, ids, kept, self.config.top_k, on_progress)
            self._guard.check()
        except BaseException:
            path.truncate(kept)
            path.prefix, self._divergence = kept, divergence
            self._keep()
            raise
        path.truncate(kept)
        path.append("prefix", ids[kept:], label)
        path.prefix, self._divergence = len(path), divergence
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
        ids = await self._seam.ids(given, first=not len(path), what=kind)
        self._check_room(kind, len(path), len(ids))
        differs = await self._seam.differs(path.ids, given) if isinstance(given, str) else None
        work = await fill(self.model, [*path.ids, *ids], len(path), self.config.top_k, on_progress)
        self._guard.check()
        path.append(kind, ids, label)
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

    async def _next(self) -> Float32:
        path = self._path
        if not len(path):
            raise InvalidRequestError("the session is empty: nothing precedes the next token (ensure_prefix, or prefill)")
        if self._row is None or self._row[0] != path.version:
            self._row = path.version, await self.model.next_token_logprobs(path.ids)
            self._hold.follow(path.ids)
        return self._row[1].copy()

    def _options(self, options: GenerationOptions | None) -> GenerationOptions:
        return checked_options(options or self.config.options or GenerationOptions())

    def _start_decode(self) -> list[int]:
        path = self._path
        if not len(path):
            raise InvalidRequestError("the session is empty: nothing to go on from (ensure_prefix, or prefill)")
        self._check_room("decode", len(path), 1)
        self._fresh = True
        return list(path.ids)

    def _take(self, record: TokenRecord) -> TokenRecord:
        """A drawn token joins the path."""
        self._guard.check()  # closed meanwhile
        path = self._path
        if self._fresh:
            path.append("generated", [record.token_id])
            self._fresh = False
        else:
            path.push("generated", record.token_id)
        if len(path) >= self.limit and record.finish_reason is None:
            return replace(record, finish_reason=Finish.CONTEXT.label)
        return record

    def _diverged(self, at: int, ids: Sequence[int], why: Callable[[int], str]) -> Divergence:
        held, found = (_text(self.model, part[at : at + SHOWN]) for part in (self._path.ids, ids))
        reason = why(at) if at < len(ids) else "the new prefix ends there; what came after was dropped"
        return Divergence(at, held, found, reason)


def _text(model: LanguageModel, ids: Sequence[int]) -> str:
    return b"".join(model.decode_token(token) for token in ids).decode(errors="replace")


def _ended_there(_: int) -> str:
    return "the new prefix has another token there"
