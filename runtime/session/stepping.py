"""Token by token: what follows, a chosen token, drawn ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, cast

from runtime.errors import InvalidRequestError
from runtime.info import OnProgress
from runtime.options.generation import GenerationOptions, given
from runtime.records import Finish, Float32, TokenRecord
from runtime.sampling.draw import fresh_seed
from runtime.session.core import SessionCore
from runtime.session.manifest import stack_of
from runtime.session.snapshot import Generation
from runtime.text.utf8 import Utf8Stream


class Stepping(SessionCore):
    """`logprobs`, `advance` and `decode`; see `Session`."""

    _fresh = False  # the next drawn token is the first of a decode

    async def logprobs(self) -> Float32:
        """Log-probabilities of the next token, ``(vocab,) float32``, natural: float32 log-softmax of the raw logits.

        Known already after a prefill and while `advance` goes one token a time: one token is computed for each then, none
        where the vector is kept.
        """
        with self._entered("logprobs"):
            row = self._known_row()
            if row is None:
                row = self._learn(await self.model.next_token_logprobs(self._path.ids, adapters=self.manifest.stack))
            return row.copy()

    def advance(self, token: int, at: int | None = None) -> int:
        """Takes a chosen token; computes nothing until somebody asks what follows.

        Args:
            token: Its id.
            at: The place that it is meant for, counted from 0; another than the session's end is refused.

        Returns:
            The session's length now.
        """
        with self._entered("advance"):
            (checked,) = self._standing.seam.check([token], "advance")
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
        self, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRecord, None]:
        """Draws tokens, one record each, and keeps them; called without await.

        Starts from what is known of the next token: no forward comes before the first record where a prefill or `logprobs`
        came before. Closed early (best with `contextlib.aclosing`), the session holds what was given out. At the session's
        limit the last record's `finish_reason` is "context".
        """
        with self._entered("decode"):
            stream = self._drawn(self._options(options), on_progress)
            async with aclosing(stream) as records:
                async for record in records:
                    yield record

    async def go_on(self, *, on_progress: OnProgress | None = None) -> AsyncGenerator[TokenRecord, None]:
        """Goes on with the last `decode` as if nobody had stopped it: its options, its seed, what is left of its tokens.

        Its grammar, if it has one, reads what was said again, so that it goes on in the middle of a structure. Nothing
        comes where the answer had ended. `truncate` and `advance` may have changed its end before.

        Raises:
            InvalidRequestError: Nothing was decoded yet, or something else was added since.
        """
        with self._entered("go_on"):
            options, text = self._rest()
            if options is None:
                return
            stream = self._drawn(options, on_progress, on_from=self._standing.generation)
            async with aclosing(stream) as records:
                async for record in records:
                    yield retold(record, text)

    async def _drawn(
        self, options: GenerationOptions, on_progress: OnProgress | None, on_from: Generation | None = None
    ) -> AsyncGenerator[TokenRecord, None]:
        stream = self.model.generate(self._start_decode(options, on_from), options, on_progress=on_progress)
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
            yield from self._drawn_sync(self._options(options), on_progress)

    def go_on_sync(self, *, on_progress: OnProgress | None = None) -> Iterator[TokenRecord]:
        """`go_on`, blocking; closing the iterator stops it."""
        with self._entered("go_on"):
            options, text = self._rest()
            if options is not None:
                for record in self._drawn_sync(options, on_progress, self._standing.generation):
                    yield retold(record, text)

    def _drawn_sync(
        self, options: GenerationOptions, on_progress: OnProgress | None, on_from: Generation | None = None
    ) -> Iterator[TokenRecord]:
        stream = self.model.generate_sync(self._start_decode(options, on_from), options, on_progress=on_progress)
        try:
            with closing(cast("Any", stream)) as records:
                for record in records:
                    taken = self._take(record)
                    yield taken
                    if taken.finish_reason is not None:
                        break
        finally:
            self._keep()

    def logprobs_sync(self) -> Float32:
        """`logprobs`, blocking."""
        with self._entered("logprobs"):
            row = self._known_row()
            if row is None:
                row = self._learn(self.model.next_token_logprobs_sync(self._path.ids, adapters=self.manifest.stack))
            return row.copy()

    def _known_row(self) -> Float32 | None:
        """What follows, if the session has it."""
        if not len(self._path):
            raise InvalidRequestError("the session is empty: nothing precedes the next token (ensure_prefix, or prefill)")
        row = self._standing.row
        return row[1] if row is not None and row[0] == self._path.version else None

    def _learn(self, row: Float32) -> Float32:
        self._standing.row = self._path.version, row
        self._standing.hold.follow(self._path.ids)
        return row

    def _options(self, options: GenerationOptions | None) -> GenerationOptions:
        """What holds for a decode: of the call, of the session, and under the session's adapters."""
        options = given(options)
        options = self.model.resolve_options(options, session=self.config.options).options
        if options.seed is None:
            options = replace(options, seed=fresh_seed())  # chosen here, so that the answer can go on from a snapshot
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
        self._standing.generation = on_from or Generation(len(path), options)
        return list(path.ids)

    def _rest(self) -> tuple[GenerationOptions | None, Utf8Stream]:
        """How the last answer goes on, and its text up to a character that may be cut."""
        generation = self._standing.generation
        if generation is None:
            raise InvalidRequestError("there is no answer to go on with: decode one, or resume a session that has one")
        text = Utf8Stream()
        for token in self._path.ids[generation.start :]:
            text.feed(self.model.decode_token(token))
        options = generation.rest(len(self._path))
        # an adapter may have another name here than in the options of a snapshot, or none is named there
        return None if options is None else replace(options, adapters=self.manifest.stack), text

    def _reopen(self) -> None:
        """The end of the last answer was changed: it may go on."""
        generation = self._standing.generation
        if generation is not None:
            kept = len(self._path) >= generation.start
            self._standing.generation = replace(generation, finish=None) if kept else None

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
            record = replace(record, finish_reason=Finish.CONTEXT.label, incomplete=Finish.CONTEXT.incomplete)
        if record.finish_reason is not None and self._standing.generation is not None:
            self._standing.generation = replace(self._standing.generation, finish=record.finish_reason)
        return record


def retold(record: TokenRecord, text: Utf8Stream) -> TokenRecord:
    """A record of an answer that goes on, with what its bytes complete of a character that was cut."""
    told = text.feed(record.token_bytes)
    if record.finish_reason is not None:
        told += text.flush()
    return record if record.finish_reason == Finish.STOP.label else replace(record, text=told)
