"""`LoadOptions`: how a model is loaded; `BlockOptions`: its block file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.errors import InvalidRequestError, OptionError
from runtime.options.checking import (
    check_fields,
    flag,
    instance,
    many,
    nearest,
    one_of,
    option,
    path,
    plain_number,
    shown,
    text,
    whole,
)

KvDtype = Literal["auto", "f32", "f16", "bf16", "q8", "q4"]
Weights = Literal["auto", "float32", "float16", "bfloat16", "int8", "int4"]
ChatFormat = Literal["auto", "none", "chatml", "llama3", "mistral", "gemma", "plain"]

MOST_THREADS: Final = 1024
SOFT_OPTIONS: Final = ("weights", "context_length", "offload")  # those that `LoadOptions.soft_options` may name

BATCH_ROWS = 64  # default of `max_batch_rows`
CHUNK_TOKENS, CUDA_CHUNK_TOKENS = 512, 2048  # defaults of `prefill_chunk_tokens`


def _dotted(value: Any) -> str | None:
    sound = isinstance(value, str) and all(value.partition(":"))
    return None if sound else "{option} is 'package.module:name', not {value}"


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """The store of a model's blocks, described by values that cross the pipe: the engine process opens it on its block thread.

    Attributes:
        factory: ``"package.module:name"`` of a function that opens a `BlockStore`, as ``factory(path, budget=budget)``.
        path: The path of the block file.
        budget: The most bytes of all blocks.
    """

    factory: str = field(metadata={"fault": _dotted})
    path: str = field(metadata={"fault": text("the path of a file, as text")})
    budget: int = option(4 << 30, whole(1))  # bytes

    @classmethod
    def from_given(cls, given: object) -> Self:
        """Unchecked options from an object of this class, or from a mapping of its fields.

        Raises:
            InvalidRequestError: `given` has another type, or unknown or missing names.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            known = set(cls.__slots__)
            for name in given:
                if name not in known:
                    raise InvalidRequestError(f"unknown option {shown(name)} of blocks: {nearest(name, known)}")
            if not {"factory", "path"} <= set(given):
                raise InvalidRequestError("blocks needs a factory ('package.module:name') and a path")
            return cls(**given)
        words = "{option} is BlockOptions(factory, path, budget) or a mapping of them, not {value}"
        raise OptionError(words, "blocks", shown(given))

    def check(self) -> Self:
        """Checks the options and returns them.

        Raises:
            InvalidRequestError: A value out of range; the message names it.
        """
        check_fields(self, "blocks: ")
        return self


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded. None and "auto" leave the choice to the backend; `ModelInfo.options` has the result.

    `kv_cache_bytes` limits the memory of KV, recurrent state, scores, vectors and transient copies of them, and is checked
    before memory is taken; weights and the activations of one forward are not counted. `kv_dtype` is the form of KV between
    requests. "q8" and "q4" take a quarter and a sixth of the bytes of float32 (head width 64), and **a cached answer differs
    from an uncached one** by the amount in `ModelInfo.warnings`, measured at load. Recurrent state is never quantised; running
    requests load their KV in full width.

    `weights` stores a model's linear weights in 16, 8 or 4 bits, which makes a token on a CPU two to four times as fast. The
    answers differ from those of the float32 weights: `ModelInfo.warnings` has the perplexity of both on a fixed text, and
    `ModelInfo.precision` is shown beside the numbers. Embeddings, norms and KV are not changed; the head has 16 bits or more.

    With `dtype` float32 and `weights` float32 or float16, one seed draws the same tokens alone, in a batch and after a branch.
    In other forms, and where KV is stored in fewer bits than it was computed with, it may not; `ModelInfo.warnings` says so.

    `chat_format` turns messages into text: "auto" is the model's own template, if it has one; "none" has no roles and continues
    text; the other names are the formats of well-known families, for models without a template or in place of their own.
    `chat_template` and `chat_template_file` take the user's template instead; it runs in a sandbox with limits. The end of a
    turn of a named format ends an answer: its token, or where there is no such token its text as a stop string (`ignore_eos`
    and `resolve=False` switch those stops off). A user's template adds no ends: give `stop` with the request. These three
    options do not change KV: `kv_fingerprint` stays; `model_fingerprint` and `ModelInfo.template_digest` change.

    `soft_options` names options that may be left out: a model or an engine that cannot have one (weights in fewer bits on mlx,
    a longer context than the model's) is loaded without it, with a note in `ModelInfo.warnings`, instead of refused.
    """

    # "auto", or the device that the backend computes on: cpu, cuda[:n] or mps
    device: str = option("auto", text("the name of a device, such as 'cpu'"))
    # type of the computation and of the weights
    dtype: str = option("auto", one_of("auto", "float32", "float16", "bfloat16"))
    # the form of linear modules only, in fewer bits than `dtype` (hf on a CPU, computed in float32)
    weights: Weights = option("auto", one_of(*get_args(Weights)))
    attention: str = option("auto", one_of("auto", "sdpa", "eager"))
    # None: OMP_NUM_THREADS, else as measured for a model on the shelf, else torch's choice
    threads: int | None = option(None, whole(1, MOST_THREADS))
    context_length: int | None = option(None, whole(1))  # tokens
    cache: bool = option(True, flag)  # False: all numbers are computed without a cache
    kv_cache_bytes: int | None = option(None, whole(1))
    kv_dtype: KvDtype = option("auto", one_of(*get_args(KvDtype)))
    # rows of one forward; None: `BATCH_ROWS`, on CUDA as many as its memory has room for
    max_batch_rows: int | None = option(None, whole(1))
    max_batch_tokens: int = option(2048, whole(1))
    # the most tokens of a prompt in one forward (chunks are sized by time); None: `CHUNK_TOKENS`, on CUDA `CUDA_CHUNK_TOKENS`
    prefill_chunk_tokens: int | None = option(None, whole(1))
    add_bos: Literal["model", "yes", "no"] = option("model", one_of("model", "yes", "no"))
    chat_format: ChatFormat = option("auto", one_of(*get_args(ChatFormat)))
    chat_template: str | None = option(None, text("a template's text"))  # the user's template, as jinja2 text
    chat_template_file: str | Path | None = option(None, path("the path of a template"))  # the file of the user's template
    adapters: tuple[AdapterUse, ...] = ()  # folders or ids, loaded and pushed onto the stack in this order
    # disk: weights that do not fit are read from disk at every forward (hf)
    offload: Literal["none", "disk"] = option("none", one_of("none", "disk"))
    # memory of the weights, the running layer included; None: half of the free memory
    offload_memory_bytes: int | None = option(None, whole(1))
    # the block file; also accepts a mapping of the fields
    blocks: BlockOptions | None = option(None, instance(BlockOptions, "BlockOptions(factory, path, budget)"))
    # a model of the same vocabulary that drafts tokens for `speculative`
    draft_model: str | None = option(None, text("a folder or a name on the shelf, as text"))
    # left out, with a warning, where this model or its engine cannot have them
    soft_options: tuple[str, ...] = option((), many(f"options out of {', '.join(SOFT_OPTIONS)}", SOFT_OPTIONS.__contains__))

    @property
    def batch_rows(self) -> int:
        """`max_batch_rows`, or its default."""
        return self.max_batch_rows or BATCH_ROWS

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Checked options from keywords.

        Raises:
            InvalidRequestError: An unknown name (the message has the nearest) or a value out of range.
        """
        known = {f.name for f in fields(cls)}
        options = {"soft_options" if name == "wishes" else name: value for name, value in options.items()}  # its former name
        for name in options:
            if name not in known:
                raise InvalidRequestError(f"unknown load option {shown(name)}: {nearest(name, known - {'soft_options'})}")
        given = {name: plain_number(value) for name, value in options.items()}
        if given.get("blocks") is not None:
            given["blocks"] = BlockOptions.from_given(given["blocks"])
        return cls(**given).check()

    def check(self) -> Self:
        """Checks the options and returns them.

        Raises:
            InvalidRequestError: A value out of range, or two values that contradict each other; the message names them.
            AdapterError: `adapters` has items other than names and (name, scale) pairs.
        """
        check_fields(self)
        if self.blocks is not None:
            self.blocks.check()
        check_adapters(self.adapters)
        if self.offload_memory_bytes is not None and self.offload == "none":
            raise InvalidRequestError("offload_memory_bytes says how much stays in memory with offload='disk': give both")
        given = [name for name in ("chat_template", "chat_template_file") if getattr(self, name) is not None]
        given += ["chat_format"] * (self.chat_format != "auto")
        if len(given) > 1:
            raise InvalidRequestError(f"{' and '.join(given)} contradict each other: give one of them")
        return self
