"""`Session`: a path of tokens that is prefilled, continued, cut and forked."""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from runtime import html
from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.aio import blocking, blocking_iterator
from runtime.api.progress import ShowProgress, reporting_prompt
from runtime.errors import ContextOverflowError, InvalidRequestError
from runtime.info import Message, ModelInfo, OnProgress, PromptProgress
from runtime.options.checking import check_fields, instance, is_whole, option, shown
from runtime.options.generation import ALTERNATIVES, GenerationOptions, given
from runtime.records import Finish, Float32, TokenRecord, TokenRun, shortened
from runtime.sampling.chain import fresh_seed
from runtime.session.manifest import Manifest, stack_of
from runtime.session.snapshot import Generation, Snapshot
from runtime.session.state import Guard, SessionPath, SessionState
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
from runtime.session.token_boundary import Conversation, TextOrIds, delta
from runtime.text.utf8 import Utf8Stream

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

SHOWN = 8  # tokens of each side in a `Divergence`
SHOWN_OF_SEGMENT = 64  # tokens, in an outline


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The settings of a session.

    Attributes:
        top_k: Alternatives recorded with the scores of every prefilled token. The scores are stored beside the KV, so that
            `score` of the session's path computes nothing. None: computes the KV without scores, which is faster.
        limit: The most tokens of the session; None: the model's context.
        manifest: The manifest of an earlier session that the ids come from; refuses another model, tokenizer, template or
            setting.
        options: Defaults for the options of `decode` (see `LanguageModel.resolve_options`).
        adapters: Loaded adapters that the session runs under, in order, even if the model's stack changes; () is the base
            alone. None: the stack in force at opening; a change of it raises `ManifestMismatchError` afterwards.
    """

    top_k: int | None = field(default=10, metadata={"fault": lambda value: None if value is None else ALTERNATIVES(value)})
    limit: int | None = None
    manifest: Manifest | None = option(None, instance(Manifest, "a Manifest (see Manifest.from_mapping)"))
    options: GenerationOptions | None = None
    adapters: tuple[AdapterUse, ...] | None = None

    def check(self, context: int) -> Self:
        """Checks the settings and returns them.

        Args:
            context: The model's context in tokens.

        Raises:
            InvalidRequestError: A value out of range or of the wrong type; the message names it.
            AdapterError: `adapters` is not a sequence of names and (name, scale) pairs.
        """
        check_fields(self)
        if self.limit is not None and not is_whole(self.limit, 1, context):
            held = f"1 token and the {context:,} of the context"
            raise InvalidRequestError(f"limit must lie within {held}, not {shown(self.limit)}")
        given(self.options)
        if self.adapters is not None:
            check_adapters(self.adapters)
        return self


class Session:
    """A path of tokens on one model, opened by `LanguageModel.open_session`. An (async) context manager.

    Coroutines have blocking twins `<name>_sync`; everything else never blocks. Works on any loop and in any thread, but
    does one thing at a time: a second caller gets `SessionBusyError`, not a queue. `fork` is allowed at any time.

    Args:
        model: The model, which computes and holds the KV.
        config: The settings.
        manifest_now: Returns the model's present manifest.
        state: The state to begin with, that of a fork; None: an empty session.

    Raises (every member that uses the model):
        SessionBusyError: Another call runs in this session.
        SessionClosedError: The session, or its model, was closed.
        SessionFatalError: The engine died, or an unforeseen error occurred earlier; `__cause__` is the first fault. The pin is
            released. The call in which the fault occurs raises the fault itself.
        ManifestMismatchError: The model's settings differ from those at the opening of the session.
        ContextOverflowError: More tokens than the session may hold; nothing was changed.
        InvalidRequestError: Bad ids, texts or options; nothing was changed.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: SessionConfig,
        manifest_now: Callable[[], Manifest],
        state: SessionState | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self._manifest_now = manifest_now
        self._info: ModelInfo | None = None  # the last facts whose manifest was checked
        self._state = state or SessionState.empty(model, manifest_now())
        self._guard = Guard(self._release)
        self._fresh = False  # the next drawn token is the first of a decode
        self._forks: list[weakref.ref[Session]] = []

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"Session({self.model.info.name}, {len(self):,} of {self.limit:,} tokens{closed})"

    def __str__(self) -> str:
        return "\n".join((repr(self), *self.outline()))

    def _repr_html_(self) -> str:
        return html.page(html.outline(self.outline()), caption=repr(self))

    def outline(self, start: int = 0) -> list[str]:
        """A line for each segment from token `start` on, then the live forks, indented."""
        ids, lines = self.ids, []
        for segment in self._path.segments():
            first = max(segment.start, start)
            if first < segment.end:
                text = shortened(self.model.detokenize(ids[first : min(segment.end, first + SHOWN_OF_SEGMENT)]))
                lines.append(f"  {first}-{segment.end}  {' '.join(filter(None, (segment.kind, segment.label)))}  {text!r}")
        for fork in [fork for reference in self._forks if (fork := reference()) is not None]:
            at = self._path.common(fork.ids)
            lines += [f"  fork after {at:,}: {len(fork):,} tokens", *(f"  {line}" for line in fork.outline(at))]
        return lines

    @property
    def manifest(self) -> Manifest:
        """The manifest of the session's tokens."""
        return self._state.manifest

    @property
    def ids(self) -> list[int]:
        """The tokens, also readable after `close`."""
        return list(self._path.ids)

    def __len__(self) -> int:
        return len(self._path)

    @property
    def limit(self) -> int:
        """The most tokens that the session may hold."""
        return self.config.limit or self.model.info.context_length

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._guard.closed

    def explain_context(self) -> ContextReport:
        """A report on the tokens by segment, and on the place where reuse ended.

        Raises:
            SessionFatalError: After a fatal fault.
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
            divergence=self._state.divergence,
            adapters=self.manifest.spans(path.ids),
        )

    def snapshot(self) -> Snapshot:
        """A snapshot without KV, from which another session can continue. Never blocks; also available after `close`."""
        path, state = self._path.copy(), self._state
        names = self.manifest.block_keys(path.ids) if self.model.info.options.get("blocks") else ()
        return Snapshot(
            ids=tuple(path.ids),
            text=b"".join(self.model.decode_token(token) for token in path.ids),
            marks=path.marks,
            prefix=path.prefix,
            messages=state.conversation.messages if state.conversation is not None else (),
            manifest=self.manifest,
            top_k=self.config.top_k,
            limit=self.config.limit,
            options=self.config.options,
            generation=state.generation,
            blocks=tuple(key.hex() for key in names),
        )

    # ---- prefill -----------------------------------------------------------------------------------------------------------

    async def ensure_prefix(
        self, prefix: TextOrIds, *, label: str = "", progress: ShowProgress = False, on_progress: OnProgress | None = None
    ) -> PrefixStatus:
        """Replaces the session's tokens by `prefix`: the common beginning stays, the rest is dropped and counted.

        Generated tokens that `prefix` repeats stay as they are. If the prefill fails or is cancelled, the session holds the
        common beginning.

        Args:
            prefix: A text (a BOS is added where the model wants one), or ids.
            label: The label of the segment of new tokens.
            progress: True draws a tqdm bar; a callable gets the tokens done and the total. Other members take it likewise.
            on_progress: Called with the progress of the prefill.
        """
        with self._entered("ensure_prefix"), reporting_prompt(progress, "token", on_progress) as hear:
            ids = await self._state.boundary.ids(prefix, first=True, what="prefix")
            return await self._ensure(ids, label, hear, lambda _: "the new prefix has another token there")

    ensure_prefix_sync = blocking(ensure_prefix)

    async def ensure_messages(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> PrefixStatus:
        """`ensure_prefix` for a conversation rendered by the chat template.

        The session's tokens stay as far as the template repeats their text, generated tokens as they were drawn; only the text
        after them is tokenised. Where the template differs (it leaves out thinking, or a date has changed), reuse ends;
        `explain_context` has the place and the reason.

        Raises:
            UnsupportedFeatureError: There is no chat template.
        """
        with self._entered("ensure_messages"), reporting_prompt(progress, "token", on_progress) as hear:
            if tools is not None and (not isinstance(tools, list | tuple) or not all(isinstance(t, Mapping) for t in tools)):
                raise InvalidRequestError(f"tools is a list of mappings, not {tools!r:.60}")
            from runtime.text.chat import check_messages  # imported late: the window opens without tokenizers

            messages = check_messages(messages)
            full = await self.model.render_chat_async(messages, tools=tools, add_generation_prompt=add_generation_prompt)
            ids = delta(self.model, self._path.ids, full)
            conversation = Conversation.of(messages)

            def why(at: int) -> str:
                path = self._path
                answer = [token for token in path.ids[path.prefix :] if not self.model.is_eos(token)]
                return conversation.why(self._state.conversation, self.model.detokenize(answer) if at >= path.prefix else None)

            status = await self._ensure(ids, "messages", hear, why)
            self._state.conversation = conversation
            return status

    ensure_messages_sync = blocking(ensure_messages)

    async def prefill_suffix(
        self, suffix: TextOrIds, *, label: str = "", progress: ShowProgress = False, on_progress: OnProgress | None = None
    ) -> SuffixStatus:
        """Adds a text or ids after the prefix; the next `ensure_prefix` drops them again.

        If the call fails or is cancelled, the session is unchanged.
        """
        with self._entered("prefill_suffix"), reporting_prompt(progress, "token", on_progress) as hear:
            return await self._extend("suffix", suffix, label, hear)

    prefill_suffix_sync = blocking(prefill_suffix)

    async def prefill(
        self, ids: TextOrIds, *, label: str = "", progress: ShowProgress = False, on_progress: OnProgress | None = None
    ) -> SuffixStatus:
        """Adds tokens at the end, as `prefill_suffix` does, as a segment of kind "prefill"."""
        with self._entered("prefill"), reporting_prompt(progress, "token", on_progress) as hear:
            return await self._extend("prefill", ids, label, hear)

    prefill_sync = blocking(prefill)

    async def joint_differs(self, suffix: str) -> bool:
        """Whether tokenising `suffix` together with the text before it gives other tokens at the boundary.

        Takes the text of the last 64 tokens before the boundary. False after a control token.
        """
        with self._entered("joint_differs"):
            return await self._state.boundary.differs(self._path.ids, suffix)

    joint_differs_sync = blocking(joint_differs)

    async def _ensure(
        self, ids: list[int], label: str, on_progress: OnProgress | None, why: Callable[[int], str]
    ) -> PrefixStatus:
        path = self._path
        common = path.common(ids)
        self._check_room("prefix", common, len(ids) - common)
        divergence = self._diverged(common, ids, why) if common < len(path) else None
        dropped = len(path) - common
        try:
            computed, run = await self._fill(ids, common, on_progress)
            self._guard.check()
        except BaseException:
            path.truncate(common)
            self._state.generation = None
            path.prefix, self._state.divergence = common, divergence
            self._move_pin()
            raise
        path.truncate(common)
        self._state.generation = None
        path.append("prefix", ids[common:], label)
        path.prefix, self._state.divergence = len(path), divergence
        self._move_pin()
        return PrefixStatus(
            reused=max(len(ids) - computed, 0),
            prefilled=computed,
            dropped=dropped,
            prefix=path.prefix,
            resident=len(path),
            available=self.limit - len(path),
            byte_hash=byte_hash([self.model.decode_token(token) for token in path.ids]),
            token_hash=token_hash(path.ids),
            manifest_digest=self.manifest.digest,
            run=run,
        )

    async def _extend(self, kind: SegmentKind, given: TextOrIds, label: str, on_progress: OnProgress | None) -> SuffixStatus:
        path, started = self._path, time.monotonic()
        ids = await self._state.boundary.ids(given, first=not len(path), what=kind)
        self._check_room(kind, len(path), len(ids))
        differs = await self._state.boundary.differs(path.ids, given) if isinstance(given, str) else None
        computed, run = await self._fill([*path.ids, *ids], len(path), on_progress)
        self._guard.check()
        path.append(kind, ids, label)
        self._state.generation = None
        self._move_pin()
        return SuffixStatus(
            suffix=len(ids),
            prefix=path.prefix,
            resident=len(path),
            available=self.limit - len(path),
            digest=token_hash(path.ids),
            seconds=time.monotonic() - started,
            prefilled=computed,
            joint_differs=differs,
            run=run,
        )

    def _diverged(self, at: int, ids: Sequence[int], why: Callable[[int], str]) -> Divergence:
        held, found = (self.model.detokenize(part[at : at + SHOWN]) for part in (self._path.ids, ids))
        reason = why(at) if at < len(ids) else "the new prefix ends there; what came after was dropped"
        return Divergence(at, held, found, reason)

    # ---- decode ------------------------------------------------------------------------------------------------------------

    async def logprobs(self) -> Float32:
        """Log-probabilities of the next token, ``(vocab,) float32``, natural: float32 log-softmax of the raw logits.

        After a prefill the vector is known. After each `advance` it costs the forward of one token, unless it is cached.
        """
        with self._entered("logprobs"):
            path, known = self._path, self._state.row
            if not len(path):
                raise InvalidRequestError("the session is empty: nothing precedes the next token (ensure_prefix, or prefill)")
            if known is None or known[0] != path.version:
                known = path.version, await self.model.next_token_logprobs(path.ids, adapters=self.manifest.stack)
                self._state.row = known
                self._state.pin.follow(path.ids)
            return known[1].copy()

    logprobs_sync = blocking(logprobs)

    def advance(self, token: int, at: int | None = None) -> int:
        """Appends a chosen token; nothing is computed until the next distribution is requested.

        Args:
            token: Its id.
            at: The expected position of the token, from 0; refused if it is not the session's end.

        Returns:
            The new length of the session.
        """
        with self._entered("advance"):
            (checked,) = self._state.boundary.check([token], "advance")
            if at is not None and at != len(self._path):
                raise InvalidRequestError(
                    f"advance: the token is meant for place {at!r}, the session stands at {len(self._path):,}; "
                    "truncate it first, or choose from its own logprobs"
                )
            self._check_room("advance", len(self._path), 1)
            self._path.push("picked", checked)
            self._reopen()
            return len(self._path)

    async def decode(
        self,
        options: GenerationOptions | None = None,
        *,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[TokenRecord, None]:
        """Draws tokens, adds them to the session, and yields a record of each; called without await.

        After a prefill or `logprobs` the first token needs no forward. When the generator is closed early (best with
        `contextlib.aclosing`), the session holds the yielded tokens. At the session's limit the last record's `finish_reason`
        is "context".
        """
        with self._entered("decode"):
            stream = self._drawn(self._options(options), progress, on_progress)
            async with aclosing(stream) as records:
                async for record in records:
                    yield record

    decode_sync = blocking_iterator(decode)

    async def go_on(
        self, *, progress: ShowProgress = False, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRecord, None]:
        """Resumes the last `decode` as if it had not stopped: with its options, its seed, and the rest of its `max_tokens`.

        A grammar reads the answer so far again, so that the answer can continue in the middle of a structure. Yields nothing if
        the answer had ended. `truncate` and `advance` may change the end of the answer beforehand.

        Raises:
            InvalidRequestError: Nothing was decoded yet, or other tokens were added since.
        """
        with self._entered("go_on"):
            options, text = self._rest()
            if options is None:
                return
            stream = self._drawn(options, progress, on_progress, on_from=self._state.generation)
            async with aclosing(stream) as records:
                async for record in records:
                    yield with_text(record, text)

    go_on_sync = blocking_iterator(go_on)

    async def _drawn(
        self,
        options: GenerationOptions,
        progress: ShowProgress,
        on_progress: OnProgress | None,
        on_from: Generation | None = None,
    ) -> AsyncGenerator[TokenRecord, None]:
        stream = self.model.generate(self._start_decode(options, on_from), options, progress=progress, on_progress=on_progress)
        try:
            async with aclosing(stream) as records:
                async for record in records:
                    taken = self._take(record)
                    yield taken
                    if taken.finish_reason is not None and record.finish_reason is None:  # the session's limit is reached
                        break
        finally:
            self._move_pin()

    def _options(self, options: GenerationOptions | None) -> GenerationOptions:
        """Resolves the options of the call over those of the session, under the session's adapters."""
        options = given(options)
        options = self.model.resolve_options(options, session=self.config.options).options
        if options.seed is None:
            options = replace(options, seed=fresh_seed())  # chosen here, so that a snapshot can continue the answer
        if options.adapters is not None and stack_of(self.model.info, options.adapters) != self.manifest.adapters:
            raise InvalidRequestError(
                f"the session runs under the adapters {self.manifest.stack!r}, not {options.adapters!r}: KV of one stack is "
                "none of another's; open a session with those"
            )
        return replace(options, adapters=self.manifest.stack)

    def _start_decode(self, options: GenerationOptions, on_from: Generation | None) -> list[int]:
        path = self._path
        if not len(path):
            raise InvalidRequestError("the session is empty: nothing to go on from (ensure_prefix, or prefill)")
        self._check_room("decode", len(path), 1)
        self._fresh = on_from is None
        self._state.generation = on_from or Generation(len(path), options)
        return list(path.ids)

    def _rest(self) -> tuple[GenerationOptions | None, Utf8Stream]:
        """Options that continue the last answer (None: it has ended), and the decoder state at its end."""
        generation = self._state.generation
        if generation is None:
            raise InvalidRequestError("there is no answer to go on with: decode one, or resume a session that has one")
        text = Utf8Stream()
        for token in self._path.ids[generation.start :]:
            text.feed(self.model.decode_token(token))
        options = generation.rest(len(self._path))
        # the options of a snapshot may have other names for adapters, or none
        return None if options is None else replace(options, adapters=self.manifest.stack), text

    def _reopen(self) -> None:
        """Makes the last answer unfinished after a change of its end; drops it if its beginning was cut."""
        generation = self._state.generation
        if generation is not None:
            whole = len(self._path) >= generation.start
            self._state.generation = replace(generation, finish=None) if whole else None

    def _take(self, record: TokenRecord) -> TokenRecord:
        """Adds a drawn token to the path."""
        self._guard.check()  # raises if the session was closed meanwhile
        path = self._path
        if self._fresh:
            path.append("generated", [record.token_id])
            self._fresh = False
        else:
            path.push("generated", record.token_id)
        if len(path) >= self.limit and record.finish_reason is None:
            record = replace(record, finish_reason=Finish.CONTEXT.label, incomplete=Finish.CONTEXT.incomplete)
        if record.finish_reason is not None and self._state.generation is not None:
            self._state.generation = replace(self._state.generation, finish=record.finish_reason)
        return record

    # ---- truncate, fork, close ---------------------------------------------------------------------------------------------

    async def truncate(self, n: int, *, progress: ShowProgress = False, on_progress: OnProgress | None = None) -> Truncation:
        """Cuts the session to its first `n` tokens.

        A recurrent model stores its state only at checkpoints: the tokens from the last checkpoint to `n` are computed again,
        and counted.
        """
        with self._entered("truncate"), reporting_prompt(progress, "token", on_progress) as hear:
            if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= len(self._path):
                raise InvalidRequestError(f"truncate: {n!r} tokens cannot stay of the {len(self._path):,} that are resident")
            dropped = self._path.truncate(n)
            if dropped:
                self._reopen()
            self._state.pin.move(self._path.ids)
            computed = 0
            if n and dropped and "recurrent" in self.model.info.attention_kinds:
                computed, _ = await self._fill(self._path.ids, n, hear, scored=False)
                self._move_pin()
            return Truncation(n, dropped, computed, self.limit - n)

    truncate_sync = blocking(truncate)

    def fork(self) -> Session:
        """Another session with the same tokens. No KV is copied: both share it until they diverge."""
        self._guard.check()
        fork = Session(self.model, self.config, self._manifest_now, self._state.fork())
        self._forks = [*(each for each in self._forks if each() is not None), weakref.ref(fork)]
        return fork

    def close(self) -> None:
        """Releases the KV (other requests may still use it) and ends a running `decode`. Never blocks; idempotent."""
        self._guard.close()

    async def close_async(self) -> None:
        """`close`, awaited."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # ---- inside ------------------------------------------------------------------------------------------------------------

    def take(self, path: SessionPath, conversation: Conversation | None, generation: Generation | None) -> None:
        """Fills a new session from a snapshot; called only by `runtime.session.opening`.

        Raises:
            ContextOverflowError: The path is longer than `limit`; the session is closed.
        """
        if len(path) > self.limit:
            self._guard.close()
            raise ContextOverflowError("resume", 0, len(path), self.limit)
        self._state.path, self._state.conversation, self._state.generation = path, conversation, generation
        self._move_pin()

    @property
    def _path(self) -> SessionPath:
        return self._state.path

    @contextmanager
    def _entered(self, what: str) -> Iterator[None]:
        with self._guard.entered(what):
            info = self.model.info
            if info is not self._info:  # the model changed, perhaps its stack of adapters
                self.manifest.require(self._manifest_now())
                self._info = info
            yield

    def _release(self) -> None:
        self._state.pin.release()
        self._state.row = None

    def _move_pin(self) -> None:
        """Moves the pin to the session's path."""
        if not self.closed:
            self._state.pin.move(self._path.ids)

    async def _fill(
        self, ids: Sequence[int], start: int, on_progress: OnProgress | None, *, scored: bool = True
    ) -> tuple[int, TokenRun | None]:
        """Computes the KV of `ids`, the scores of the tokens from `start` on, and the distribution after the last token.

        Args:
            ids: The whole path.
            start: The position of the first new token.
            on_progress: Called with the progress.
            scored: False leaves the scores out.

        Returns:
            Tokens pushed through the model, and the new tokens with their scores; None without scores.
        """
        model, adapters = self.model, self.manifest.stack
        scoring, caching = _Counted(on_progress), _Counted(on_progress)
        run = None
        if scored and self.config.top_k is not None and start < len(ids) and model.has("scores"):
            run = await model.score_run(ids, self.config.top_k, start, adapters=adapters, on_progress=scoring)
        # All scores may be in memory although the KV, its checkpoint or the last vector is not.
        if not scoring.computed and model.has("kv"):
            await model.cache_kv_async(ids, adapters=adapters, on_progress=caching)
        return scoring.computed + caching.computed, run

    def _check_room(self, stage: str, resident: int, additional: int) -> None:
        if resident + additional > self.limit:
            raise ContextOverflowError(stage, resident, additional, self.limit)


class _Counted:
    """An `on_progress` that records the computed tokens and passes the progress on."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self.computed = 0

    def __call__(self, progress: PromptProgress) -> None:
        self.computed = progress.total if progress.computed is None else progress.computed  # a server reads the whole prompt
        if self._on_progress is not None:
            self._on_progress(progress)


def with_text(record: TokenRecord, text: Utf8Stream) -> TokenRecord:
    """A record of a resumed answer, with its text decoded from the answer's whole bytes.

    Args:
        record: The record, whose own text may lack a character that begins in an earlier token.
        text: The decoder at the end of the earlier tokens.
    """
    decoded = text.feed(record.token_bytes)
    if record.finish_reason is not None:
        decoded += text.flush()
    return record if record.finish_reason == Finish.STOP.label else replace(record, text=decoded)
