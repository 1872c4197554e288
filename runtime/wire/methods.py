"""What can be called over the pipe: an allow-list with the types of arguments and answers.

A method's name is the member of `LanguageModel` that the engine process awaits; its arguments are that member's keywords.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runtime.completion import Completion
from runtime.language_model import PrefixMatch
from runtime.members.blocks import BlocksSaved
from runtime.members.pins import Pinned
from runtime.numerics.pooling import Pooling
from runtime.options.generation import GenerationOptions
from runtime.options.priority import Priority
from runtime.records import Finish
from runtime.wire.adapters import AdapterName, AddAdapter, PushLora
from runtime.wire.arrays import Array, pack_array, pack_run, unpack_array, unpack_run
from runtime.wire.blocks import CopyBlocks, KvRestore, KvSnapshot, PinBlocks, SaveBlocks
from runtime.wire.branching import BeamGenerate, ContinueMany, GenerateMany, WireHypothesis, pack_hypotheses, unpack_hypotheses
from runtime.wire.messages import MessageError, encode
from runtime.wire.pins import Pin, Unpin

AdapterUses = list[tuple[str, float]] | None  # (name, scale)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token sequence, and the adapters it is asked under."""

    ids: list[int]
    adapters: AdapterUses = None


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several token sequences."""

    batch: list[list[int]]
    adapters: AdapterUses = None


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `score_run`."""

    ids: list[int]
    top_k: int
    start: int
    adapters: AdapterUses = None
    priority: Priority = Priority.INSPECTOR


class Generate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `generate_runs`."""

    ids: list[int]
    options: GenerationOptions | None


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `sample`."""

    prompt_token_ids: list[int]
    max_tokens: int
    eos_token_ids: list[int]
    temperature: float
    seed: int | None
    adapters: AdapterUses = None


class SampleBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `batch_sample`."""

    prompt_token_ids_list: list[list[int]]
    max_tokens: int
    eos_token_ids: list[int]
    temperature: float
    seed: int | None
    adapters: AdapterUses = None


class Complete(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `complete`."""

    prompt: str | list[dict[str, Any]]
    options: GenerationOptions | None


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some text."""

    text: str


class RenderChat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `render_chat_async`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `set_kv_budget_async`."""

    budget_bytes: int


class Embed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `embed`."""

    texts: list[str]
    pooling: Pooling
    adapters: AdapterUses = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How a method's answer crosses: its wire type, and the way there and back."""

    wire: Any
    pack: Callable[[Any], Any] = lambda value: value
    unpack: Callable[[Any], Any] = lambda value: value


ARRAY = Answer(Array, pack_array, unpack_array)
RUN = Answer(dict[str, Array], pack_run, unpack_run)
NOTHING = Answer(None)
COMPLETION = Answer(
    tuple[str, int],
    lambda text: (str(text), int(getattr(text, "finish", Finish.NONE))),
    lambda pair: Completion(pair[0], Finish(pair[1])),
)


@dataclass(frozen=True, slots=True)
class Method:
    """One line of the allow-list."""

    arguments: type[msgspec.Struct]
    answer: Answer
    streams: bool = False  # answers by Chunks of runs and an End
    branches: bool = False  # and each Chunk says of which branch
    steps: bool = False  # takes `on_step`, if `watched`: Step messages go ahead of the Result
    progresses: bool = False  # takes `on_progress`: Progress messages go ahead of the first Chunk or the Result
    _decode_arguments: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)
    _decode_answer: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decode_arguments", msgspec.msgpack.Decoder(self.arguments))
        object.__setattr__(self, "_decode_answer", msgspec.msgpack.Decoder(self.answer.wire))

    def read_arguments(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Keywords for the member.

        Raises:
            MessageError: Of another type than the table says.
        """
        arguments: dict[str, Any] = msgspec.structs.asdict(_decoded(self._decode_arguments, raw))
        return arguments

    def write_answer(self, value: object) -> msgspec.Raw:
        """The answer, for a Result."""
        return msgspec.Raw(encode(self.answer.pack(value)))

    def read_answer(self, raw: msgspec.Raw) -> Any:  # the table's type; each caller knows its own
        """The inverse of `write_answer`.

        Raises:
            MessageError, ArrayError: Of another type than the table says.
        """
        return self.answer.unpack(_decoded(self._decode_answer, raw))


def _decoded(decoder: msgspec.msgpack.Decoder[Any], raw: msgspec.Raw) -> Any:  # of the decoder's type
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError) as fault:  # msgspec's own errors, and text that is no UTF-8
        raise MessageError(str(fault)) from fault


METHODS: dict[str, Method] = {
    "next_token_logprobs": Method(Query, ARRAY),
    "batch_next_token_logprobs": Method(Batch, ARRAY),
    "next_token_logprobs_uncached_async": Method(Query, ARRAY),
    "prefix_match_async": Method(Query, Answer(PrefixMatch)),
    "score_run": Method(Score, RUN, progresses=True),
    "generate_runs": Method(Generate, NOTHING, streams=True, progresses=True),
    "continue_many_runs": Method(ContinueMany, NOTHING, streams=True, branches=True, progresses=True),
    "generate_many_runs": Method(GenerateMany, NOTHING, streams=True, branches=True),
    "beam_generate": Method(
        BeamGenerate,
        Answer(list[WireHypothesis], pack_hypotheses, unpack_hypotheses),
        progresses=True,
        steps=True,
    ),
    "sample": Method(Sample, Answer(list[int])),
    "batch_sample": Method(SampleBatch, Answer(list[list[int]])),
    "complete": Method(Complete, COMPLETION),
    "tokenize_async": Method(Text, Answer(list[int])),
    "render_chat_async": Method(RenderChat, Answer(list[int])),
    "cache_kv_async": Method(Query, NOTHING, progresses=True),
    "pin_async": Method(Pin, Answer(Pinned)),
    "unpin_async": Method(Unpin, NOTHING),
    "save_blocks_async": Method(SaveBlocks, Answer(BlocksSaved)),
    "copy_blocks_async": Method(CopyBlocks, Answer(int)),
    "take_blocks_async": Method(CopyBlocks, Answer(int)),
    "pin_blocks_async": Method(PinBlocks, NOTHING),
    "kv_snapshot_async": Method(KvSnapshot, Answer(int)),
    "kv_restore_async": Method(KvRestore, Answer(int)),
    "clear_cache_async": Method(Nothing, NOTHING),
    "clear_kv_cache_async": Method(Nothing, NOTHING),
    "reset_async_queries_async": Method(Nothing, NOTHING),
    "embed": Method(Embed, ARRAY, progresses=True),
    "set_kv_budget_async": Method(Budget, NOTHING),
    "add_adapter_async": Method(AddAdapter, Answer(str)),
    "load_adapter_async": Method(AdapterName, NOTHING),
    "unload_adapter_async": Method(AdapterName, NOTHING),
    "push_lora_async": Method(PushLora, NOTHING),
    "pop_lora_async": Method(Nothing, Answer(tuple[str, float])),
    "clear_loras_async": Method(Nothing, NOTHING),
}
