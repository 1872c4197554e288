"""The operations of a model, with the types of their arguments and answers: the pipe's allow-list.

A new operation changes three files: `LanguageModel`, this one (a line in `METHODS`), and `runtime.engine.operations`. If it
runs in steps together with other requests, its job and its worker are in a fourth (`runtime.scheduler.workers`). An operation
that reads arrays of the model goes through `read` and changes four: `LanguageModel`, `runtime.scheduler.prefill.readings` (its
job), and `runtime.backends.hf.readings` and `runtime.backends.mlx.readings` (its hooks). A new class of answers changes one
more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import numpy as np

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


class WireHypothesis(msgspec.Struct, frozen=True):
    """One answer of a beam search."""

    columns: dict[str, Array]
    logprob: float
    score: float


class WireTop(msgspec.Struct, frozen=True):
    """The likeliest tokens after one path."""

    ids: Array
    logprobs: Array
    tail_mass: float
    chosen: dict[int, float]


@dataclass(frozen=True, slots=True)
class AnswerCodec:
    """How a method's answer crosses the pipe: the type in the message, and the conversions to it and back."""

    wire: Any
    pack: Callable[[Any], Any] = lambda value: value
    unpack: Callable[[Any], Any] = lambda value: value


ARRAY = AnswerCodec(Array, pack_array, unpack_array)
RUN = AnswerCodec(dict[str, Array], pack_run, unpack_run)
NOTHING = AnswerCodec(None)
COLUMNS = AnswerCodec(
    dict[str, Array],
    lambda columns: {name: pack_array(column) for name, column in columns.items()},
    lambda packed: {name: unpack_array(column) for name, column in packed.items()},
)
TOPS = AnswerCodec(
    list[WireTop],
    lambda tops: [WireTop(pack_array(one.ids), pack_array(one.logprobs), one.tail_mass, dict(one.chosen)) for one in tops],
    lambda tops: [TopLogprobs(unpack_array(one.ids), unpack_array(one.logprobs), one.tail_mass, one.chosen) for one in tops],
)
HYPOTHESES = AnswerCodec(
    list[WireHypothesis],
    lambda hypotheses: [WireHypothesis(pack_run(one.run), one.logprob, one.score) for one in hypotheses],
    lambda packed: [Hypothesis(unpack_run(one.columns), one.logprob, one.score) for one in packed],
)


@dataclass(frozen=True, slots=True)
class Method:
    """One operation of the allow-list: the types of its arguments and answer, and the messages that it sends."""

    arguments: Mapping[str, Any]  # by keyword, all required; token ids are arrays, ``(n,) int32``
    answer: AnswerCodec
    streams: bool = False  # the answer is chunks of runs, each of a branch, and an End
    steps: bool = False  # takes `on_step`; if `watched`, StepMessages precede the Result
    progresses: bool = False  # takes `on_progress`: ProgressMessages precede the first ChunkMessage or the Result
    _decode_arguments: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)
    _decode_answer: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = msgspec.defstruct("Arguments", list(self.arguments.items()), frozen=True, forbid_unknown_fields=True)
        object.__setattr__(self, "_decode_arguments", msgspec.msgpack.Decoder(named))
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


_PATH = {"ids": Array, "adapters": AdapterUses}  # one path, and the adapters of its KV
_TERMS = {"priority": Priority, "cache_salt": str}
_BATCH = {"batch": list[Array], "adapters": AdapterUses, **_TERMS}  # several paths, a row of the answer for each
_PROMPT = {"ids": Array, "options": GenerationOptions}
_NAME = {"name": str}  # of a registered adapter
_BLOCKS = {"keys": list[bytes], "path": str}  # names of blocks, and the other block file
METHODS: dict[str, Method] = {  # the members of `LanguageModel` and its parts explain the keywords
    "logprobs": Method(_BATCH, ARRAY),
    "top_logprobs": Method({**_BATCH, "n": int, "chosen": list[int]}, TOPS),
    "logprobs_uncached": Method(_PATH, ARRAY),
    "score": Method({**_PATH, "top_k": int, "start": int, **_TERMS}, RUN, progresses=True),
    "generate": Method(_PROMPT, NOTHING, streams=True, progresses=True),
    "continue_many": Method({**_PROMPT, "n": int, **_TERMS}, NOTHING, streams=True, progresses=True),
    "generate_many": Method({"prompts": list[Array], "options": list[GenerationOptions]}, NOTHING, streams=True),
    "generate_whole": Method(_PROMPT, RUN),
    "beam_generate": Method({**_PATH, "options": BeamOptions, "watched": bool}, HYPOTHESES, progresses=True, steps=True),
    "embed": Method({"paths": list[Array], "pooling": Pooling, "adapters": AdapterUses}, ARRAY, progresses=True),
    "read": Method(
        {**_PATH, "reading": str, "positions": Array, "options": dict[str, Array | int | float | str]}, COLUMNS, progresses=True
    ),
    "tokenize": Method({"texts": list[str]}, AnswerCodec(list[list[int]])),
    "render_chat": Method(
        {"messages": list[dict[str, Any]], "tools": list[dict[str, Any]] | None, "add_generation_prompt": bool},
        AnswerCodec(list[int]),
    ),
    "prefix_match": Method(_PATH, AnswerCodec(PrefixMatch)),
    "cache_kv": Method(_PATH, NOTHING, progresses=True),
    "pin": Method({**_PATH, "pin": int}, AnswerCodec(int)),
    "unpin": Method({"pin": int}, NOTHING),
    "clear_cache": Method({"vectors": bool}, NOTHING),
    "keep_vectors": Method({"count": int}, NOTHING),
    "reset_queries": Method({}, NOTHING),
    "set_kv_budget": Method({"budget_bytes": int}, NOTHING),
    "save_blocks": Method({**_PATH, "replaces": int | None}, AnswerCodec(BlocksSaved)),
    "copy_blocks": Method(_BLOCKS, AnswerCodec(int)),
    "take_blocks": Method(_BLOCKS, AnswerCodec(int)),
    "pin_blocks": Method({"name": str, "keys": list[bytes]}, AnswerCodec(int)),
    "kv_snapshot": Method({**_PATH, "path": str}, AnswerCodec(int)),
    "kv_restore": Method({"path": str, "upto": int | None}, AnswerCodec(int)),
    "add_adapter": Method({"path": str, "name": str | None, "any_base": bool}, AnswerCodec(str)),
    "load_adapter": Method(_NAME, NOTHING),
    "unload_adapter": Method(_NAME, NOTHING),
    "push_lora": Method({**_NAME, "scale": float}, NOTHING),
    "pop_lora": Method({}, AnswerCodec(tuple[str, float])),
    "clear_loras": Method({}, NOTHING),
}
# The features of every engine of this project, with the sampler's settings and the kinds of grammars by their names
CAPABILITIES = frozenset(
    {
        *("kv", "adapters", "hidden states", "lens", "scores", "speculative", "token_ids", "top logprobs", "whole_rows"),
        *(*METHODS, *DEFAULTS, *get_args(GrammarKind)),
    }
)
