"""A model for the engine process that computes nothing: answers follow from the ids, and it misbehaves on request.

How it loads follows from the source ("ready", "slow", "fail", "bug", "die", "hang"), what else it does from the text given
to `complete` (see `fake_commands`): the tests' way to reach into the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from runtime import (
    Completion,
    ContextOverflowError,
    Finish,
    GenerationOptions,
    InvalidRequestError,
    Message,
    ModelInfo,
    ModelLoadError,
    Origin,
    PrefixMatch,
    Priority,
    SamplingOptions,
    TokenRecord,
    TokenRun,
    UnsupportedFeatureError,
)
from runtime import errors as runtime_errors
from runtime.adapters.uses import Adapters
from runtime.info import OnProgress, PromptProgress
from runtime.members.resolving import ResolvingMembers
from runtime.members.scoring import ScoringMembers
from runtime.options.resolution import AnswerEnds
from runtime.records import Float32
from runtime.session.opening import OpensSessions
from tests.runtime.process.fake_adapters import FakeAdapters
from tests.runtime.process.fake_answers import CONTEXT, EOS, VOCAB, logprobs_of, run_of
from tests.runtime.process.fake_blocks import FakeBlocks
from tests.runtime.process.fake_branching import FakeBranching
from tests.runtime.process.fake_cache import FakeCache
from tests.runtime.process.fake_commands import COMMANDS
from tests.runtime.process.fake_pins import FakePins
from tests.runtime.process.fake_texts import FakeTexts
from tests.runtime.process.fake_vectors import FakeVectors


def load(source: str, backend: str = "auto", **options: Any) -> FakeModel:
    """The loader that tests name in `spawn`."""
    match source:
        case "slow":
            time.sleep(options["context_length"] / 1000)
        case "fail":
            raise ModelLoadError("no weights in 'fail'; fetch it with `elsewise models get fail`")
        case "bug":
            raise KeyError("hidden_size")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "hang":
            threading.Event().wait()
        case "vocabulary":
            return FakeModel(backend, options, width=options["context_length"])
    return FakeModel(backend, options)


class FakeModel(
    FakeAdapters,
    FakeBlocks,
    FakeBranching,
    FakeCache,
    FakePins,
    FakeTexts,
    FakeVectors,
    OpensSessions,
    ResolvingMembers,
    ScoringMembers,
):
    """Satisfies `LanguageModel` in the engine process."""

    def __init__(self, backend: str, options: Mapping[str, Any], width: int = len(VOCAB)) -> None:
        self.width = width
        self.eos_token_ids = (EOS,)
        self.chat_template: str | None = "{{ messages }}"
        self.byte_vocab = VOCAB
        self.str_vocab = [*(piece.decode(errors="replace") for piece in VOCAB[:-1]), "\ud800"]
        self.queries = 0
        self.generated = 0
        self.cancelled = 0
        self.turns: list[int] = []  # queries per turn of the event loop
        self.priorities: list[Priority] = []  # of what was scored
        self.held: asyncio.Event | None = None
        self.beat = (0, "idle")
        self.close_seconds = 0.0
        self.info = ModelInfo(
            name="fake", backend=backend, device="cpu", dtype="float32", architecture="none", layers=1, heads=1, kv_heads=1,
            hidden_size=1, vocab_size=width, parameters=0, quantisation=None, attention_kinds=("full",),
            context_length=CONTEXT, has_template=True, kv_bytes_per_token=0, kv_fingerprint="k", model_fingerprint="m",
            options=dict(options),
        )  # fmt: skip

    @property
    def own_options(self) -> GenerationOptions:
        return GenerationOptions(max_tokens=77, sampling=SamplingOptions(temperature=0.5))

    @property
    def own_ends(self) -> AnswerEnds:
        return AnswerEnds((7,), (8,), ("\nUser:",))

    def heartbeat(self) -> tuple[int, str]:
        return self.beat

    # ---- queries ---------------------------------------------------------------------------------------------

    def next_token_logprobs_sync(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        if any(token >= self.width for token in ids):
            raise InvalidRequestError(f"token id {max(ids)} is outside the vocabulary of {self.width}")
        if len(ids) > CONTEXT:
            raise ContextOverflowError("prompt", 0, len(ids), CONTEXT)
        self.queries += 1
        return logprobs_of(ids, self.width)

    async def next_token_logprobs(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        if not self.turns or self.turns[-1] == 0:
            self.turns.append(0)
            asyncio.get_running_loop().call_soon(self.turns.append, 0)
        self.turns[-1] += 1
        if self.held is not None:
            try:
                await self.held.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            raise asyncio.CancelledError("reset")
        return self.next_token_logprobs_sync(ids)

    def batch_next_token_logprobs_sync(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        return np.stack([self.next_token_logprobs_sync(ids) for ids in batch])

    async def batch_next_token_logprobs(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        return self.batch_next_token_logprobs_sync(batch)

    def next_token_logprobs_uncached(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        return self.next_token_logprobs_sync(ids)

    async def next_token_logprobs_uncached_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        return self.next_token_logprobs_sync(ids)

    def prefix_match(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        return PrefixMatch(len(ids) // 2, "warm")

    async def prefix_match_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        return self.prefix_match(ids)

    async def _score_window(
        self,
        ids: Sequence[int],
        top_k: int,
        start: int,
        *,
        adapters: Adapters,
        priority: Priority,
        on_progress: OnProgress | None,
    ) -> TokenRun:
        if on_progress is not None:
            on_progress(PromptProgress(len(ids) // 2, len(ids), 1, len(ids) // 2 - 1))
            on_progress(PromptProgress(len(ids), len(ids), 1, len(ids) - 1))
        return self._score_window_sync(ids, top_k, start, adapters=adapters, priority=priority)

    def _score_window_sync(
        self, ids: Sequence[int], top_k: int, start: int, *, adapters: Adapters, priority: Priority
    ) -> TokenRun:
        self.priorities.append(priority)
        return run_of(ids[start:], Origin.TYPED, top_k=top_k)

    # ---- generation ------------------------------------------------------------------------------------------

    async def generate(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> AsyncGenerator[TokenRecord, None]:
        async for run in self.generate_runs(ids, options):
            for record in run:
                yield record

    async def generate_runs(
        self, ids: Sequence[int], options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRun, None]:
        """Tokens 0, 1, 2, ...; a prompt [1] ends with an error after three, [2] with the death of the process, [3] never."""
        last = (options and options.max_tokens) or 8
        first = ids[0] if ids else 0
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        try:
            for number in range(1 << 30):
                if first in (1, 2) and number == 3:
                    if first == 1:
                        raise runtime_errors.NonFiniteLogitsError("token 3: the logits hold NaN; try another dtype")
                    await asyncio.sleep(0.1)  # what was yielded is on its way
                    os.kill(os.getpid(), signal.SIGKILL)
                self.generated += 1
                ends = first != 3 and number == last - 1
                yield run_of([number % len(VOCAB)], finish=Finish.LENGTH if ends else Finish.NONE)
                if ends:
                    return
                await asyncio.sleep(0.001)
        except GeneratorExit:
            self.cancelled += 1
            raise
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def generate_sync(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> Iterator[TokenRecord]:
        raise UnsupportedFeatureError("this model streams to who awaits it; nothing in the engine process blocks on a stream")

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
        return [len(prompt_token_ids), max_tokens, *eos_token_ids, round(temperature * 100), -1 if seed is None else seed]

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
        return [await self.sample(ids, max_tokens, eos_token_ids, temperature, seed) for ids in prompt_token_ids_list]

    async def complete(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        if not isinstance(prompt, str):
            return Completion(json.dumps([dict(message) for message in prompt]), Finish.EOS)
        command, _, argument = prompt.partition(" ")
        return Completion(str(await COMMANDS[command](self, argument)), Finish.EOS)

    def complete_sync(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        return asyncio.run(self.complete(prompt, options))

    def close(self) -> None:
        time.sleep(self.close_seconds)

    async def close_async(self, *, within: float | None = None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
