"""`LoadOptions`: how a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.blocks.options import BlockOptions
from runtime.errors import InvalidRequestError
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
WISHES: Final = ("weights", "context_length", "offload")  # what can be set for every model, whatever each of them is


BATCH_ROWS = 64  # that go through the model together, where no option says so
CHUNK_TOKENS, CUDA_CHUNK_TOKENS = 512, 2048  # of a prompt that go into one forward, at most, where no option says so


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded. `None` and "auto" leave the choice to the backend; `ModelInfo.options` says what was chosen.

    `kv_cache_bytes` holds for everything that is remembered or worked on: KV, recurrent state, scores, vectors, and the
    moments in which some of it is copied. It is asked before memory is taken; the activations of one forward come on top.
    `kv_dtype` is the form in which KV rests between requests. With "q8" and "q4" it takes a quarter and a sixth of its
    bytes in float32 (head width 64), and **a cached answer differs from an uncached one** by as much as `ModelInfo.warnings`
    says, measured at load; recurrent state is never quantised, running requests compute on what they load in full width.

    `weights` holds a model's linear weights in 16, 8 or 4 bits, which makes a token on a CPU two to four times as fast. Answers
    are others than those of the float32 weights: `ModelInfo.warnings` has the perplexity of both on a fixed text, and
    `ModelInfo.precision` stands beside the numbers. Embeddings, norms and KV stay as they are; the head has 16 bits or more.

    One seed draws the same alone, in a batch and after a branch with `dtype` float32 and `weights` float32 or float16. In other
    forms, and where KV rests in fewer bits than it was computed with, it may not: `ModelInfo.warnings` says so of a model.

    `chat_format` says how messages become text: "auto" is the model's own template, or none; "none" knows no roles: text is
    continued; the names are the formats of well-known families, for models without a template or in place of their own.
    `chat_template` and `chat_template_file` take the user's template instead; it runs in a sandbox with limits. What ends a
    turn of a named format ends an answer: the token, or where the vocabulary has no such token, its text as a stop string
    (`ignore_eos` and `resolve=False` switch those stops off). A user's own template adds none: give `stop` with the request.
    None of the three touches KV: `kv_fingerprint` stays, `model_fingerprint` and `ModelInfo.template_digest` follow.

    `wishes` names options that hold where they can: a model or an engine that cannot have one of them (weights in fewer bits on
    mlx, a longer context than the model's) is loaded without it, and `ModelInfo.warnings` says so; else it is refused.
    """

    # "auto", or what the backend computes on: cpu, cuda[:n] or mps
    device: str = option("auto", text("the name of a device, such as 'cpu'"))
    # what is computed in, and what weights are held in
    dtype: str = option("auto", one_of("auto", "float32", "float16", "bfloat16"))
    # of linear modules alone, in fewer bits than `dtype` (hf on a CPU, computed in float32)
    weights: Weights = option("auto", one_of(*get_args(Weights)))
    attention: str = option("auto", one_of("auto", "sdpa", "eager"))
    # None: torch's choice, or the user's by OMP_NUM_THREADS; of a model on the shelf as measured
    threads: int | None = option(None, whole(1, MOST_THREADS))
    context_length: int | None = option(None, whole(1))  # tokens
    cache: bool = option(True, flag)  # False: uncached numbers everywhere
    kv_cache_bytes: int | None = option(None, whole(1))
    kv_dtype: KvDtype = option("auto", one_of(*get_args(KvDtype)))
    # that go through the model together; None: `BATCH_ROWS`, on CUDA as many as its memory has room for
    max_batch_rows: int | None = option(None, whole(1))
    max_batch_tokens: int = option(2048, whole(1))
    # a cap, chunks are sized by time; None: `CHUNK_TOKENS`, on CUDA `CUDA_CHUNK_TOKENS`
    prefill_chunk_tokens: int | None = option(None, whole(1))
    add_bos: Literal["model", "yes", "no"] = option("model", one_of("model", "yes", "no"))
    chat_format: ChatFormat = option("auto", one_of(*get_args(ChatFormat)))
    chat_template: str | None = option(None, text("a template's text"))  # the user's own, as jinja2 text
    chat_template_file: str | Path | None = option(None, path("the path of a template"))  # the same in a file
    adapters: tuple[AdapterUse, ...] = ()  # folders or ids, loaded and pushed onto the stack in this order
    # disk: weights that do not fit are read from disk at every forward (hf)
    offload: Literal["none", "disk"] = option("none", one_of("none", "disk"))
    # that weights may take, the largest layer at work too; None: half of what is free
    offload_memory_bytes: int | None = option(None, whole(1))
    # the file that KV outlives the process in; a mapping of its names is taken too
    blocks: BlockOptions | None = option(None, instance(BlockOptions, "BlockOptions(factory, path, budget)"))
    # a model of the same vocabulary that guesses ahead, where `speculative` asks for it
    draft_model: str | None = option(None, text("a folder or a name on the shelf, as text"))
    # passed over, and said so, where this model or its engine cannot have them
    wishes: tuple[str, ...] = option((), many(f"options out of {', '.join(WISHES)}", WISHES.__contains__))

    @property
    def batch_rows(self) -> int:
        """`max_batch_rows`, or the number that holds where nothing else is known."""
        return self.max_batch_rows or BATCH_ROWS

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Checked options from keywords.

        Raises:
            InvalidRequestError: An unknown name (the nearest is named) or a value out of range.
        """
        known = {f.name for f in fields(cls)}
        for name in options:
            if name not in known:
                raise InvalidRequestError(f"unknown load option {shown(name)}: {nearest(name, known - {'wishes'})}")
        given = {name: plain_number(value) for name, value in options.items()}
        if given.get("blocks") is not None:
            given["blocks"] = BlockOptions.from_given(given["blocks"])
        return cls(**given).check()

    def check(self) -> Self:
        """Itself.

        Raises:
            InvalidRequestError: A value out of range, or two that contradict each other; the message names them.
            AdapterError: Something else than adapters and their scales.
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
