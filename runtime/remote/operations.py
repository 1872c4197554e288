"""The operations of a remote model: queries, scores, answers, vectors, text. They run on the transport's loop.

Names and keywords are those of `runtime.transport.methods`; "top_logprobs" is added.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np

from runtime.adapters.uses import Adapters, check_adapters
from runtime.aio import RunStream, gathered
from runtime.branches import joint_error
from runtime.errors import (
    AdapterError,
    ContextOverflowError,
    FullVocabUnavailableError,
    GrammarError,
    InvalidRequestError,
    RemoteError,
    UnsupportedFeatureError,
)
from runtime.info import CacheReport, Message, Metrics, ModelInfo, OnProgress
from runtime.numerics.pooling import Pooling
from runtime.numerics.stage_table import REPORTED
from runtime.options.generation import DEFAULTS, GenerationOptions, SamplingOptions, resolve_options
from runtime.options.priority import Priority
from runtime.records import Finish, Float32, Int32, TokenRun, TopLogprobs
from runtime.remote.dialect import (
    FULL,
    Abilities,
    AnswerChunk,
    AnswerToken,
    RemoteModel,
    RemoteRequest,
    TokenAlternatives,
    malformed,
)
from runtime.remote.dialects.openai import FULL_BYTES, Dialect
from runtime.remote.distribution import answer_scores, dense, prompt_scores, top_of, top_of_row, truncated
from runtime.remote.http import MOST_SMALL_BYTES, HttpClient, first_seconds
from runtime.remote.metrics import CountedRequest, RequestCounters
from runtime.remote.text import RemoteText
from runtime.sampling.chain import fresh_seed, make_sampler
from runtime.scheduler.decode.rows import DecodeVocabulary, Stream
from runtime.scheduler.jobs import GenerateJob

T = TypeVar("T")

AT_ONCE: Final = 16  # requests in flight; the server batches them itself
_FULL_AT_ONCE: Final = 1  # a whole vocabulary takes a server a second of processor time
_USUAL_ALTERNATIVES: Final = 20  # requested with an answer, so that most ranks are known
_MOST_EMPTY_EVENTS: Final = 1000  # consecutive events without a token
_MOST_MISSING: Final = 3  # tokens of a character before its last token: a character has at most four bytes
_USAGE_SECONDS: Final = 0.5  # wait for the token counts after the last token
_MOST_USAGE_EVENTS: Final = 4
_MOST_IDS_OF_PIECE: Final = 8  # a piece of text without an id may be several tokens of the local tokenizer
# settings that change scores
_EDITS: Final = {"presence_penalty", "frequency_penalty", "dry_multiplier", "logit_bias", "banned_tokens", "order"}
_BRANCH_STRIDE: Final = 0x9E3779B97F4A7C15  # between the seeds of branches
_MOST_SEED: Final = (1 << 63) - 1  # the largest seed that a server takes


@dataclass(eq=False, repr=False)
class RemoteOperations:
    """Converts operations to requests, and answers to columns."""

    _client: HttpClient
    _dialect: Dialect
    _facts: RemoteModel
    _abilities: Abilities
    text: RemoteText
    info: ModelInfo
    _salt: str = ""  # of the server's cache; empty: none
    _draws_here: bool = False  # whether the sampler of this machine draws the tokens
    _inflight: dict[Hashable, _Shared] = field(default_factory=dict, init=False)
    _counters: RequestCounters = field(default_factory=RequestCounters, init=False)

    def __post_init__(self) -> None:
        self._some, self._whole = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(_FULL_AT_ONCE)
        self.calls: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
            "score": self.score,
            "generate_whole": self.generate_whole,
            "embed": self.embed,
            "tokenize": self.text.tokenize,
            "byte_vocab": self.byte_vocab,
            "render_chat": self.render_chat,
            "reset_queries": self.reset_queries,
        }
        self.streams: Mapping[str, Callable[..., Awaitable[None]]] = {
            "generate": self.generate,
            "continue_many": self.continue_many,
            "generate_many": self.generate_many,
        }

    @property
    def capabilities(self) -> frozenset[str]:
        """The `Transport.capabilities` that the server has."""
        can = self._abilities
        has = {
            "embed": can.embeddings,
            "scores": can.prompt_logprobs,
            "token_ids": can.token_ids,
            "top logprobs": can.alternatives > 0,
            "whole_rows": can.full_vector,
        }
        drawn = set(DEFAULTS) - {"repetition_penalty"} - (set() if can.full_vector else _EDITS)
        asked = drawn if self._draws_here else can.sampling | can.grammars
        return frozenset({*asked, *(name for name, there in has.items() if there)})

    @property
    def metrics(self) -> Metrics:
        """The counters of this connection's requests."""
        return self._counters.metrics

    @property
    def cache(self) -> CacheReport:
        """An empty report: the cache is on the server."""
        return CacheReport(0, 0, 0, 0, 0, 0, 0, 0, last_reason="the KV is on the server")

    # ---- log-probabilities -----------------------------------------------------------------------------------

    async def logprobs(self, batch: Sequence[Int32], adapters: Adapters, priority: Priority, cache_salt: str) -> Float32:
        """Log-probabilities ``(n, vocab)``; equal contexts share a request."""
        if not self._abilities.full_vector:
            most = self._abilities.alternatives
            way = f"top_logprobs(ids, {min(most, 20)}) has the likeliest, with the exact probability of all others"
            raise FullVocabUnavailableError(
                f"{self._client.address.host} gives at most {most:,} of {self.text.vocab:,} log-probabilities: "
                f"{way if most else 'it has none of a position'} (vLLM gives all of them when started with --max-logprobs -1)"
            )
        model = self._model(adapters)
        return np.stack(await gathered(*(self._row(ids, model, cache_salt, priority) for ids in batch)))

    async def _row(self, ids: Int32, model: str, salt: str, priority: Priority) -> Float32:
        async def ask() -> Float32:
            async with self._whole:
                asked = self._completion(ids, model, salt, alternatives=FULL, priority=priority)
                chunk = await self._asked(asked, FULL_BYTES)
            found = _only_piece(chunk).alternatives
            if found is None or not found.keys or not isinstance(found.keys[0], int):
                raise malformed("no log-probabilities by id")
            return dense(found, self.text.vocab)

        return await self._shared((ids.tobytes(), model, salt, FULL, priority), ask)

    async def top_logprobs(
        self, batch: Sequence[Int32], n: int, chosen: Sequence[int], adapters: Adapters, priority: Priority, cache_salt: str
    ) -> list[TopLogprobs]:
        """The `n` likeliest tokens after each context, and the values of `chosen`."""
        most = self._abilities.alternatives
        if not most:
            raise UnsupportedFeatureError(f"{self._client.address.host} gives no log-probabilities")
        if n > most:
            raise InvalidRequestError(
                f"{self._client.address.host} gives at most {most:,} log-probabilities of a position, not {n:,} (vLLM: "
                "--max-logprobs)"
            )
        if chosen and not self._abilities.chosen_ids and not self._abilities.full_vector:
            raise UnsupportedFeatureError(
                f"{self._client.address.host} gives no values of chosen ids; ask for more of the likeliest"
            )
        model = self._model(adapters)
        return await gathered(*(self._top(ids, n, tuple(chosen), model, cache_salt, priority) for ids in batch))

    async def _top(self, ids: Int32, n: int, chosen: tuple[int, ...], model: str, salt: str, priority: Priority) -> TopLogprobs:
        async def ask() -> TopLogprobs:
            if chosen and not self._abilities.chosen_ids:
                return top_of_row(await self._row(ids, model, salt, priority), n, chosen)
            width = max(1, self._abilities.chosen_ids)
            parts = [chosen[at : at + width] for at in range(0, len(chosen), width)]
            asking = (self._alternatives(ids, n, part, model, salt, priority) for part in [(), *parts])
            found, *values = await gathered(*asking)
            of_chosen = {token: value for part in values for token, value in zip(part.keys, part.logprobs, strict=True)}
            top = top_of(found, n, self.text.vocab, {token: of_chosen.get(token) for token in chosen})
            if self._abilities.token_ids and len(top.ids) < min(n, self.text.vocab):
                raise malformed(f"{len(top.ids):,} alternatives where {n:,} were asked for")
            await self.text.learn(top.ids.tolist())
            return top

        return await self._shared((ids.tobytes(), model, salt, n, chosen, priority), ask)

    async def _alternatives(
        self, ids: Int32, n: int, chosen: tuple[int, ...], model: str, salt: str, priority: Priority
    ) -> TokenAlternatives:
        asked = self._completion(ids, model, salt, alternatives=1 if chosen else n, chosen=chosen, priority=priority)
        async with self._some:
            chunk = await self._asked(asked, _bytes_of(1, n + len(chosen)))
        found = self._by_id(_only_piece(chunk)).alternatives
        if found is None:
            raise malformed("no alternatives")
        return found

    async def score(
        self, ids: Int32, top_k: int, start: int, adapters: Adapters, priority: Priority, cache_salt: str
    ) -> TokenRun:
        """Scores of ``ids[start:]``; the server reads the whole text."""
        if not self._abilities.prompt_logprobs:
            raise UnsupportedFeatureError(f"{self._client.address.host} does not score given texts")
        most = min(top_k, self._abilities.alternatives)
        asked = self._completion(ids, self._model(adapters), cache_salt, scored=most, priority=priority)
        async with self._some, self._request("score", len(ids)) as request:
            chunk = await self._asked(asked, _bytes_of(len(ids), top_k))
            request.take_counts(chunk)
            scored = chunk.prompt
            if scored is None or len(scored) != len(ids) or any(entry is None for entry in scored[1:]):
                raise malformed(f"{'no' if scored is None else len(scored)} scores for {len(ids):,} tokens")
            rows = prompt_scores(scored[start:], ids[start:], top_k, asked.scored or 0, self.text.vocab)
            tops = rows.top_ids
            await self.text.learn([*ids[start:].tolist(), *tops[tops >= 0].tolist()])
        return TokenRun.scored(ids[start:], self.text.facts.byte_vocab, rows)

    async def byte_vocab(self) -> list[bytes]:
        """The bytes of every id; asks a server that tokenises for all that are not known yet."""
        await self.text.learn(range(self.text.vocab))
        return list(self.text.facts.byte_vocab)

    async def reset_queries(self) -> None:
        """Cancels unanswered queries; equal later queries are sent again."""
        for shared in self._inflight.values():
            shared.task.cancel()
        self._inflight.clear()

    # ---- answers ---------------------------------------------------------------------------------------------

    async def generate(self, stream: RunStream, dropped: BranchTasks, ids: Int32, options: GenerationOptions) -> None:
        """One answer, as branch 0."""
        await self._group(stream, dropped, {0: (ids, self._resolved(options))}, None)

    async def generate_whole(self, ids: Int32, options: GenerationOptions) -> TokenRun:
        runs: list[TokenRun] = []
        await self._answer(ids, self._resolved(options), runs.append)
        return TokenRun.concat(runs)

    async def continue_many(
        self,
        stream: RunStream,
        dropped: BranchTasks,
        ids: Int32,
        n: int,
        options: GenerationOptions,
        priority: Priority,
        cache_salt: str,
    ) -> None:
        """`n` answers to one prompt, numbered from ``options.branch`` on."""
        chosen = self._resolved(options)
        branches = {chosen.branch + i: (ids, replace(chosen, branch=chosen.branch + i)) for i in range(n)}
        await self._group(stream, dropped, branches, "branches", priority, cache_salt)

    async def generate_many(
        self, stream: RunStream, dropped: BranchTasks, prompts: Sequence[Int32], options: Sequence[GenerationOptions]
    ) -> None:
        chosen = {i: (ids, self._resolved(own)) for i, (ids, own) in enumerate(zip(prompts, options, strict=True))}
        await self._group(stream, dropped, chosen, "prompts", Priority.INSPECTOR)  # other clients of the server wait too

    async def _group(
        self,
        stream: RunStream,
        dropped: BranchTasks,
        answers: Mapping[int, tuple[Int32, GenerationOptions]],
        what: str | None,
        priority: Priority = Priority.CHAT,
        salt: str = "",
    ) -> None:
        """Streams several answers at once, within the limits on requests; each answer ends or fails on its own."""

        async def one(number: int, ids: Int32, options: GenerationOptions) -> None:
            await self._answer(ids, options, lambda run: stream.chunk(run, number), stream.progress, priority, salt)

        tasks = {number: asyncio.create_task(one(number, *answer)) for number, answer in answers.items()}
        dropped.begin(tasks)
        failures: dict[int, BaseException] = {}
        try:
            for number, task in tasks.items():
                try:
                    await asyncio.shield(task)
                except asyncio.CancelledError:
                    if not task.cancelled():
                        raise
                except Exception as error:  # noqa: BLE001  # the reader raises it
                    failures[number] = error
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        if failures and what is not None:
            stream.end(joint_error(failures, what))
        else:
            stream.end(next(iter(failures.values()), None))

    def _resolved(self, call: GenerationOptions) -> GenerationOptions:
        """The options resolved as for a model of this machine.

        Raises:
            UnsupportedFeatureError: The server does not support an option.
        """
        facts = self.text.facts
        chosen = resolve_options(call, model=facts.own_options, ends=facts.own_ends).options if call.resolve else call
        chosen.check(self.text.vocab)
        host = self._client.address.host
        if chosen.speculative is not None:
            raise UnsupportedFeatureError(f"{host} decides about speculation itself; leave `speculative` out")
        if chosen.grammar is not None and chosen.grammar.kind not in self._abilities.grammars:
            known = ", ".join(sorted(self._abilities.grammars)) or "none"
            raise UnsupportedFeatureError(f"{host} enforces no {chosen.grammar.label} (it has: {known})")
        if chosen.grammar_prefix:
            raise UnsupportedFeatureError(f"{host} begins a grammar at the answer's beginning alone; leave grammar_prefix out")
        if self._draws_here and call.eos_token_ids is None and not (chosen.ignore_eos or facts.eos_token_ids):
            raise UnsupportedFeatureError(
                f"{host} does not say what ends an answer, which is drawn here: give eos_token_ids or ignore_eos, or connect "
                "with a tokenizer of this machine"
            )
        self._model(chosen.adapters)
        seed = fresh_seed() if chosen.seed is None else chosen.seed
        recorded = max(chosen.top_k, REPORTED) if chosen.stages and self._draws_here else chosen.top_k
        return replace(chosen, seed=seed, top_k=recorded)

    async def _answer(
        self,
        ids: Int32,
        options: GenerationOptions,
        on_run: Callable[[TokenRun], None],
        on_progress: OnProgress | None = None,
        priority: Priority = Priority.CHAT,
        salt: str = "",
    ) -> None:
        """Streams one answer.

        Stop strings and the end are detected on this machine, as for a local model; closing the socket then stops the server.
        """
        room = self.info.context_length - len(ids)
        limit = options.max_tokens or 512
        eos = options.eos_token_ids if options.eos_token_ids is not None else self.text.facts.eos_token_ids
        ends = set[int]() if options.ignore_eos else set(eos)
        unknown = not (ends or options.ignore_eos or self.text.facts.eos_token_ids)  # whether only the server knows the eos
        eos_of_request = None if unknown or options.grammar is not None else tuple(sorted(ends))
        usual = min(_USUAL_ALTERNATIVES, self._abilities.alternatives)
        asked = self._completion(
            ids,
            self._model(options.adapters),
            salt,
            max_tokens=max(1, min(limit, room)),
            alternatives=min(max(options.top_k, usual), self._abilities.alternatives),
            options=options,
            seed=_server_seed(options),
            eos=eos_of_request,
            own_eos=not options.ignore_eos and ends.issuperset(self.text.facts.eos_token_ids),
            priority=priority,
        )
        most = limit if self._abilities.token_ids else limit * _MOST_IDS_OF_PIECE
        job = GenerateJob(ids, None, Priority.CHAT, options=replace(options, max_tokens=most), on_run=on_run)
        if self._draws_here:
            assert options.seed is not None  # drawn where options are resolved
            pieces_of = await self._bytes_of_breakers(options.sampling)
            job.sampler = make_sampler(options.sampling, options.seed, options.branch, pieces=lambda: pieces_of)
        words = DecodeVocabulary(self.text.facts.byte_vocab, ends, self.info.context_length - 1)
        answer = Stream(job, words)
        if self._draws_here:
            async with self._request("generate", len(ids), options.seed) as request:
                request.on_progress = on_progress
                await self._draw(answer, asked, request)
            return
        async with self._some, self._request("generate", len(ids), options.seed) as request:
            request.on_progress = on_progress
            try:
                async with aclosing(self._pieces(asked, request)) as pieces:
                    async for piece, finish, shown in pieces:
                        await self._take(answer, piece, finish, asked, ends, shown)
                        request.token()
                        answer.deliver(paced=finish is None and not answer.finish)
                        if answer.finish:
                            break
            except InvalidRequestError as fault:
                if options.grammar is not None:
                    raise GrammarError(f"the server refuses the grammar or the request: {fault}") from fault
                raise
            finally:
                answer.deliver(ended=True)
                request.finish = (answer.finish.label or "done") if answer.new_ids else "done"

    async def _draw(self, answer: Stream, asked: RemoteRequest, request: CountedRequest) -> None:
        """Draws an answer on this machine, one request per token: exactly the tokens that a local model draws with the seed."""
        width = self._alternatives_to_draw(answer.job.options)
        limit, most = (self._whole, FULL_BYTES) if width == FULL else (self._some, _bytes_of(1, width))
        path = answer.job.ids.tolist()
        plain = replace(asked, max_tokens=1, alternatives=width, options=None, seed=None, eos=None)
        try:
            while not answer.finish:
                async with limit:
                    chunk = await self._asked(replace(plain, prompt=self.text.prompt(path)), most)
                if len(path) == len(answer.job.ids):  # later requests find the prompt in the cache
                    request.take_counts(chunk)
                piece = self._by_id(_only_piece(chunk))
                count = 0 if piece.alternatives is None else len(piece.alternatives.keys)
                if piece.alternatives is None or count < min(width, self.text.vocab):
                    raise malformed(f"{count:,} alternatives to draw from where {width:,} were asked for")
                row = (dense if width == FULL else truncated)(piece.alternatives, self.text.vocab)
                token, u = answer.draw(row)
                path.append(token)
                scores = answer_scores(piece, token, answer.job.options.top_k, count, self.text.vocab)
                await self.text.learn([token, *scores.top_ids[scores.top_ids >= 0].tolist()])
                answer.take(token, u)
                answer.record(scores, 0)
                request.token()
                answer.deliver()
        finally:
            answer.deliver(ended=True)
            request.finish = answer.finish.label or "done"

    async def _bytes_of_breakers(self, sampling: SamplingOptions) -> list[bytes]:
        """The bytes of every id if DRY needs them to find its text breakers; otherwise an empty list."""
        given = sampling.dry_breakers
        if not sampling.dry_multiplier or (given is not None and not any(isinstance(breaker, str) for breaker in given)):
            return []
        if not (self.text.local or self._dialect.exact_bytes):
            raise UnsupportedFeatureError(
                f"{self._client.address.host} does not tell the bytes of its tokens, in which DRY looks for its breakers: name "
                "their ids as dry_breakers, or connect with a tokenizer of this machine"
            )
        return await self.byte_vocab()

    def _alternatives_to_draw(self, options: GenerationOptions) -> int:
        """The number of alternatives that an exact draw needs; `FULL` for the whole vocabulary.

        Raises:
            FullVocabUnavailableError: The draw needs the whole vocabulary, which the server does not return.
            UnsupportedFeatureError: The options have a grammar, or a repetition penalty, which depends on raw logits.
        """
        chosen = {name: value for name, value in options.sampling.given().items() if value != DEFAULTS[name]}
        if options.grammar is not None or "repetition_penalty" in chosen:
            what = "a repetition penalty depends on raw logits" if options.grammar is None else "a grammar is the server's"
            raise UnsupportedFeatureError(f"{what}, which are not here: connect with sampling='server'")
        most, cut = self._abilities.alternatives, int(chosen.get("top_k", 0))
        if not _EDITS & set(chosen) and not options.stages and (options.sampling.temperature == 0.0 or 0 < cut <= most):
            return max(1, min(most, max(cut, options.top_k)))
        if self._abilities.full_vector:
            return FULL
        raise FullVocabUnavailableError(
            f"{self._client.address.host} gives {most:,} alternatives: a draw from them is exact where it is greedy, or with "
            f"top_k of 1 to {most:,}, and without penalties and biases; set top_k, or connect with sampling='server'"
        )

    async def _take(
        self, answer: Stream, piece: AnswerToken, finish: str | None, asked: RemoteRequest, ends: set[int], shown: str
    ) -> None:
        """Adds a token from the server to the answer; `shown`: for the last token, the text of its chunk."""
        assert piece.token is not None  # `_pieces` sets it
        token = piece.token
        if not 0 <= token < self.text.vocab:
            raise malformed(f"token id {token} is outside its vocabulary of {self.text.vocab:,}")
        scores = answer_scores(piece, token, answer.job.options.top_k, asked.alternatives, self.text.vocab)
        tops = scores.top_ids
        await self.text.learn([token, *tops[tops >= 0].tolist()])
        if finish == "eos" and asked.eos is None:
            ends.add(token)
        if finish == "stop" and asked.eos is None and self._dialect.returns_eos:
            own = self.text.facts.byte_vocab[token].decode(errors="replace")
            if not (own and shown.endswith(own)):
                ends.add(token)  # an eos that only the server knows, whose text it leaves out
        answer.take(token, math.nan)
        answer.record(scores, 0)
        if finish is not None and not answer.finish:
            complete = Finish.STOP if asked.grammar is None else Finish.GRAMMAR
            answer.finish = complete if finish in ("stop", "eos") else Finish.LENGTH

    async def _pieces(
        self, asked: RemoteRequest, request: CountedRequest
    ) -> AsyncGenerator[tuple[AnswerToken, str | None, str], None]:
        """Yields the tokens of an answer as (piece, finish reason, text of its chunk); the last two only for the last token.

        Where the server sends the finish reason in a separate event, each token is held back until the next event.
        """
        held: AnswerToken | None = None
        finish: str | None = None
        shown = ""
        empty = seen = 0
        path, body = self._dialect.request(asked, self._abilities, stream=True)
        async with aclosing(self._client.events(path, body, within=first_seconds(len(asked.prompt.ids)))) as events:
            try:
                async for data in events:
                    chunk = self._client.cleanly(self._dialect.read, data, asked)
                    request.take_counts(chunk)
                    fresh = len(chunk.pieces) if chunk.generated is None else max(0, chunk.generated - seen)
                    seen += fresh
                    received = await self._with_missing(chunk, fresh)
                    pieces = [known for piece in received for known in self._with_ids(piece)]
                    empty = 0 if pieces else empty + 1
                    if empty > _MOST_EMPTY_EVENTS:
                        raise malformed(f"{empty:,} events without a token")
                    finish, shown = chunk.finish, chunk.text
                    for piece in pieces:
                        if held is not None:
                            yield held, None, ""
                        held = piece
                    end = None if chunk.finish is None else chunk.stopped_by
                    if end is not None and (held is None or held.token != end):
                        if held is not None:
                            yield held, None, ""
                        held = AnswerToken(end, "", None, None)
                    if held is not None and finish is None and self._dialect.returns_eos:
                        yield held, None, ""
                        held = None
                    if finish is not None:
                        break
                if finish is None:
                    raise RemoteError(f"{self._client.address.host} ended the answer without saying why", "lost")
                await self._count_rest(events, asked, request)
            except RemoteError:
                if held is not None:  # received before the error
                    yield held, None, ""
                raise
        if held is not None:
            yield held, finish, shown

    async def _with_missing(self, chunk: AnswerChunk, fresh: int) -> list[AnswerToken]:
        """The last `fresh` tokens of an event. Tokens that the event lacks are found by their bytes, and have no numbers."""
        pieces = list(chunk.pieces[-fresh:]) if fresh else []
        missing = fresh - len(pieces)
        if not missing or not pieces or not chunk.text:
            return pieces
        last = pieces[0].token
        ids = None if last is None or missing > _MOST_MISSING else await self.text.parts(chunk.text, missing, last)
        if ids is None:
            raise malformed(f"{missing:,} tokens before the text {chunk.text[:20]!r} are missing, and cannot be told from it")
        return [*(AnswerToken(token, "", None, None) for token in ids), *pieces]

    async def _count_rest(self, events: AsyncGenerator[bytes, None], asked: RemoteRequest, request: CountedRequest) -> None:
        """Reads the token counts that follow the last token, if they arrive within `_USAGE_SECONDS`."""
        with suppress(TimeoutError, RemoteError, StopAsyncIteration):
            async with asyncio.timeout(_USAGE_SECONDS):
                for _ in range(_MOST_USAGE_EVENTS):
                    request.take_counts(self._dialect.read(await anext(events), asked))

    def _with_ids(self, piece: AnswerToken) -> list[AnswerToken]:
        """The piece with its id and the ids of its alternatives; a text of several tokens becomes several pieces."""
        if piece.token is not None:
            return [self._by_id(piece)]
        if not piece.text:
            return []
        ids = self.text.ids_of(piece.text)
        if len(ids) == 1:
            return [self._by_id(piece._replace(token=ids[0]))]
        return [AnswerToken(token, "", None, None) for token in ids]

    def _by_id(self, piece: AnswerToken) -> AnswerToken:
        """The piece with its alternatives by id; alternatives whose text is not exactly one token are left out."""
        found = piece.alternatives
        if found is None or not found.keys or isinstance(found.keys[0], int):
            return piece
        ids: dict[int, float] = {}
        for key, value in zip(found.keys, found.logprobs, strict=True):
            of_text = self.text.ids_of(str(key))
            if len(of_text) == 1:
                ids.setdefault(of_text[0], value)
        return piece._replace(alternatives=found._replace(keys=list(ids), logprobs=list(ids.values())))

    # ---- vectors and text ------------------------------------------------------------------------------------

    async def embed(self, paths: Sequence[Int32], pooling: Pooling, adapters: Adapters) -> Float32:
        """``(n, hidden)``, each row of length 1; equal texts are sent once."""
        host = self._client.address.host
        if not self._abilities.embeddings:
            raise UnsupportedFeatureError(f"{host} has no embeddings of {self._facts.model}")
        if pooling != "last":
            raise UnsupportedFeatureError(f"{host} pools as it was started to; pooling={pooling!r} cannot be asked for there")
        model = self._model(adapters)
        different = {path.tobytes(): path for path in paths}
        prompts = [self.text.prompt(path.tolist()) for path in different.values()]
        async with self._some, self._request("embed", sum(map(len, paths))):
            rows: list[list[float]] = []
            for at in range(0, len(prompts), 64):
                rows += await self._dialect.embed(self._client, model, prompts[at : at + 64])
        if len({len(row) for row in rows}) != 1:
            raise malformed("embeddings that are no vectors of one length")
        vectors = np.asarray(rows, np.float64)
        if not vectors.size or not (np.abs(vectors) < np.finfo(np.float32).max).all():
            raise malformed("embeddings that are empty or not finite")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(lengths > 0, lengths, 1.0)
        places = {key: row for row, key in enumerate(different)}
        return vectors[[places[path.tobytes()] for path in paths]].astype(np.float32)

    async def render_chat(
        self, messages: Sequence[Message], tools: Sequence[Message] | None, add_generation_prompt: bool
    ) -> list[int]:
        """Ids of a conversation, by a template of this machine or of the server."""
        if self.text.facts.chat_template is None:
            raise UnsupportedFeatureError(
                f"{self._facts.model} has no chat template here: connect with chat_format='chatml' or another, or continue text"
            )
        return await self.text.render_chat(messages, tools, add_generation_prompt)

    # ---- requests --------------------------------------------------------------------------------------------

    def _model(self, adapters: Adapters) -> str:
        """The server's id of the model under these adapters.

        Raises:
            AdapterError: The server does not have the adapter.
            UnsupportedFeatureError: Several adapters, or an adapter with a scale.
        """
        pairs = check_adapters(adapters) if adapters else ()
        if not pairs:
            return self._facts.model
        host = self._client.address.host
        if len(pairs) > 1 or pairs[0][1] != 1.0:
            raise UnsupportedFeatureError(f"{host} takes one adapter with the scale it was made with, not {pairs!r:.100}")
        name = pairs[0][0].removesuffix("_lora")
        if name not in self._facts.adapters:
            known = ", ".join(self._facts.adapters) or "none"
            raise AdapterError(f"{host} has no adapter {name!r} of {self._facts.model} (it has: {known})")
        return name

    def _completion(self, ids: Int32, model: str, salt: str, **asked: Any) -> RemoteRequest:
        if len(ids) >= self.info.context_length:  # a server generates at least one token
            raise ContextOverflowError("prompt", len(ids), 1, self.info.context_length)
        if salt and not self._abilities.cache_salt:
            raise UnsupportedFeatureError(f"{self._client.address.host} takes no cache_salt: its prefix cache is shared")
        own = self._salt if self._abilities.cache_salt else ""
        return RemoteRequest(model=model, prompt=self.text.prompt(ids.tolist()), salt=salt or own, **asked)

    async def _asked(self, asked: RemoteRequest, most: int) -> AnswerChunk:
        path, body = self._dialect.request(asked, self._abilities, stream=False)
        answer = await self._client.post(path, body, within=first_seconds(len(asked.prompt.ids)), most=most)
        return self._client.cleanly(self._dialect.read, answer, asked)

    async def _shared(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Shares one request among equal queries while it runs; cancels it when the last waiter leaves."""
        self._counters.add(queries=1)
        shared = self._inflight.get(key)
        if shared is None:
            shared = self._inflight[key] = _Shared(asyncio.ensure_future(ask()))
        else:
            self._counters.add(queries_deduplicated=1)
        shared.waiters += 1
        try:
            answer: T = await asyncio.shield(shared.task)
            return answer
        finally:
            shared.waiters -= 1
            if not shared.waiters:
                shared.task.cancel()
            if (not shared.waiters or shared.task.done()) and self._inflight.get(key) is shared:
                del self._inflight[key]

    def _request(self, kind: str, prompt: int, seed: int | None = None) -> CountedRequest:
        self._counters.add(requests_started=1, requests_active=1)
        return CountedRequest(self._counters, kind, self.metrics.requests_started, prompt, seed)


@dataclass(slots=True)
class _Shared:
    """A running query and its number of waiters."""

    task: asyncio.Future[Any]
    waiters: int = 0


class BranchTasks:
    """The branches of a stream, which can be dropped. Used on the transport's loop."""

    def __init__(self) -> None:
        self._dropped: set[int] = set()
        self._tasks: Mapping[int, asyncio.Task[None]] = {}

    def begin(self, tasks: Mapping[int, asyncio.Task[None]]) -> None:
        """Registers the running branches, and cancels those that were dropped earlier."""
        self._tasks = tasks
        for number in self._dropped:
            self.drop(number)

    def drop(self, number: int) -> None:
        """Cancels a branch, also one that has not begun."""
        self._dropped.add(number)
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()


def _only_piece(chunk: AnswerChunk) -> AnswerToken:
    if not chunk.pieces:
        raise malformed("no token where one was asked for")
    return chunk.pieces[0]


def _bytes_of(positions: int, alternatives: int) -> int:
    """The largest accepted answer, in bytes: 300 bytes per number with its text."""
    return MOST_SMALL_BYTES + positions * (alternatives + 2) * 300


def _server_seed(options: GenerationOptions) -> int:
    """The seed of the server's random numbers: that of the options for branch 0, a derived one for other branches."""
    assert options.seed is not None  # drawn where options are resolved
    return (options.seed + options.branch * _BRANCH_STRIDE) & _MOST_SEED
