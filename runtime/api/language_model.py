"""`LanguageModel`: a model, in this process (`load`), in an engine process (`spawn`), on a server (`connect`).

Rules that hold for all members:

- A token is an int; a log-probability is natural, from the float32 log-softmax of the raw logits.
- Coroutines and async generators work on any running loop, from several loops in several threads, and under repeated
  `asyncio.run`. Cancelling the awaiting task, or closing a generator, stops the work between two steps; the KV computed so far
  stays in the cache.
- Blocking members may be called from any thread; they block a loop that runs there. Most members exist in both forms: ``x``
  and ``x_sync`` where the plain name is awaited, ``x_async`` and ``x`` where it blocks. Properties, `metrics` and
  `cache_report` never block and never compute.
- Work queued in one turn of an event loop (a `gather`) reaches the scheduler as one batch.
- After `close`, and after the end of the engine process, every member that needs the model raises an error.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np

from runtime import html
from runtime.adapters.uses import Adapters
from runtime.aio import blocking, blocking_iterator, gathered
from runtime.api import bulk
from runtime.api.adapter_stack import AdapterStack
from runtime.api.checks import RequestChecks, adapter_pairs, check_fits, plain_messages, plain_tools, request_terms
from runtime.api.kv import KvCache
from runtime.api.progress import ShowProgress, reporting, reporting_ends, reporting_prompt, reporting_steps
from runtime.api.windows import WindowTotal, joined, sliding_windows
from runtime.beams import BeamOptions, Hypothesis, OnStep, given_beams
from runtime.branches import Branches, Options, Prompts, check_count, check_prompts, naming_prompt, options_for, records_of
from runtime.errors import InvalidRequestError, RuntimeFault, UnsupportedFeatureError
from runtime.info import CacheReport, Message, Metrics, ModelInfo, OnProgress
from runtime.lens import MOST_TOKENS, LensCost, LensRun, check_positions
from runtime.numerics.pooling import Pooling, check_pooling, checked_texts
from runtime.options.checking import check_value, is_whole, plain_number, shown, whole
from runtime.options.generation import (
    ALTERNATIVES,
    AnswerEnds,
    GenerationOptions,
    Layer,
    ResolvedOptions,
    SamplingOptions,
    given,
    resolve_options,
)
from runtime.options.priority import Priority
from runtime.records import Completion, Finish, Float32, Int32, TokenRecord, TokenRecords, TokenRun, TopLogprobs
from runtime.text.utf8 import clean_text
from runtime.transport.base import Transport

if TYPE_CHECKING:  # circular: sessions import this module
    from runtime.session.session import Session, SessionConfig
    from runtime.session.snapshot import Snapshot

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", TokenRun, TopLogprobs, LensRun)


def _of(part: str, member: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[LanguageModel, P], T]:
    """A member of a capability as a member of the model: ``model.x`` is ``model.part.x``."""

    def forward(self: LanguageModel, /, *arguments: P.args, **named: P.kwargs) -> T:
        answer: T = getattr(getattr(self, part), member.__name__)(*arguments, **named)
        return answer

    return update_wrapper(forward, member)


class LanguageModel:
    """A loaded model. The module's docstring has the rules for all members.

    Raises (any member that takes token ids):
        InvalidRequestError: An id out of range or of the wrong type, or an empty list where a token is needed.
        ContextOverflowError: More tokens than the context holds; raised before anything is computed.
        NonFiniteLogitsError: The model's logits hold NaN or infinity.
        MemoryBudgetError: The KV does not fit into the budget.
        SessionClosedError: The model was closed.
        EngineDiedError: The engine process ended (a spawned model only).

    Args:
        transport: Connects the model to its engine.

    Attributes:
        transport: The argument.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        info = transport.state.info
        self._checks = RequestChecks(info.vocab_size, info.context_length)
        self._kv, self._adapters = KvCache(transport, self._checks), AdapterStack(transport)
        self._tokenizer_digest: str | None = None
        self._before_text: list[int] | None = None  # the ids of "", which the tokenizer puts before every text
        self._finalizer = weakref.finalize(self, transport.finalize)
        self._finalizer.atexit = False  # at exit the engine ends with the process

    def __repr__(self) -> str:
        return f"LanguageModel({', '.join(str(value) for _, value in self._facts()[:4])})"

    def _repr_html_(self) -> str:
        return html.page(html.table(self._facts()))

    def _facts(self) -> list[tuple[str, object]]:
        info = self.info
        facts: list[tuple[str, object]] = [
            ("model", info.name),
            ("backend", info.backend),
            ("device", info.device),
            ("precision", info.precision),
            ("architecture", f"{info.architecture}, {info.layers} layers"),
            ("parameters", f"{info.parameters:,}"),
            ("vocabulary", f"{info.vocab_size:,} tokens"),
            ("context", f"{info.context_length:,} tokens"),
            ("adapters", ", ".join(f"{name} x {scale:g}" for name, scale in info.lora_stack)),
            ("warnings", "; ".join(info.warnings)),
            ("state", "" if self.ended is None else f"ended: {self.ended}"),
        ]
        return [(name, value) for name, value in facts if value]

    @property
    def kv(self) -> KvCache:
        """The engine's KV cache.

        Raises:
            UnsupportedFeatureError: The engine, such as a server, has no KV cache that can be accessed from here.
        """
        self._require("kv", "KV cache that can be looked into, saved or pinned from here")
        return self._kv

    @property
    def adapters(self) -> AdapterStack:
        """The engine's LoRA adapters.

        Raises:
            UnsupportedFeatureError: The engine, such as a server, cannot load adapters from here.
        """
        self._require("adapters", "adapters that can be loaded from here")
        return self._adapters

    def has(self, capability: str) -> bool:
        """Whether the engine has an optional capability: "kv", "scores", ... (see `Transport.capabilities`)."""
        return isinstance(capability, str) and capability in self.transport.capabilities

    @property
    def lacks(self) -> frozenset[str]:
        """The optional capabilities that this engine lacks; only servers lack any."""
        from runtime.transport.methods import CAPABILITIES  # imported late: the window opens without it

        return CAPABILITIES - self.transport.capabilities

    def _require(self, capability: str, what: str) -> None:
        if not self.has(capability):
            raise UnsupportedFeatureError(f"the engine of {self.info.name} has no {what}")

    def _spelled(self, result: R) -> R:
        """The result with the model's vocabulary, which has the texts of its alternatives."""
        return replace(result, vocabulary=self.transport.text.byte_vocab)

    # ---- state -----------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """Facts about the model: geometry, fingerprints, options in force, warnings."""
        return self.transport.state.info

    def metrics(self) -> Metrics:
        """The counters as of the last answer; while a request runs they are updated every 100 ms at most."""
        return self.transport.state.metrics

    def cache_report(self) -> CacheReport:
        """The cache after a step: the last step where no request runs, otherwise a step at most 0.25 s ago.

        A step's report follows its answers: right after an answer the report may still be that of the step before.
        """
        return self.transport.state.cache

    @property
    def pid(self) -> int:
        """The id of the engine's process."""
        return self.transport.pid

    @property
    def ended(self) -> RuntimeFault | None:
        """Why the model is unusable (`EngineDiedError`, or closed); None while the engine lives."""
        return self.transport.ended

    def close(self) -> None:
        """Ends the model within 2 s and frees its memory; waiting callers get `SessionClosedError`. Blocking; idempotent."""
        self._finalizer.detach()
        self.transport.close()

    async def close_async(self, *, within: float | None = None) -> None:
        """`close`, awaited.

        Args:
            within: Seconds after which an engine process that still runs is killed; None: 2. Without effect on a model in this
                process.
        """
        self._finalizer.detach()
        await self.transport.close_async(within)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- next-token log-probabilities ------------------------------------------------------------------------

    async def next_token_logprobs(
        self,
        ids: Sequence[int],
        *,
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        cache_salt: str = "",
    ) -> Float32:
        """Log-probabilities of the token after `ids`, ``(vocab,) float32``.

        Args:
            ids: From the first token on.
            adapters: Loaded adapters, in order; () is the base, None the model's stack. Queries, scores, samples, embeddings
                and beam searches take them likewise; `generate` takes them as `GenerationOptions.adapters`.
            priority: The order among waiting requests.
            cache_salt: Requests share cached tokens only with requests of the same salt; requests without a salt share theirs
                among themselves. It has this meaning in all members.
        """
        named = {"batch": [self._checks.ids(ids)], **request_terms(adapters, priority, cache_salt)}
        rows: Float32 = await self.transport.call("logprobs", **named)
        row: Float32 = rows[0]
        return row

    async def batch_next_token_logprobs(
        self,
        batch: Sequence[Sequence[int]],
        *,
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        cache_salt: str = "",
    ) -> Float32:
        """`next_token_logprobs` for several sequences, ``(n, vocab) float32``, a row for each; duplicates cost nothing."""
        named = {"batch": self._checks.batch(batch), **request_terms(adapters, priority, cache_salt)}
        rows: Float32 = await self.transport.call("logprobs", **named)
        return rows

    async def top_logprobs(
        self,
        ids: Sequence[int],
        n: int = 20,
        *,
        chosen: Sequence[int] = (),
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        cache_salt: str = "",
    ) -> TopLogprobs:
        """The `n` likeliest tokens after `ids`, and the exact probability of all others together.

        For a model on a server this is one small answer, whereas `next_token_logprobs` transfers the whole vocabulary as text,
        or is refused (`FullVocabUnavailableError`).

        Args:
            ids: From the first token on.
            n: At least 1, at most the size of the vocabulary.
            chosen: Ids whose values are returned whatever their rank.
            adapters: As for `next_token_logprobs`.
            priority: As for `next_token_logprobs`.
            cache_salt: As for `next_token_logprobs`.
        """
        found = await self.batch_top_logprobs(
            [ids], n, chosen=chosen, adapters=adapters, priority=priority, cache_salt=cache_salt
        )
        return found[0]

    async def batch_top_logprobs(
        self,
        batch: Sequence[Sequence[int]],
        n: int = 20,
        *,
        chosen: Sequence[int] = (),
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        cache_salt: str = "",
    ) -> list[TopLogprobs]:
        """`top_logprobs` for several sequences; duplicates cost nothing."""
        check_value("n", n, whole(1, of="tokens"))
        vocab, paths = self._checks.vocab_size, self._checks.batch(batch)
        wanted = self._checks.optional_ids(chosen, "chosen").tolist()
        named = {"batch": paths, **request_terms(adapters, priority, cache_salt)}
        found: list[TopLogprobs] = await self.transport.call("top_logprobs", n=min(n, vocab), chosen=wanted, **named)
        return [self._spelled(top) for top in found]

    async def next_token_logprobs_uncached_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """`next_token_logprobs` by a plain forward pass of the library, without the cache, ``(vocab,) float32``.

        This is the reference that cached answers are compared with.
        """
        row: Float32 = await self.transport.call(
            "logprobs_uncached", ids=self._checks.ids(ids), adapters=adapter_pairs(adapters)
        )
        return row

    async def reset_async_queries_async(self) -> None:
        """Cancels unanswered log-probability queries: their waiters get CancelledError."""
        await self.transport.call("reset_queries")

    next_token_logprobs_sync = blocking(next_token_logprobs)
    batch_next_token_logprobs_sync = blocking(batch_next_token_logprobs)
    top_logprobs_sync = blocking(top_logprobs)
    batch_top_logprobs_sync = blocking(batch_top_logprobs)
    next_token_logprobs_uncached = blocking(next_token_logprobs_uncached_async)
    reset_async_queries = blocking(reset_async_queries_async)

    # ---- scores ----------------------------------------------------------------------------------------------

    async def score(
        self,
        ids: Sequence[int],
        top_k: int = 10,
        start: int = 0,
        *,
        stride: int | None = None,
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        cache_salt: str = "",
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> TokenRecords:
        """Scores given tokens: log-probability, rank, entropy and alternatives of each.

        Args:
            ids: The whole sequence, from its first token on.
            top_k: Alternatives recorded per token.
            start: The first position to score; earlier tokens are only context.
            stride: Scores `ids` that are longer than the context in windows of the context's length (one token less on a
                server, which always generates a token) that begin `stride` tokens apart (1 to the context minus one). Each
                token is scored once; after the first window it has at least ``context - stride`` tokens before it. A window is
                computed as a text of its own: half the context is a fair stride, a quarter gives lower perplexities in twice
                the time. Without effect on `ids` that fit. None: `ids` that do not fit are refused.
            adapters: As for `next_token_logprobs`.
            priority: The order among waiting requests; the prompt of a generation has `Priority.CHAT`.
            cache_salt: As for `next_token_logprobs`.
            progress: True draws a tqdm bar; a callable gets the count done and the total, here in tokens. Other members count
                the following: `generate` and `complete` the tokens of the answer, `continue_many` and `generate_many` ended
                answers, `embed` tokens, `lens` positions, `beam_generate` steps.
            on_progress: Called after each chunk, on the caller's loop or thread, in order, the last time before the answer; it
                counts the tokens of all windows. `generate` calls it for its prompt.

        Returns:
            A list, and a table, of ``len(ids) - start`` records: record i scores ``ids[start + i]`` given all tokens before it
            (in its window). The numbers of the very first token are None.
        """
        run = await self.score_run(
            ids,
            top_k,
            start,
            stride=stride,
            adapters=adapters,
            priority=priority,
            cache_salt=cache_salt,
            progress=progress,
            on_progress=on_progress,
        )
        return TokenRecords(run)

    async def score_run(
        self,
        ids: Sequence[int],
        top_k: int = 10,
        start: int = 0,
        *,
        stride: int | None = None,
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        cache_salt: str = "",
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> TokenRun:
        """`score` with the result in columns."""
        check_value("top_k", top_k, ALTERNATIVES)
        under = {"top_k": top_k, **request_terms(adapters, priority, cache_salt)}
        if stride is None:
            path = self._checks.ids(ids)
            if not is_whole(plain_number(start), 0, len(path) - 1):
                raise InvalidRequestError(f"start must lie within 0 and {len(path) - 1}, not {shown(start)}")
            with reporting_prompt(progress, "token", on_progress) as hear:
                run: TokenRun = await self.transport.call("score", on_progress=hear, ids=path, start=int(start), **under)
            return self._spelled(run)
        room = self.info.context_length - (not self.has("kv"))  # a server always generates a token
        path, windows = sliding_windows(ids, self.info.vocab_size, room, start, stride)
        runs: list[TokenRun] = []
        with reporting_prompt(progress, "token", on_progress) as hear:
            total = None if hear is None else WindowTotal(hear, windows)
            for begin, end, first in windows:
                hears = None if total is None else total.next_window()
                runs.append(await self.transport.call("score", on_progress=hears, ids=path[begin:end], start=first, **under))
        return self._spelled(joined(runs))

    score_sync, score_run_sync = blocking(score), blocking(score_run)
    score_many, top_many = bulk.score_many, bulk.top_many
    score_many_sync, top_many_sync = bulk.on_a_loop(bulk.score_many), bulk.on_a_loop(bulk.top_many)

    # ---- generation ------------------------------------------------------------------------------------------

    async def generate(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> AsyncGenerator[TokenRecord, None]:
        """Draws tokens after `ids`, and yields the record of each as soon as it is known; called without await.

        `named` are single options in place of `options`, by the names that `GenerationOptions.from_mapping` knows
        (``max_tokens=64``, ``temp=0.7``); `top_k` among them is the sampler's. `generate_sync` and `complete` take them too.

        The last record, which may be that of an eos, has a `finish_reason`. Closing the generator early, best with
        `contextlib.aclosing`, stops the generation. Records that were yielded before an error stay valid.
        """
        stream = self.generate_runs(ids, given(options, named), progress=progress, on_progress=on_progress)
        async with aclosing(stream) as runs:
            async for run in runs:
                for record in run:
                    yield record

    async def generate_runs(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[TokenRun, None]:
        """`generate` in chunks: each run has all tokens that arrived since the previous one."""
        chosen = given(options)
        branches = self.transport.stream("generate", on_progress=on_progress, ids=self._checks.ids(ids), options=chosen)
        done = 0
        with nullcontext() if progress is False else reporting(progress, "token") as say:
            async with aclosing(branches.items) as runs:
                async for _, run in runs:
                    yield run
                    if say is not None:
                        done += len(run)
                        say(done, chosen.max_tokens)

    generate_sync, generate_runs_sync = blocking_iterator(generate), blocking_iterator(generate_runs)

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
        *,
        adapters: Adapters = None,
    ) -> list[int]:
        """Draws up to `max_tokens` ids after the prompt, without the eos that ends them (genlm-backend's call).

        `adapters` are as for `next_token_logprobs`.
        """
        prompt, eos = self._checks.ids(prompt_token_ids), _eos_set(eos_token_ids)
        if max_tokens == 0 and not isinstance(max_tokens, bool):  # valid, as in genlm: draws nothing
            return []
        options = GenerationOptions(
            max_tokens=max_tokens,
            sampling=SamplingOptions(temperature=temperature),
            top_k=0,
            seed=seed,
            resolve=False,
            eos_token_ids=tuple(sorted(eos)),
            adapters=adapter_pairs(adapters),
        )
        run: TokenRun = await self.transport.call("generate_whole", ids=prompt, options=given(options))
        ids: list[int] = run.ids[run.finish != Finish.EOS].tolist()
        return ids

    async def batch_sample(
        self,
        prompt_token_ids_list: Sequence[Sequence[int]],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
        *,
        adapters: Adapters = None,
    ) -> list[list[int]]:
        """`sample` for several prompts; row i answers prompt i, and is the same whether computed alone or in the batch."""
        prompts = self._checks.batch(prompt_token_ids_list)
        each = (
            self.sample(prompt.tolist(), max_tokens, eos_token_ids, temperature, seed, adapters=adapters) for prompt in prompts
        )
        return await gathered(*each)

    async def complete(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        *,
        progress: ShowProgress = False,
        **named: Any,
    ) -> Completion:
        """Continues a plain text, or answers a list of messages by the chat template.

        The answer has a `finish_reason`, and is `incomplete` where it was cut before its own end, or is unsound JSON.

        Raises:
            GrammarError: The grammar cannot be used (before anything is computed), or fails during the generation.
            UnsupportedFeatureError: Messages without a chat template (a `chat_format` at load gives one).
        """
        chosen = given(options, named)
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence) or (prompt and is_whole(plain_number(prompt[0]), 0)):
            raise InvalidRequestError(
                f"complete takes a text or a list of messages, not {type(prompt).__name__}; generate continues token ids"
            )
        texts = [prompt] if isinstance(prompt, str) else [m.get("content") for m in prompt if isinstance(m, Mapping)]
        check_fits(self, *(text for text in texts if isinstance(text, str)))
        ids = await (self.tokenize_async(prompt) if isinstance(prompt, str) else self.render_chat_async(prompt))
        if progress:
            run = TokenRun.concat([part async for part in self.generate_runs(ids, chosen, progress=progress)])
        else:
            run = await self.transport.call("generate_whole", ids=self._checks.ids(ids), options=chosen)
        return Completion(self._spelled(run))

    complete_sync = blocking(complete)

    # ---- several at once -------------------------------------------------------------------------------------
    #
    # Each step is one forward for all running branches, up to `max_batch_rows`. A branch ends with a record that has a
    # `finish_reason`. A failing branch does not end the others: its records stay valid, the others run to their end, and then
    # its error is raised, with a note of the numbers of all failed branches (whose last records have no `finish_reason`).
    # Closing a generator early, best with `contextlib.aclosing`, stops all branches; `Branches.drop` stops one.
    #
    # A branch draws the same tokens in a batch as alone, within the rounding of float32. A model that computes in 16 bits, or
    # with weights in bfloat16, int8 or int4, may draw other tokens under the same seed; `ModelInfo.warnings` then says so.

    def continue_many(
        self,
        ids: Sequence[int],
        n: int,
        options: GenerationOptions | None = None,
        *,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> Branches[TokenRecord]:
        """Draws `n` continuations of one prefix, ``(branch, record)`` as they arrive; called without await.

        The prefix is computed and held once: the computed tokens are those of the prefix that the cache lacks, and the new
        tokens of each branch. Branches share one seed and are numbered from ``options.branch`` on (0 by default); branch k
        draws the same tokens as ``generate`` with this seed and ``branch=k``.

        Args:
            ids: The prefix.
            n: Branches, 1 to 1,024.
            options: The options of every branch; greedy branches are identical and share their rows.
            progress: As for `score`.
            on_progress: Called with the progress of the prefix.

        Raises:
            UnsupportedFeatureError: `speculative` with more than one branch.
        """
        runs = self.continue_many_runs(ids, n, options, progress=progress, on_progress=on_progress)
        return Branches(records_of(runs), runs.drop)

    def continue_many_runs(
        self,
        ids: Sequence[int],
        n: int,
        options: GenerationOptions | None = None,
        *,
        priority: Priority = Priority.CHAT,
        cache_salt: str = "",
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> Branches[TokenRun]:
        """`continue_many` in chunks: each run has all tokens of its branch that arrived since the previous one.

        `priority` orders the prompt among waiting requests; `cache_salt` is as for `next_token_logprobs`.
        """

        def begin() -> Branches[TokenRun]:
            chosen = given(options)
            check_count(n, chosen.branch)
            if n > 1 and chosen.speculative is not None:
                raise UnsupportedFeatureError(
                    f"{n} branches decode together in one forward, without speculative decoding: leave "
                    "`speculative` out, or ask for n=1"
                )
            path = self._checks.ids(ids)
            terms = request_terms(None, priority, cache_salt)
            del terms["adapters"]  # the options have them
            stream = self.transport.stream("continue_many", on_progress=on_progress, ids=path, n=n, options=chosen, **terms)
            return reporting_ends(stream, progress, n)

        return Branches.later(begin)

    def generate_many(
        self, prompts: Prompts, options: Options = None, *, progress: ShowProgress = False
    ) -> Branches[TokenRecord]:
        """Answers several prompts in one batch, ``(prompt's number, record)`` as they arrive; called without await.

        Prompt i gets the answer of ``generate(prompts[i], options of i)``. All prompts are checked before any is computed; an
        error names the prompt's number. Up to `max_batch_rows` run at a time; the next begins when one has ended.

        Args:
            prompts: Token ids, or raw text, which is tokenised without template and roles.
            options: One for all prompts, or a list with one for each. Prompts without a seed get a seed of their own each.
            progress: As for `score`.
        """
        runs = self.generate_many_runs(prompts, options, progress=progress)
        return Branches(records_of(runs), runs.drop)

    def generate_many_runs(
        self, prompts: Prompts, options: Options = None, *, progress: ShowProgress = False
    ) -> Branches[TokenRun]:
        """`generate_many` in chunks."""

        async def begin() -> Branches[TokenRun]:
            each = options_for(check_prompts(prompts), options)
            texts = [prompt for prompt in prompts if isinstance(prompt, str)]
            for i, prompt in enumerate(prompts):
                if isinstance(prompt, str):
                    check_fits(self, prompt, stage=f"prompt {i}")
            tokenized = iter(await self._tokenized(texts) if texts else ())
            paths: list[Int32] = []
            chosen: list[GenerationOptions] = []
            for i, prompt in enumerate(prompts):
                with naming_prompt(i):
                    paths.append(self._checks.ids(next(tokenized) if isinstance(prompt, str) else prompt))
                    chosen.append(given(each[i]))
            return reporting_ends(self.transport.stream("generate_many", prompts=paths, options=chosen), progress, len(paths))

        return Branches.later(begin)

    async def beam_generate(
        self,
        ids: Sequence[int],
        options: BeamOptions | None = None,
        *,
        adapters: Adapters = None,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
    ) -> list[Hypothesis]:
        """The best continuations found by a beam search over the model's raw distribution, best first; deterministic.

        The result equals that of transformers' beam search with the same options. A step is one forward for all beams; the
        computed tokens are those of the prefix that the cache lacks, and at most `width` per step except the last.

        Args:
            ids: The prefix to continue.
            options: Width, length and end of the search.
            adapters: As for `next_token_logprobs`.
            progress: As for `score`.
            on_progress: Called with the progress of the prefix.
            on_step: Called with the beams after each step, on the caller's loop or thread, in order.
        """
        chosen, path = given_beams(options, self._checks.vocab_size), self._checks.ids(ids)
        with reporting_steps(progress, chosen.max_tokens, on_step) as hear:
            hypotheses: list[Hypothesis] = await self.transport.call(
                "beam_generate",
                on_progress=on_progress,
                on_step=hear,
                options=chosen,
                ids=path,
                adapters=adapter_pairs(adapters),
            )
        return [replace(hypothesis, run=self._spelled(hypothesis.run)) for hypothesis in hypotheses]

    # ---- vectors ---------------------------------------------------------------------------------------------

    async def embed(
        self,
        texts: Sequence[str],
        pooling: Pooling = "last",
        *,
        adapters: Adapters = None,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> Float32:
        """One vector per text, pooled from the model's last hidden states (after the final norm).

        Texts are tokenised as by `tokenize` and are independent: except for the rounding of the last bits, a text has the same
        vector alone and among thousands. Equal texts are computed once. Nothing stays in the cache. The work is done in slices
        between the steps of other requests. A cancelled call ends between two slices; the next call with the same texts reuses
        its vectors.

        Args:
            texts: At least one text.
            pooling: "last" (the last token's state, which depends on the whole text), "mean", "max" (the elementwise maximum)
                or "cls" (the first token's state; useful only for a model trained for it).
            adapters: As for `next_token_logprobs`.
            progress: As for `score`.
            on_progress: Called after each slice, on the caller's loop or thread, with the tokens of all texts done; `computed`
                counts the tokens pushed through the model, including padding.

        Returns:
            ``(len(texts), hidden_size) float32``, each row of length 1, in the order of the texts.

        Raises:
            InvalidRequestError: No texts, an empty text, an item that is not a text, or an unknown pooling; names the place.
            ContextOverflowError: A text is longer than the context; the error's `stage` is the text's place, "texts[3]".
            MemoryBudgetError: The KV of one text does not fit into the budget.
            AdapterError: An adapter is unknown, or not loaded.
            UnsupportedFeatureError: The backend returns no hidden states of this architecture, or an activated adapter begins
                in the middle of a text.
            NonFiniteLogitsError: The hidden states hold NaN or infinity.
        """
        pooling = check_pooling(pooling)
        listed = checked_texts(texts)
        for row, text in enumerate(listed):
            check_fits(self, text, stage=f"texts[{row}]")
        paths = [self._checks.ids(ids, f"texts[{row}]") for row, ids in enumerate(await self._tokenized(listed))]
        with reporting_prompt(progress, "token", on_progress) as hear:
            vectors: Float32 = await self.transport.call(
                "embed", on_progress=hear, paths=paths, pooling=pooling, adapters=adapter_pairs(adapters)
            )
        return vectors

    embed_sync = blocking(embed)

    # ---- layers ----------------------------------------------------------------------------------------------

    async def lens(
        self,
        ids: Sequence[int],
        positions: Sequence[int] | None = None,
        *,
        top_k: int = 5,
        tokens: Sequence[int] = (),
        adapters: Adapters = None,
        progress: ShowProgress = False,
        on_progress: OnProgress | None = None,
    ) -> LensRun:
        """The next-token distribution after each layer of the model, at some positions (the logit lens).

        A position costs one forward of its token, with keys and values from the cache, and one row of the head per layer
        (`LensCost`). The work has the lowest priority. A cancelled call ends between two forwards; an equal later call
        continues from there. `LensRun.deviation` compares the last layer with the ordinary log-probabilities.

        Args:
            ids: The whole text, from its first token on.
            positions: Positions whose next token is predicted, in any order. None: the last one.
            top_k: Alternatives recorded for each layer.
            tokens: Ids whose values are returned at every position, in addition to the token that follows; at most 64.
            adapters: As for `next_token_logprobs`.
            progress: As for `score`.
            on_progress: Called with the number of positions done, on the caller's loop or thread.

        Raises:
            InvalidRequestError: A position outside the text or given twice, or an answer that would be too large.
            UnsupportedFeatureError: The layers of a server's model, or of this architecture, cannot be read; the message has
                the reason.
        """
        self._require("lens", "layers that can be read from here: it answers with tokens and their probabilities alone")
        check_value("top_k", top_k, ALTERNATIVES)
        path = self._checks.ids(ids)
        places = check_positions(positions, len(path))
        wanted = self._checks.optional_ids(tokens, "tokens")
        if len(wanted) > MOST_TOKENS:
            raise InvalidRequestError(
                f"{len(wanted):,} tokens, more than {MOST_TOKENS}, are asked for; top_k has the likeliest"
            )
        LensCost.of(self.info, len(places), top_k, len(wanted)).check()
        order = np.argsort(places)
        under: dict[str, Any] = {"options": {"tokens": wanted, "top_k": top_k}, "adapters": adapter_pairs(adapters)}
        with reporting_prompt(progress, "position", on_progress) as hear:
            columns = await self.transport.call(
                "read", on_progress=hear, reading="lens", ids=path, positions=places[order], **under
            )
        try:
            run = LensRun.from_columns(columns)
        except (KeyError, IndexError, ValueError) as fault:
            raise RuntimeFault(f"the engine's answer is no lens: {fault}") from fault
        return self._spelled(run[np.argsort(order)])

    lens_sync = blocking(lens)

    # ---- text ------------------------------------------------------------------------------------------------

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text, in the order of the model's configuration."""
        return self.transport.text.eos_token_ids

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template in force; None without one."""
        return self.transport.text.chat_template

    @property
    def byte_vocab(self) -> list[bytes]:
        """The exact bytes of every id, ``vocab_size`` entries; ids without bytes (padding) have empty ones."""
        return list(self.transport.text.byte_vocab)

    async def byte_vocab_async(self) -> list[bytes]:
        """The complete `byte_vocab`: asks a tokenising server for every unknown id, which can take hundreds of requests."""
        if self.has("kv"):
            return self.byte_vocab
        pieces: list[bytes] = await self.transport.call("byte_vocab")
        return pieces

    @property
    def str_vocab(self) -> list[str]:
        """The text of every id, ``vocab_size`` entries; where the bytes are not UTF-8, the tokenizer's own spelling."""
        return list(self.transport.text.str_vocab())

    async def tokenize_async(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; special strings in it stay plain text.

        Args:
            text: Any text.
            add_special_tokens: False leaves out the tokens that precede every text (BOS), as for a continuation.
        """
        if add_special_tokens:
            return (await self._tokenized([text]))[0]
        if self._before_text is None:
            ids, self._before_text = await self._tokenized([text, ""])
        else:
            ids = (await self._tokenized([text]))[0]
        before = self._before_text
        return ids[len(before) :] if ids[: len(before)] == before else ids

    async def _tokenized(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = await self.transport.call("tokenize", texts=[clean_text(text) for text in texts])
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Never blocks."""
        if not isinstance(ids, Iterable):
            raise InvalidRequestError(f"token ids are a sequence of whole numbers, not {ids!r:.60}")
        return b"".join(self.decode_token(token) for token in ids).decode(errors="replace")

    async def detokenize_async(self, ids: Sequence[int]) -> str:
        """`detokenize`, awaited."""
        return self.detokenize(ids)

    def decode_token(self, token_id: int) -> bytes:
        """The exact bytes of one id; never blocks."""
        token, pieces = _whole(token_id), self.transport.text.byte_vocab
        if not 0 <= token < len(pieces):
            raise InvalidRequestError(f"token id {token} is outside the vocabulary of {len(pieces):,}")
        return pieces[token]

    def is_eos(self, token_id: int) -> bool:
        """Whether the id ends a text; never blocks."""
        return _whole(token_id) in self.transport.text.eos_token_ids

    async def render_chat_async(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The ids of a conversation by the chat template in force (`LoadOptions.chat_format`).

        The content of messages never becomes control tokens.

        Args:
            messages: Mappings with a role (system, user, assistant, tool) and content. An assistant message may have
                `tool_calls`, as `ToolCalls.message` makes them; the results follow as messages of the role tool.
            tools: Definitions: ``{"type": "function", "function": {"name": ..., "parameters": <JSON schema>}}``.
            add_generation_prompt: Whether the header of the answer follows.

        Raises:
            UnsupportedFeatureError: There is no chat template, or it would drop the given tools.
            InvalidRequestError: A message or tool has the wrong shape, or the template refuses it or takes too long.
        """
        ids: list[int] = await self.transport.call(
            "render_chat",
            messages=plain_messages(messages),
            tools=plain_tools(tools),
            add_generation_prompt=add_generation_prompt,
        )
        return ids

    tokenize = blocking(tokenize_async)
    render_chat = blocking(render_chat_async)

    # ---- options ---------------------------------------------------------------------------------------------

    @property
    def own_options(self) -> GenerationOptions:
        """The options in the model's generation_config.json; sampler settings only where it enables sampling."""
        return self.transport.text.own_options

    @property
    def own_ends(self) -> AnswerEnds:
        """The default ends of an answer: the model's eos ids, and the ends of a turn in the chat format."""
        return self.transport.text.own_ends

    def resolve_options(self, call: Layer = None, *, session: Layer = None, preset: Layer = None) -> ResolvedOptions:
        """The options in force for a call, and the layer that set each: call > session > preset > model > default.

        They include the ends of an answer: the chat format's stops and the eos. Computes nothing and never blocks. `generate`
        resolves its options in the same way, as the layer of the call.

        Raises:
            InvalidRequestError: An unknown name, a value out of range, or settings that contradict each other.
        """
        return resolve_options(call, session=session, preset=preset, model=self.own_options, ends=self.own_ends)

    # ---- sessions --------------------------------------------------------------------------------------------

    def open_session(self, config: SessionConfig | None = None) -> Session:
        """An empty session; computes nothing and never blocks. See `Session`.

        Raises:
            InvalidRequestError: A setting out of range.
            ManifestMismatchError: `config.manifest` was made with another model, tokenizer, template or setting.
        """
        from runtime.session.opening import open_session

        return open_session(self, config)

    def resume(self, snapshot: Snapshot) -> Session:
        """A session in the state of its `Session.snapshot`: tokens, segments, options, an unfinished answer.

        Computes nothing and never blocks: the KV is found in memory or on disk, or computed, when it is needed.
        `Session.go_on` continues the answer, with its grammar.

        Raises:
            SnapshotMismatchError: Another model, tokenizer, template, setting or adapter; the message names each difference.
            ContextOverflowError: The session is longer than this model's context.
        """
        from runtime.session.opening import resume

        return resume(self, snapshot)

    async def resume_text(self, snapshot: Snapshot) -> Session:
        """A session with the text of any model's snapshot, tokenised for this model; special strings in it are plain text.

        Raises:
            ContextOverflowError: The text is longer than this model's context.
        """
        from runtime.session.opening import resume_text

        return await resume_text(self, snapshot)

    resume_text_sync = blocking(resume_text)

    @property
    def tokenizer_digest(self) -> str:
        """Identifies the tokenizer: SHA-256 of the bytes of all ids, or of the address of a server that tokenises."""
        if self._tokenizer_digest is None:  # cached: a large vocabulary takes some milliseconds
            from runtime.session.manifest import tokenizer_digest

            text = self.transport.text
            self._tokenizer_digest = text.tokenizer_digest or tokenizer_digest(text.byte_vocab)
        return self._tokenizer_digest

    # ---- members of the capabilities, by their plain names -----------------------------------------------------

    prefix_match, prefix_match_async = _of("kv", KvCache.prefix_match), _of("kv", KvCache.prefix_match_async)
    cache_kv, cache_kv_async = _of("kv", KvCache.cache_kv), _of("kv", KvCache.cache_kv_async)
    clear_cache, clear_cache_async = _of("kv", KvCache.clear_cache), _of("kv", KvCache.clear_cache_async)
    clear_kv_cache, clear_kv_cache_async = _of("kv", KvCache.clear_kv_cache), _of("kv", KvCache.clear_kv_cache_async)
    keep_vectors = _of("kv", KvCache.keep_vectors)
    set_kv_budget, set_kv_budget_async = _of("kv", KvCache.set_kv_budget), _of("kv", KvCache.set_kv_budget_async)
    pin, pin_async = _of("kv", KvCache.pin), _of("kv", KvCache.pin_async)
    unpin, unpin_async = _of("kv", KvCache.unpin), _of("kv", KvCache.unpin_async)
    save_blocks, save_blocks_async = _of("kv", KvCache.save_blocks), _of("kv", KvCache.save_blocks_async)
    copy_blocks, copy_blocks_async = _of("kv", KvCache.copy_blocks), _of("kv", KvCache.copy_blocks_async)
    take_blocks, take_blocks_async = _of("kv", KvCache.take_blocks), _of("kv", KvCache.take_blocks_async)
    pin_blocks, pin_blocks_async = _of("kv", KvCache.pin_blocks), _of("kv", KvCache.pin_blocks_async)
    kv_snapshot, kv_snapshot_async = _of("kv", KvCache.kv_snapshot), _of("kv", KvCache.kv_snapshot_async)
    kv_restore, kv_restore_async = _of("kv", KvCache.kv_restore), _of("kv", KvCache.kv_restore_async)

    add_adapter, add_adapter_async = _of("adapters", AdapterStack.add_adapter), _of("adapters", AdapterStack.add_adapter_async)
    load_adapter = _of("adapters", AdapterStack.load_adapter)
    load_adapter_async = _of("adapters", AdapterStack.load_adapter_async)
    unload_adapter = _of("adapters", AdapterStack.unload_adapter)
    unload_adapter_async = _of("adapters", AdapterStack.unload_adapter_async)
    list_adapters = _of("adapters", AdapterStack.list_adapters)
    list_adapters_async = _of("adapters", AdapterStack.list_adapters_async)
    push_lora, push_lora_async = _of("adapters", AdapterStack.push_lora), _of("adapters", AdapterStack.push_lora_async)
    pop_lora, pop_lora_async = _of("adapters", AdapterStack.pop_lora), _of("adapters", AdapterStack.pop_lora_async)
    clear_loras, clear_loras_async = _of("adapters", AdapterStack.clear_loras), _of("adapters", AdapterStack.clear_loras_async)

    @property
    def base_model_name(self) -> str:
        """The model that adapters change."""
        return self._adapters.base_model_name

    @property
    def lora_stack(self) -> tuple[tuple[str, float], ...]:
        """(name, scale) of the adapters in force, in order; never blocks."""
        return self._adapters.lora_stack


def _eos_set(eos_token_ids: Iterable[int]) -> frozenset[int]:
    try:
        return frozenset(operator.index(token) for token in eos_token_ids)
    except TypeError:
        raise InvalidRequestError(f"eos_token_ids is a list of token ids, not {eos_token_ids!r:.80}") from None


def _whole(token_id: int) -> int:
    try:
        if not isinstance(token_id, bool):
            return operator.index(token_id)
    except TypeError:
        pass
    raise InvalidRequestError(f"a token id is a whole number, not {token_id!r:.60}")
