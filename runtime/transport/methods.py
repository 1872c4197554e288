"""The operations of a model, with the types of their arguments and answers: the pipe's allow-list.

A new operation changes three files: `LanguageModel`, this one (its messages), and `runtime.engine.operations`. If it runs in
steps together with other requests, its job and its worker are in a fourth (`runtime.scheduler.workers`). An operation that
reads arrays of the model goes through `read` and changes four: `LanguageModel`, `runtime.scheduler.prefill.readings` (its job),
and `runtime.backends.hf.readings` and `runtime.backends.mlx.readings` (its hooks). A new class of answers changes one more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from runtime.beams import BeamOptions, Hypothesis
from runtime.grammar.source import GrammarKind
from runtime.info import BlocksSaved, PrefixMatch
from runtime.numerics.pooling import Pooling
from runtime.options.generation import DEFAULTS, GenerationOptions
from runtime.options.priority import Priority
from runtime.records import TopLogprobs
from runtime.transport.arrays import Array, pack_array, pack_run, unpack_array, unpack_run
from runtime.transport.messages import MessageError, encode

AdapterUses = list[tuple[str, float]] | None  # (name, scale)
LARGE = 1 << 21  # bytes; a larger answer is sent in parts of this size


class MethodArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keyword arguments of an operation; this base class has none. Token ids are arrays, ``(n,) int32``."""


class Query(MethodArguments, frozen=True):
    """One path of token ids, and the adapters of its KV."""

    ids: Array
    adapters: AdapterUses


class LogprobsBatch(MethodArguments, frozen=True):
    """Several paths, each to be answered by a row of log-probabilities."""

    batch: list[Array]
    adapters: AdapterUses
    priority: Priority
    cache_salt: str


class TopLogprobsBatch(LogprobsBatch, frozen=True):
    """Several paths, each to be answered by the `n` likeliest tokens and the `chosen` ids."""

    n: int
    chosen: list[int]


class Score(Query, frozen=True):
    """A path whose tokens from `start` on are scored."""

    top_k: int
    start: int
    priority: Priority
    cache_salt: str


class Generate(MethodArguments, frozen=True):
    """A prompt to be answered once."""

    ids: Array
    options: GenerationOptions


class ContinueMany(Generate, frozen=True):
    """A prompt to be answered `n` times."""

    n: int
    priority: Priority
    cache_salt: str


class GenerateMany(MethodArguments, frozen=True):
    """Several prompts, each with its options."""

    prompts: list[Array]
    options: list[GenerationOptions]


class BeamGenerate(Query, frozen=True):
    """A prompt to be answered by a beam search; if `watched`, StepMessages are sent."""

    options: BeamOptions
    watched: bool


class Embed(MethodArguments, frozen=True):
    """Several paths, each to be answered by a vector."""

    paths: list[Array]
    pooling: Pooling
    adapters: AdapterUses


class ReadArguments(Query, frozen=True):
    """One of `runtime.scheduler.prefill.readings` by name, with its own options, at some positions of a path."""

    reading: str
    positions: Array
    options: dict[str, Array | int | float | str]


class Texts(MethodArguments, frozen=True):
    """Texts to be tokenised."""

    texts: list[str]


class RenderChat(MethodArguments, frozen=True):
    """A conversation to be rendered as token ids."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool


class Clear(MethodArguments, frozen=True):
    """Whether the next-token vectors are dropped in addition to the KV."""

    vectors: bool


class Count(MethodArguments, frozen=True):
    """The most next-token vectors to cache."""

    count: int


class Budget(MethodArguments, frozen=True):
    """The KV budget in bytes."""

    budget_bytes: int


class Pin(Query, frozen=True):
    """A path whose KV is kept in memory, and the number of the pin."""

    pin: int


class Unpin(MethodArguments, frozen=True):
    """The number of a pin to end."""

    pin: int


class SaveBlocks(Query, frozen=True):
    """A path to save in the block file, in place of its first `replaces` tokens, saved before."""

    replaces: int | None


class CopyBlocks(MethodArguments, frozen=True):
    """Names of blocks, and the path of the other block file."""

    keys: list[bytes]
    path: str


class PinBlocks(MethodArguments, frozen=True):
    """Names of blocks, and the name of their pin."""

    name: str
    keys: list[bytes]


class KvSnapshot(Query, frozen=True):
    """A path of tokens, and the path of its snapshot's file."""

    path: str


class KvRestore(MethodArguments, frozen=True):
    """The path of a snapshot's file; `upto`: leading tokens to load, None for all."""

    path: str
    upto: int | None


class AddAdapter(MethodArguments, frozen=True):
    """An adapter's folder or id, and the name to register it under."""

    path: str
    name: str | None
    any_base: bool


class AdapterName(MethodArguments, frozen=True):
    """The name of a registered adapter."""

    name: str


class PushLora(MethodArguments, frozen=True):
    """The name of an adapter, and its scale."""

    name: str
    scale: float


class WireHypothesis(msgspec.Struct, frozen=True):
    """One answer of a beam search."""

    columns: dict[str, Array]
    logprob: float
    score: float


def _pack_hypotheses(hypotheses: Sequence[Hypothesis]) -> list[WireHypothesis]:
    return [WireHypothesis(pack_run(one.run), one.logprob, one.score) for one in hypotheses]


def _unpack_hypotheses(packed: Sequence[WireHypothesis]) -> list[Hypothesis]:
    return [Hypothesis(unpack_run(one.columns), one.logprob, one.score) for one in packed]


def _pack_columns(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array]:
    return {name: pack_array(column) for name, column in columns.items()}


def _unpack_columns(packed: Mapping[str, Array]) -> dict[str, npt.NDArray[Any]]:
    return {name: unpack_array(column) for name, column in packed.items()}


class WireTop(msgspec.Struct, frozen=True):
    """The likeliest tokens after one path."""

    ids: Array
    logprobs: Array
    tail_mass: float
    chosen: dict[int, float]


def _pack_tops(tops: Sequence[TopLogprobs]) -> list[WireTop]:
    return [WireTop(pack_array(top.ids), pack_array(top.logprobs), top.tail_mass, dict(top.chosen)) for top in tops]


def _unpack_tops(packed: Sequence[WireTop]) -> list[TopLogprobs]:
    return [TopLogprobs(unpack_array(top.ids), unpack_array(top.logprobs), top.tail_mass, top.chosen) for top in packed]


@dataclass(frozen=True, slots=True)
class AnswerCodec:
    """How a method's answer crosses the pipe: the type in the message, and the conversions to it and back."""

    wire: Any
    pack: Callable[[Any], Any] = lambda value: value
    unpack: Callable[[Any], Any] = lambda value: value


ARRAY = AnswerCodec(Array, pack_array, unpack_array)
RUN = AnswerCodec(dict[str, Array], pack_run, unpack_run)
NOTHING = AnswerCodec(None)


@dataclass(frozen=True, slots=True)
class Method:
    """One operation of the allow-list: the types of its arguments and answer, and the messages that it sends."""

    arguments: type[msgspec.Struct]
    answer: AnswerCodec
    streams: bool = False  # the answer is chunks of runs, each of a branch, and an End
    steps: bool = False  # takes `on_step`; if `watched`, StepMessages precede the Result
    progresses: bool = False  # takes `on_progress`: ProgressMessages precede the first ChunkMessage or the Result
    _decode_arguments: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)
    _decode_answer: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decode_arguments", msgspec.msgpack.Decoder(self.arguments))
        object.__setattr__(self, "_decode_answer", msgspec.msgpack.Decoder(self.answer.wire))

    def read_arguments(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Decodes the keyword arguments of the operation.

        Raises:
            MessageError, ArrayError: They have another type than in the table.
        """
        arguments = msgspec.structs.asdict(_decoded(self._decode_arguments, raw))
        return {name: _with_ids(value) for name, value in arguments.items()}

    def write_answer(self, value: object) -> list[memoryview]:
        """The bytes of an answer for a Result, in pieces; the data of a large array is not copied."""
        packed = self.answer.pack(value)
        if isinstance(packed, Array) and LARGE < packed.data.nbytes < 1 << 32:
            head = encode(msgspec.structs.replace(packed, data=b""))[:-2]  # without type and length of the empty data
            return [memoryview(head + b"\xc6" + packed.data.nbytes.to_bytes(4, "big")), packed.data]
        return [memoryview(encode(packed))]

    def read_answer(self, raw: msgspec.Raw) -> Any:  # the table's type; each caller knows its own
        """The inverse of `write_answer`.

        Raises:
            MessageError, ArrayError: The answer has another type than in the table.
        """
        return self.answer.unpack(_decoded(self._decode_answer, raw))


def _with_ids(value: Any) -> Any:
    """Unpacks arrays of token ids, alone, in a list or among options, into numpy arrays."""
    if isinstance(value, dict):
        return {name: _with_ids(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], Array):
        return [_with_ids(each) for each in value]
    if not isinstance(value, Array):
        return value
    ids = unpack_array(value)
    if ids.dtype != np.int32 or ids.ndim != 1:
        raise MessageError(f"token ids are one row of int32, not {ids.dtype} of shape {ids.shape}")
    return ids


def _decoded(decoder: msgspec.msgpack.Decoder[Any], raw: msgspec.Raw) -> Any:  # of the decoder's type
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError) as fault:  # msgspec's own errors, and text that is no UTF-8
        raise MessageError(str(fault)) from fault


METHODS: dict[str, Method] = {
    "logprobs": Method(LogprobsBatch, ARRAY),
    "top_logprobs": Method(TopLogprobsBatch, AnswerCodec(list[WireTop], _pack_tops, _unpack_tops)),
    "logprobs_uncached": Method(Query, ARRAY),
    "score": Method(Score, RUN, progresses=True),
    "generate": Method(Generate, NOTHING, streams=True, progresses=True),
    "continue_many": Method(ContinueMany, NOTHING, streams=True, progresses=True),
    "generate_many": Method(GenerateMany, NOTHING, streams=True),
    "generate_whole": Method(Generate, RUN),
    "beam_generate": Method(
        BeamGenerate, AnswerCodec(list[WireHypothesis], _pack_hypotheses, _unpack_hypotheses), progresses=True, steps=True
    ),
    "embed": Method(Embed, ARRAY, progresses=True),
    "read": Method(ReadArguments, AnswerCodec(dict[str, Array], _pack_columns, _unpack_columns), progresses=True),
    "tokenize": Method(Texts, AnswerCodec(list[list[int]])),
    "render_chat": Method(RenderChat, AnswerCodec(list[int])),
    "prefix_match": Method(Query, AnswerCodec(PrefixMatch)),
    "cache_kv": Method(Query, NOTHING, progresses=True),
    "pin": Method(Pin, AnswerCodec(int)),
    "unpin": Method(Unpin, NOTHING),
    "clear_cache": Method(Clear, NOTHING),
    "keep_vectors": Method(Count, NOTHING),
    "reset_queries": Method(MethodArguments, NOTHING),
    "set_kv_budget": Method(Budget, NOTHING),
    "save_blocks": Method(SaveBlocks, AnswerCodec(BlocksSaved)),
    "copy_blocks": Method(CopyBlocks, AnswerCodec(int)),
    "take_blocks": Method(CopyBlocks, AnswerCodec(int)),
    "pin_blocks": Method(PinBlocks, AnswerCodec(int)),
    "kv_snapshot": Method(KvSnapshot, AnswerCodec(int)),
    "kv_restore": Method(KvRestore, AnswerCodec(int)),
    "add_adapter": Method(AddAdapter, AnswerCodec(str)),
    "load_adapter": Method(AdapterName, NOTHING),
    "unload_adapter": Method(AdapterName, NOTHING),
    "push_lora": Method(PushLora, NOTHING),
    "pop_lora": Method(MethodArguments, AnswerCodec(tuple[str, float])),
    "clear_loras": Method(MethodArguments, NOTHING),
}
# The features of every engine of this project, with the sampler's settings and the kinds of grammars by their names
CAPABILITIES = frozenset(
    {
        *("kv", "adapters", "hidden states", "lens", "scores", "speculative", "token_ids", "top logprobs", "whole_rows"),
        *(*METHODS, *DEFAULTS, *get_args(GrammarKind)),
    }
)
