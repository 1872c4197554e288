"""`Transport`: the way from a `LanguageModel` to its engine, in this process or in an engine process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.beams import OnStep
from runtime.branches import Branches
from runtime.errors import RuntimeFault
from runtime.info import CacheReport, Metrics, ModelInfo, OnProgress
from runtime.options.generation import AnswerEnds, GenerationOptions
from runtime.records import TokenRun


@dataclass(frozen=True, slots=True)
class TextFacts:
    """Constant facts about a loaded model's tokenizer, template and own options.

    Attributes:
        eos_token_ids: Ids that end a text.
        chat_template: The source of the current template.
        byte_vocab: The bytes of every id.
        str_vocab: Returns the text of every id.
        own_options: The options of its generation_config.json.
        own_ends: The ids and texts that end its answers.
        tokenizer_digest: Replaces the digest of `byte_vocab` if that fills up token by token (a server tokenises); otherwise
            empty.
    """

    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    byte_vocab: list[bytes]
    str_vocab: Callable[[], list[str]]
    own_options: GenerationOptions = field(default_factory=GenerationOptions)
    own_ends: AnswerEnds = field(default_factory=AnswerEnds)
    tokenizer_digest: str = ""


class ModelState(Protocol):
    """The latest snapshots of a model's state; reading one never blocks and computes nothing."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def cache(self) -> CacheReport: ...


class Transport(Protocol):
    """Carries operations (`runtime.transport.methods` lists them) to the engine, and their answers back.

    The caller has checked the arguments: ids are int32 arrays, adapters (name, scale) pairs, options complete. `call` and
    `stream` work on any loop, and in a blocked thread without one (see `runtime.aio`). Operations of one turn of a loop reach
    the engine as one batch. Cancelling a call, or closing a stream, ends its work between two steps.
    """

    @property
    def text(self) -> TextFacts:
        """Constant facts about tokenizer, template and own options."""

    @property
    def state(self) -> ModelState:
        """The latest snapshots."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The optional features that this engine has.

        "kv" (a cache that can be inspected and moved), "adapters" (loaded from this machine), "hidden states", "lens" (layers
        that can be read), "scores" (of given texts), "speculative" (on request), "token_ids" (of its answers), "top
        logprobs" (without the whole row), "whole_rows" (of log-probabilities); the sampler's settings and the kinds of
        grammars by their names. An engine of this project has all of them, and every operation by its name.
        """

    @property
    def pid(self) -> int:
        """The id of the engine's process; this process's own if the engine is a server."""

    @property
    def ended(self) -> RuntimeFault | None:
        """The error that new calls get; None while the engine lives."""

    async def call(
        self, method: str, *, on_progress: OnProgress | None = None, on_step: OnStep | None = None, **arguments: Any
    ) -> Any:
        """Runs an operation that has one answer."""

    def stream(self, method: str, *, on_progress: OnProgress | None = None, **arguments: Any) -> Branches[TokenRun]:
        """Token runs by branch, as they are generated; the operation begins when the first run is read."""

    def post(self, method: str, **arguments: Any) -> None:
        """Starts an operation without waiting for its answer; does nothing if the engine has ended.

        Errors in the arguments may be raised here, or be dropped.
        """

    def close(self) -> None:
        """Ends the engine; blocks until it has ended."""

    async def close_async(self, within: float | None) -> None:
        """Ends the engine without blocking the loop; `within`: seconds after which an engine process must have ended."""

    def finalize(self) -> None:
        """Ends the engine of a model that was garbage-collected without `close`; does not wait; any thread."""

    def heartbeat(self) -> tuple[int, str, int]:
        """Steps done, the phase ("loading", "step", "idle") and progress within a step."""
