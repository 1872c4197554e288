"""Everything a caller can set: how a model is loaded, how tokens are drawn, when generation ends."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from runtime.errors import InvalidRequestError
from runtime.speculation.options import SpeculativeOptions

KvDtype = Literal["auto", "f32", "f16", "bf16", "q8", "q4"]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or the list of what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded. `None` and "auto" leave the choice to the backend; `ModelInfo.options` says what was chosen.

    `kv_cache_bytes` holds for everything that is remembered or worked on: KV, recurrent state, scores, vectors, and the
    moments in which some of it is copied. It is asked before memory is taken; the activations of one forward come on top.
    `kv_dtype` is the form in which KV rests between requests. With "q8" and "q4" it takes a quarter and a sixth of its
    bytes in float32 (head width 64), and **a cached answer differs from an uncached one** by as much as `ModelInfo.warnings`
    says, measured at load; recurrent state is never quantised, running requests compute on what they load in full width.
    """

    device: str = "auto"  # auto, cpu, cuda[:n], mps
    dtype: str = "auto"  # auto, float32, float16, bfloat16
    attention: str = "auto"  # auto, sdpa, eager
    threads: int | None = None
    context_length: int | None = None  # tokens
    cache: bool = True  # False: uncached numbers everywhere
    kv_cache_bytes: int | None = None
    kv_dtype: KvDtype = "auto"
    max_batch_rows: int = 64
    max_batch_tokens: int = 2048
    prefill_chunk_tokens: int = 512  # a cap; chunks are sized by time
    add_bos: Literal["model", "yes", "no"] = "model"
    adapters: tuple[str, ...] = ()
    offload: Literal["none", "disk"] = "none"  # disk: weights that do not fit are read from disk at every forward (hf)
    offload_memory_bytes: int | None = None  # that weights may take, the largest layer at work too; None: half of what is free
    draft_model: str | None = None  # a model of the same vocabulary that guesses ahead, where `speculative` asks for it

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Checked options from keywords.

        Raises:
            InvalidRequestError: An unknown name (the nearest is named) or a value out of range.
        """
        known = {f.name for f in fields(cls)}
        for name in options:
            if name not in known:
                raise InvalidRequestError(f"unknown load option {name!r}: {nearest(name, known)}")
        made = cls(**options)
        made._check()
        return made

    def _check(self) -> None:
        for name in (
            "max_batch_rows",
            "max_batch_tokens",
            "prefill_chunk_tokens",
            "threads",
            "context_length",
            "kv_cache_bytes",
            "offload_memory_bytes",
        ):
            value = getattr(self, name)
            if value is not None and not _whole(value, 1):
                raise InvalidRequestError(f"{name} must be a whole number above 0, not {value!r}")
        if self.offload_memory_bytes is not None and self.offload == "none":
            raise InvalidRequestError("offload_memory_bytes says how much stays in memory with offload='disk': give both")
        if not isinstance(self.cache, bool):
            raise InvalidRequestError(f"cache is True or False, not {self.cache!r}")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise InvalidRequestError(f"{name}={value!r}: {nearest(str(value), allowed)}")


_CHOICES = {
    "dtype": ("auto", "float32", "float16", "bfloat16"),
    "attention": ("auto", "sdpa", "eager"),
    "kv_dtype": ("auto", "f32", "f16", "bf16", "q8", "q4"),
    "add_bos": ("model", "yes", "no"),
    "offload": ("none", "disk"),
}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is drawn. Unset fields are None: the model's own settings, then the defaults, fill them."""

    temperature: float | None = None  # 0 is greedy
    top_k: int | None = None  # 0 is off
    top_p: float | None = None  # 1 is off
    min_p: float | None = None  # 0 is off

    def check(self) -> Self:
        """Itself.

        Raises:
            InvalidRequestError: A value out of range; the message names it.
        """
        _in_range("temperature", self.temperature, 0.0, math.inf)
        _in_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        if self.top_k is not None and not _whole(self.top_k, 0):
            raise InvalidRequestError(f"top_k must be a whole number, 0 (off) or more, not {self.top_k!r}")
        return self


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """One generation: how long, how drawn, what is recorded."""

    max_tokens: int | None = None  # default 512, or what is left of the context
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_k: int = 10  # alternatives recorded per token; the sampler's top-k is in `sampling`
    seed: int | None = None  # None: a fresh one, reported in the records' session
    branch: int = 0  # separates streams that share a seed
    resolve: bool = True  # False: the library's defaults alone, for parity and benchmarks
    speculative: SpeculativeOptions | None = None  # several tokens a forward, guessed and checked

    def check(self) -> Self:
        """Itself.

        Raises:
            InvalidRequestError: A value out of range; the message names it.
        """
        self.sampling.check()
        if self.speculative is not None:
            self.speculative.check()
        if self.max_tokens is not None and not _whole(self.max_tokens, 1):
            raise InvalidRequestError(f"max_tokens must be a whole number, 1 or more, not {self.max_tokens!r}")
        if not isinstance(self.stop, list | tuple) or any(not isinstance(s, str) or not s for s in self.stop):
            raise InvalidRequestError(f"stop is a sequence of texts, none of them empty, not {self.stop!r}")
        if not _whole(self.top_k, 0) or self.top_k > 1000:
            raise InvalidRequestError(f"top_k (alternatives recorded) must lie within 0 and 1,000, not {self.top_k!r}")
        for name, value in (("seed", self.seed), ("branch", self.branch)):
            if value is not None and (not _whole(value, 0) or value >= 1 << 64):
                raise InvalidRequestError(f"{name} must be a whole number within 0 and 2**64 - 1, not {value!r}")
        return self


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _in_range(name: str, value: float | None, low: float, high: float, *, open_low: bool = False) -> None:
    if value is None:
        return
    bad_type = isinstance(value, bool) or not isinstance(value, int | float)
    if bad_type or math.isnan(value) or value > high or value < low or (open_low and value == low) or math.isinf(value):
        left = "(" if open_low else "["
        raise InvalidRequestError(f"{name} must lie within {left}{low:g}, {high:g}], not {value!r}")
