"""A model for the engine process that computes nothing: its answers derive from the ids, and it misbehaves on request.

The source selects how it loads ("ready", "slow", "fail", "bug", "die", "exit", "hang", "vocabulary"). A message with the
role "command" passed to `render_chat` selects other behaviour (see `fake_commands` and `conftest.command`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runtime import (
    AdapterError,
    BeamOptions,
    BeamStep,
    BlocksSaved,
    Branches,
    CacheReport,
    Finish,
    GenerationOptions,
    Hypothesis,
    InvalidRequestError,
    LanguageModel,
    Metrics,
    ModelInfo,
    ModelLoadError,
    NonFiniteLogitsError,
    Origin,
    PrefixMatch,
    Priority,
    SamplingOptions,
    TokenRun,
)
from runtime.beams import OnStep
from runtime.info import AdapterInfo, OnProgress, PromptProgress
from runtime.options.generation import AnswerEnds
from runtime.records import Float32, Int32
from runtime.transport.base import TextFacts
from tests.runtime.process.fake_answers import CONTEXT, EOS, VOCAB, logprobs_of, run_of
from tests.runtime.process.fake_commands import COMMANDS

ENDLESS = 3  # as the first id of a prompt: the answer never ends


def load(source: str, backend: str = "auto", **options: Any) -> LanguageModel:
    """The loader that tests pass to `spawn` by name."""
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
            return LanguageModel(FakeTransport(backend, options, width=options["context_length"]))
    return LanguageModel(FakeTransport(backend, options))


class FakeTransport:
    """A transport whose operations are methods of the same names."""

    capabilities = frozenset({"kv", "adapters", "hidden states"})
    ended = None

    def __init__(self, backend: str, options: Mapping[str, Any], width: int = len(VOCAB)) -> None:
        self.width = width
        texts = [*(piece.decode(errors="replace") for piece in VOCAB[:-1]), "\ud800"]
        own = GenerationOptions(max_tokens=77, sampling=SamplingOptions(temperature=0.5))
        ends = AnswerEnds((7,), (8,), ("\nUser:",))
        self.text = TextFacts((EOS,), "{{ messages }}", VOCAB, lambda: texts, own, ends)
        self.queries = 0
        self.generated = 0
        self.cancelled = 0
        self.turns: list[int] = []  # queries per turn of the event loop
        self.priorities: list[Priority] = []  # of the score requests
        self.held: asyncio.Event | None = None
        self.beat: tuple[int, str, int] = (0, "idle", 0)
        self.close_seconds = 0.0
        self.info = ModelInfo(
            name="fake", backend=backend, device="cpu", dtype="float32", architecture="none", layers=1, heads=1, kv_heads=1,
            hidden_size=2, vocab_size=width, parameters=0, quantisation=None, attention_kinds=("full",),
            context_length=CONTEXT, has_template=True, kv_bytes_per_token=0, kv_fingerprint="k", model_fingerprint="m",
            options=dict(options),
        )  # fmt: skip

    # ---- a transport -----------------------------------------------------------------------------------------

    @property
    def state(self) -> FakeTransport:
        return self

    @property
    def metrics(self) -> Metrics:
        return Metrics(queries=self.queries, tokens_computed=self.generated)

    @property
    def cache(self) -> CacheReport:
        return CacheReport(0, self.generated, 0, 0, 0, 0, self.cancelled, 0)

    @property
    def pid(self) -> int:
        return os.getpid()

    async def call(self, method: str, **arguments: Any) -> Any:
        return await getattr(self, method)(**arguments)

    def stream(self, method: str, **arguments: Any) -> Branches[TokenRun]:
        branches: Branches[TokenRun] = getattr(self, method)(**arguments)
        return branches

    def post(self, method: str, **arguments: Any) -> None:
        raise AssertionError("the engine process waits for each answer")

    def heartbeat(self) -> tuple[int, str, int]:
        return self.beat

    def close(self) -> None:
        time.sleep(self.close_seconds)

    async def close_async(self, within: float | None) -> None:
        self.close()

    def finalize(self) -> None:
        """Does nothing: the fake model holds nothing."""

    # ---- queries ---------------------------------------------------------------------------------------------

    async def logprobs(self, batch: Sequence[Int32], adapters: object, priority: object, cache_salt: str) -> Float32:
        if not self.turns or self.turns[-1] == 0:
            self.turns.append(0)
            asyncio.get_running_loop().call_soon(self.turns.append, 0)
        self.turns[-1] += len(batch)
        if self.held is not None:
            try:
                await self.held.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            raise asyncio.CancelledError("reset")
        self.queries += len(batch)
        return np.stack([logprobs_of(ids.tolist(), self.width) for ids in batch])

    async def logprobs_uncached(self, ids: Int32, adapters: object) -> Float32:
        return logprobs_of(ids.tolist(), self.width)

    async def reset_queries(self) -> None:
        if self.held is not None:
            self.held.set()
            self.held = None

    async def score(
        self,
        ids: Int32,
        top_k: int,
        start: int,
        adapters: object,
        priority: Priority,
        cache_salt: str,
        on_progress: OnProgress | None = None,
    ) -> TokenRun:
        if on_progress is not None:
            on_progress(PromptProgress(len(ids) // 2, len(ids), 1, len(ids) // 2 - 1))
            on_progress(PromptProgress(len(ids), len(ids), 1, len(ids) - 1))
        self.priorities.append(priority)
        return run_of(ids[start:].tolist(), Origin.TYPED, top_k=top_k)

    # ---- answers ---------------------------------------------------------------------------------------------

    def generate(self, ids: Int32, options: GenerationOptions, on_progress: OnProgress | None = None) -> Branches[TokenRun]:
        """Tokens 0, 1, 2, ...; after three, prompt [1] fails and [2] kills the process; [3] never ends."""
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        return Branches(self._say_one(int(ids[0]), options.max_tokens or 8), _nothing)

    async def _say_one(self, first: int, last: int) -> AsyncGenerator[tuple[int, TokenRun], None]:
        try:
            for number in range(1 << 30):
                if first in (1, 2) and number == 3:
                    if first == 1:
                        raise NonFiniteLogitsError("token 3: the logits hold NaN; try another dtype")
                    await asyncio.sleep(0.1)  # time for the yielded tokens to be sent
                    os.kill(os.getpid(), signal.SIGKILL)
                self.generated += 1
                ends = first != ENDLESS and number == last - 1
                yield 0, run_of([number % len(VOCAB)], finish=Finish.LENGTH if ends else Finish.NONE)
                if ends:
                    return
                await asyncio.sleep(0.001)
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise

    async def generate_whole(self, ids: Int32, options: GenerationOptions) -> TokenRun:
        """The request itself, encoded as ids."""
        temperature = options.sampling.temperature
        asked = [
            len(ids),
            options.max_tokens or 0,
            round((1.0 if temperature is None else temperature) * 10),
            options.seed or 0,
        ]
        return run_of([*asked, EOS], finish=Finish.EOS)

    def continue_many(
        self,
        ids: Int32,
        n: int,
        options: GenerationOptions,
        priority: Priority,
        cache_salt: str,
        on_progress: OnProgress | None = None,
    ) -> Branches[TokenRun]:
        assert priority is Priority.CHAT
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        dropped: set[int] = set()
        return Branches(self._say([ids.tolist()] * n, options, dropped), dropped.add)

    def generate_many(self, prompts: Sequence[Int32], options: Sequence[GenerationOptions]) -> Branches[TokenRun]:
        dropped: set[int] = set()
        return Branches(self._say([ids.tolist() for ids in prompts], options[0], dropped), dropped.add)

    async def _say(
        self, paths: list[list[int]], options: GenerationOptions, dropped: set[int]
    ) -> AsyncGenerator[tuple[int, TokenRun], None]:
        """Branch k generates k, k + 1, ...; prompt [9] is refused, [8] fails at the end."""
        for i, path in enumerate(paths):
            if path == [9]:
                raise InvalidRequestError(f"prompt {i}: nine is refused")
        last = options.max_tokens or 4
        try:
            for at in range(1 << 30):
                said = False
                for branch, path in enumerate(paths):
                    if branch not in dropped and (at < last or path[0] == ENDLESS):
                        said = True
                        self.generated += 1
                        yield branch, run_of([(branch + at) % 26], finish=Finish.LENGTH if at == last - 1 else Finish.NONE)
                if not said:
                    break
                await asyncio.sleep(0.001)
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        if [8] in paths:
            error = InvalidRequestError("eight fails in the end")
            error.add_note(f"prompts {paths.index([8])} ended by InvalidRequestError: eight fails in the end")
            raise error

    async def beam_generate(
        self,
        ids: Int32,
        options: BeamOptions,
        adapters: object,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
    ) -> list[Hypothesis]:
        for step in range(1, 4):
            if on_step is not None:
                on_step(BeamStep(step, (0, 0), (step, len(ids)), (-0.5, -1.5), 0))
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        return [Hypothesis(run_of([i, 1], finish=Finish.EOS), -1.5 * i, -0.75 * i) for i in range(options.width)]

    async def embed(
        self, paths: Sequence[Int32], pooling: str, adapters: object, on_progress: OnProgress | None = None
    ) -> Float32:
        return np.array([[len(path), len(pooling)] for path in paths], np.float32)

    # ---- text ------------------------------------------------------------------------------------------------

    async def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """One token per letter."""
        return [[ord(letter) - 97 for letter in text] for text in texts]

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, add_generation_prompt: bool
    ) -> list[int]:
        """Four numbers that describe the request, or the characters of a command's answer."""
        content = messages[0]["content"]
        if messages[0]["role"] == "command":
            name, _, argument = content.partition(" ")
            return [ord(letter) for letter in str(await COMMANDS[name](self, argument))]
        return [len(messages), len(tools or []), int(add_generation_prompt), len(content)]

    # ---- the cache -------------------------------------------------------------------------------------------

    async def prefix_match(self, ids: Int32, adapters: object) -> PrefixMatch:
        return PrefixMatch(len(ids) // 2, "warm")

    async def cache_kv(self, ids: Int32, adapters: object, on_progress: OnProgress | None = None) -> None:
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        self.queries += len(ids)

    async def clear_cache(self, vectors: bool) -> None:
        if vectors:
            self.queries = 0
        else:
            self.generated = 0

    async def set_kv_budget(self, budget_bytes: int) -> None:
        self.info = replace(self.info, options={"kv_cache_bytes": budget_bytes})

    async def pin(self, ids: Int32, pin: int, adapters: object) -> int:
        return len(ids)

    async def unpin(self, pin: int) -> None:
        """Does nothing: the fake model holds nothing."""

    async def save_blocks(self, ids: Int32, adapters: Sequence[object] | None, replaces: int | None) -> BlocksSaved:
        return BlocksSaved(len(ids), 1 + (replaces or 0), len(ids), len(adapters or ()), 0.5, 0.25)

    async def copy_blocks(self, keys: Sequence[bytes], path: str) -> int:
        return len(keys) + len(Path(path).name)

    async def take_blocks(self, keys: Sequence[bytes], path: str) -> int:
        return 2 * len(keys) + len(Path(path).name)

    async def pin_blocks(self, name: str, keys: Sequence[bytes]) -> int:
        if name == "refused":
            raise InvalidRequestError(f"{len(keys)} keys")
        return len(keys)

    async def kv_snapshot(self, ids: Int32, path: str, adapters: Sequence[object] | None) -> int:
        return len(ids) + len(Path(path).name) + len(adapters or ())

    async def kv_restore(self, path: str, upto: int | None) -> int:
        return upto or len(Path(path).name)

    # ---- adapters: names without weights, loaded when added ----------------------------------------------------

    async def add_adapter(self, path: str, name: str | None, any_base: bool) -> str:
        if path.endswith("broken"):
            raise AdapterError(f"{path}: no adapter_config.json; this folder holds no adapter")
        made = AdapterInfo(name or Path(path).name, "lora", path, str(any_base), 1, 1, 1, True, 8, "d")
        self.info = replace(self.info, adapters=(*self.info.adapters, made))
        return made.name

    async def load_adapter(self, name: str) -> None:
        if name not in {adapter.name for adapter in self.info.adapters}:
            raise AdapterError(f"no adapter is called {name!r}")

    async def unload_adapter(self, name: str) -> None:
        self.info = replace(self.info, adapters=tuple(adapter for adapter in self.info.adapters if adapter.name != name))

    async def push_lora(self, name: str, scale: float) -> None:
        self.info = replace(self.info, lora_stack=(*self.info.lora_stack, (name, scale)))

    async def pop_lora(self) -> tuple[str, float]:
        top = self.info.lora_stack[-1]
        self.info = replace(self.info, lora_stack=self.info.lora_stack[:-1])
        return top

    async def clear_loras(self) -> None:
        self.info = replace(self.info, lora_stack=())


def _nothing(_: int) -> None:
    """A single branch cannot be dropped."""
