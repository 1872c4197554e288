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
    """The constant facts about a loaded model's text side.

    Attributes:
        eos_token_ids: Ids that end a text.
        chat_template: The source of the current template.
        byte_vocab: The bytes of every id.
        str_vocab: Makes the texts of all ids.
        own_options: The options of its generation_config.json.
        own_ends: The ids and texts that end its answers.
        tokenizer_digest: Replaces the digest of `byte_vocab` where that becomes known bit by bit; otherwise empty.
    """

    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    byte_vocab: list[bytes]
    str_vocab: Callable[[], list[str]]
    own_options: GenerationOptions = field(default_factory=GenerationOptions)
    own_ends: AnswerEnds = field(default_factory=AnswerEnds)
    tokenizer_digest: str = ""


class ModelState(Protocol):
    """The latest snapshots; reading one never blocks and computes nothing."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def cache(self) -> CacheReport: ...


class Transport(Protocol):
    """Carries operations, which `runtime.transport.methods` lists, to the engine and their answers back.

    Arguments are checked before they come here: ids are int32 arrays, adapters (name, scale) pairs, options complete.
    `call` and `stream` work on any loop, and in a blocked thread without one (see `runtime.aio`). What one turn
    of a loop asks for reaches the engine as one batch. A cancelled call, and a closed stream, ends the work between two steps.
    """

    @property
    def text(self) -> TextFacts:
        """Constant facts about the text side."""

    @property
    def state(self) -> ModelState:
        """The latest snapshots."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The features of this engine that not every engine has.

        "kv" (a cache that can be inspected and moved), "adapters" (loaded from this machine), "hidden states", "scores" (of
        given texts), "speculative" (on request), "token_ids" (of its answers), "top logprobs" (without the whole row),
        "whole_rows" (of log-probabilities); the sampler's settings and the kinds of grammars by their names. An engine of
        this project has all of them, and every operation by its name.
        """

    @property
    def pid(self) -> int:
        """The id of the engine's process; this process's for a server."""

    @property
    def ended(self) -> RuntimeFault | None:
        """The error of new calls; None while the engine lives."""

    async def call(
        self, method: str, *, on_progress: OnProgress | None = None, on_step: OnStep | None = None, **arguments: Any
    ) -> Any:
        """One answer."""

    def stream(self, method: str, *, on_progress: OnProgress | None = None, **arguments: Any) -> Branches[TokenRun]:
        """Runs of tokens by branch, as they come; the operation begins when the first one is read."""

    def post(self, method: str, **arguments: Any) -> None:
        """Starts an operation without waiting for its answer; an engine that has ended does nothing.

        Errors in the arguments may be raised here, or be dropped.
        """

    def close(self) -> None:
        """Ends the engine, blocking."""

    async def close_async(self, within: float | None) -> None:
        """Ends the engine without blocking the loop; `within`: seconds after which an engine process is ended."""

    def forgotten(self) -> None:
        """The model was garbage-collected without `close`: ends the engine, without waiting; any thread."""

    def heartbeat(self) -> tuple[int, str, int]:
        """Steps done, the phase ("loading", "step", "idle") and progress within a step."""
