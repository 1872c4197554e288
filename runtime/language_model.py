"""`LanguageModel`: what every model looks like to its callers, in this process or behind the pipe.

Two classes satisfy it: the in-process model that `load` returns and the client of an engine process that `spawn` returns.
Code written against this Protocol does not notice which one it has.

Rules that hold for all members:

- A token is an int, a log-probability a natural one: float32 log-softmax of the raw logits.
- Coroutines and async generators work on any running loop, from several loops in several threads, under repeated
  `asyncio.run`. Cancelling the awaiting task, or closing a generator, stops the work between two steps; what was computed
  stays in the cache.
- Blocking members may be called from any thread, also while a loop runs there (they hold it up). Each has a twin
  `<name>_async` that does not block. A property, `metrics` and `cache_report` never block and never compute.
- Work queued in one turn of an event loop (a `gather`) reaches the scheduler as one batch.
- After `close`, and after the engine process ended, every member that needs the model raises.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from runtime.adapters.uses import Adapters
from runtime.completion import Completion
from runtime.info import CacheReport, Metrics, ModelInfo, OnProgress
from runtime.members.adapters import AdapterMembers
from runtime.members.blocks import BlockMembers
from runtime.members.branching import BranchingMembers
from runtime.members.caching import CacheMembers
from runtime.members.pins import PinMembers
from runtime.members.resolving import ResolvingMembers
from runtime.members.scoring import ScoringMembers
from runtime.members.sessions import SessionMembers
from runtime.members.texts import Message, TextMembers
from runtime.members.vectors import VectorMembers
from runtime.options.generation import GenerationOptions
from runtime.records import Float32, TokenRecord, TokenRun

__all__ = ["LanguageModel", "Message", "PrefixMatch"]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a token sequence the engine holds already.

    Attributes:
        tokens: Length of the longest prefix that needs no forward pass.
        tier: Where it is: "warm" (memory), "disk" (its end only in the block file) or "cold" (nowhere; `tokens` is 0).
        warm: Of `tokens`, the first so many are in memory; None: all, or none where it is cold.
    """

    tokens: int
    tier: str
    warm: int | None = None


class LanguageModel(
    AdapterMembers,
    BlockMembers,
    BranchingMembers,
    CacheMembers,
    PinMembers,
    ResolvingMembers,
    ScoringMembers,
    SessionMembers,
    TextMembers,
    VectorMembers,
    Protocol,
):
    """A loaded model. See the module's text for what holds for all members.

    Raises (any member that takes token ids):
        InvalidRequestError: An id out of range or of the wrong type, an empty list where a token is needed.
        ContextOverflowError: More tokens than the context holds; raised before anything is computed.
        NonFiniteLogitsError: The model answered NaN or infinity.
        MemoryBudgetError: The KV does not fit into the budget.
        SessionClosedError: The model was closed.
        EngineDiedError: The engine process ended (a spawned model only).
    """

    @property
    def info(self) -> ModelInfo:
        """What is known of the model: geometry, fingerprints, options in force, warnings."""

    # ---- next-token log-probabilities ------------------------------------------------------------------------

    async def next_token_logprobs(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """Log-probabilities of the token after `ids`, ``(vocab,) float32``.

        Args:
            ids: From the first token on.
            adapters: Loaded ones, in order; () is the base, None the model's stack. So of all queries, scores,
                samples, embeddings and beam searches; `generate` takes them as `GenerationOptions.adapters`.
        """

    async def batch_next_token_logprobs(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        """The same for several sequences at once, ``(n, vocab) float32``, row i for sequence i; duplicates cost nothing."""

    def next_token_logprobs_sync(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """`next_token_logprobs`, blocking."""

    def batch_next_token_logprobs_sync(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        """`batch_next_token_logprobs`, blocking."""

    def next_token_logprobs_uncached(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """The same numbers by the library's own plain forward pass, cache neither read nor written. Blocking.

        It is the reference that the cached answers are compared with, ``(vocab,) float32``.
        """

    async def next_token_logprobs_uncached_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """`next_token_logprobs_uncached`, awaited."""

    def prefix_match(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        """How much of `ids` is held already, in memory or in the block file; computes and restores nothing. Blocking.

        In memory it refreshes nothing; blocks in the file that it meets count as just used.
        """

    async def prefix_match_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        """`prefix_match`, awaited."""

    # ---- generation ------------------------------------------------------------------------------------------

    def generate(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> AsyncGenerator[TokenRecord, None]:
        """Draws tokens after `ids`, one record each as soon as it is known; called without await.

        `named` are options one by one, in place of `options`, by the names that `GenerationOptions.from_mapping` knows
        (``max_tokens=64``, ``temp=0.7``); there `top_k` is the sampler's. So of `generate_sync` and `complete`.

        The last record has a `finish_reason` (eos's own record included). Closing the generator early, best with
        `contextlib.aclosing`, stops the generation. Records that were yielded before an error stay valid.
        """

    def generate_runs(
        self, ids: Sequence[int], options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRun, None]:
        """`generate` in chunks of one or more tokens: whatever has arrived since the caller last asked."""

    def generate_sync(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> Iterator[TokenRecord]:
        """`generate`, blocking; closing the iterator stops the generation. `on_progress` runs in the caller's thread."""

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
        """Up to `max_tokens` ids drawn after the prompt, without the eos that ended them (genlm-backend's call).

        `adapters` as of `next_token_logprobs`.
        """

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
        """`sample` for several prompts at once; row i answers prompt i and is the same alone or in the batch."""

    async def complete(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        """The text that follows `prompt`: a plain text is continued, a list of messages is answered by chat template.

        It says how it ended: `finish_reason`, and `incomplete` where it was cut before its own end, or is no sound JSON.

        Raises:
            GrammarError: The grammar cannot be used (before anything is computed), or it fails on the way.
            UnsupportedFeatureError: Messages, but there is no chat template (a `chat_format` at load gives one).
        """

    def complete_sync(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        """`complete`, blocking."""

    # ---- state -----------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """The counters, as they stood when the last answer was given (every 100 ms at most while one is worked on)."""

    def cache_report(self) -> CacheReport:
        """The cache, as it stood at the end of a step: of the last one where nothing is worked on, else 0.25 s ago at most.

        A step's report is made behind its answers, so that who asks at once after an answer may see the one before.
        """

    def close(self) -> None:
        """Ends the model within 2 s and frees its memory; waiting callers get SessionClosedError. Blocking; idempotent."""

    async def close_async(self, *, within: float | None = None) -> None:
        """`close`, awaited.

        Args:
            within: Seconds after which an engine process has ended, by itself or not; None: 2. A model of this process takes
                what it takes.
        """

    async def __aenter__(self) -> Self:
        """Itself."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the model."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the model."""
