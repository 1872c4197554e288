"""Everything a caller can set: how a model is loaded, how tokens are drawn, when generation ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.blocks.options import BlockOptions
from runtime.checking import nearest, whole
from runtime.errors import GrammarError, InvalidRequestError
from runtime.grammar.source import Grammar
from runtime.sampling.settings import SamplingOptions
from runtime.speculation.options import SpeculativeOptions

__all__ = ["GenerationOptions", "KvDtype", "LoadOptions", "SamplingOptions", "nearest"]

KvDtype = Literal["auto", "f32", "f16", "bf16", "q8", "q4"]
Weights = Literal["auto", "float32", "float16", "bfloat16", "int8", "int4"]
ChatFormat = Literal["auto", "none", "chatml", "llama3", "mistral", "gemma", "plain"]


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

    device: str = "auto"  # auto, cpu, cuda[:n], mps
    dtype: str = "auto"  # auto, float32, float16, bfloat16: what is computed in, and what weights are held in
    weights: Weights = "auto"  # of linear modules alone, in fewer bits than `dtype` (hf on a CPU, computed in float32)
    attention: str = "auto"  # auto, sdpa, eager
    threads: int | None = None  # None: torch's choice, or the user's by OMP_NUM_THREADS; of a model on the shelf as measured
    context_length: int | None = None  # tokens
    cache: bool = True  # False: uncached numbers everywhere
    kv_cache_bytes: int | None = None
    kv_dtype: KvDtype = "auto"
    max_batch_rows: int = 64
    max_batch_tokens: int = 2048
    prefill_chunk_tokens: int = 512  # a cap; chunks are sized by time
    add_bos: Literal["model", "yes", "no"] = "model"
    chat_format: ChatFormat = "auto"
    chat_template: str | None = None  # the user's own, as jinja2 text
    chat_template_file: str | Path | None = None  # the same in a file
    adapters: tuple[AdapterUse, ...] = ()  # folders or ids, loaded and pushed onto the stack in this order
    offload: Literal["none", "disk"] = "none"  # disk: weights that do not fit are read from disk at every forward (hf)
    offload_memory_bytes: int | None = None  # that weights may take, the largest layer at work too; None: half of what is free
    blocks: BlockOptions | None = None  # the file that KV outlives the process in; a mapping of its names is taken too
    draft_model: str | None = None  # a model of the same vocabulary that guesses ahead, where `speculative` asks for it
    wishes: tuple[str, ...] = ()  # of `WISHES`: passed over, and said so, where this model or its engine cannot have them

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
        blocks = options.get("blocks")
        made = cls(**options) if blocks is None else cls(**{**options, "blocks": BlockOptions.from_given(blocks)})
        made._check()  # noqa: SLF001  # an instance of this very class
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
            if value is not None and not whole(value, 1):
                raise InvalidRequestError(f"{name} must be a whole number above 0, not {value!r}")
        if self.offload_memory_bytes is not None and self.offload == "none":
            raise InvalidRequestError("offload_memory_bytes says how much stays in memory with offload='disk': give both")
        if not isinstance(self.cache, bool):
            raise InvalidRequestError(f"cache is True or False, not {self.cache!r}")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise InvalidRequestError(f"{name}={value!r}: {nearest(str(value), allowed)}")
        if self.draft_model is not None and not (isinstance(self.draft_model, str) and self.draft_model.strip()):
            raise InvalidRequestError(f"draft_model is a folder or a name on the shelf, as text, not {self.draft_model!r:.80}")
        self._check_format()
        check_adapters(self.adapters)
        if not isinstance(self.wishes, list | tuple) or not set(self.wishes) <= set(WISHES):
            raise InvalidRequestError(f"wishes names options out of {', '.join(WISHES)}, not {self.wishes!r:.80}")

    def _check_format(self) -> None:
        if self.chat_template is not None and not (isinstance(self.chat_template, str) and self.chat_template.strip()):
            raise InvalidRequestError(f"chat_template is a template's text, not {self.chat_template!r:.60}")
        if self.chat_template_file is not None and not (
            isinstance(self.chat_template_file, str | Path) and str(self.chat_template_file)
        ):
            raise InvalidRequestError(f"chat_template_file is the path of a template, not {self.chat_template_file!r:.60}")
        given = [name for name in ("chat_template", "chat_template_file") if getattr(self, name) is not None]
        given += ["chat_format"] * (self.chat_format != "auto")
        if len(given) > 1:
            raise InvalidRequestError(f"{' and '.join(given)} contradict each other: give one of them")


WISHES = ("weights", "context_length", "offload")  # what can be set for every model, whatever each of them is
_CHOICES = {
    "dtype": ("auto", "float32", "float16", "bfloat16"),
    "weights": get_args(Weights),
    "attention": ("auto", "sdpa", "eager"),
    "kv_dtype": ("auto", "f32", "f16", "bf16", "q8", "q4"),
    "add_bos": ("model", "yes", "no"),
    "offload": ("none", "disk"),
    "chat_format": get_args(ChatFormat),
}


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """One generation: how long, how drawn, what is recorded."""

    max_tokens: int | None = None  # default 512, or what is left of the context
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    eos_token_ids: tuple[int, ...] | None = None  # end the answer in place of the model's own and its format's stops
    top_k: int = 10  # alternatives recorded per token; the sampler's top-k is in `sampling`
    stages: bool = False  # each record tells what the sampler's stages did, and has at least 64 alternatives
    seed: int | None = None  # None: a fresh one; the request's timings have it (`Metrics.request`)
    branch: int = 0  # separates streams that share a seed
    resolve: bool = True  # False: the library's defaults alone, for parity and benchmarks
    speculative: SpeculativeOptions | None = None  # several tokens a forward, guessed and checked
    adapters: tuple[AdapterUse, ...] | None = None  # of loaded ones, in order; () is the base, None the model's stack
    grammar: Grammar | None = None  # what the answer must look like
    grammar_prefix: int = 0  # so many of the last ids given are the beginning of that answer already

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Checked options from names and values: ours, flat or nested, or as Hugging Face and OpenAI spell them.

        Raises:
            InvalidRequestError: An unknown name (the nearest is named), two spellings that contradict each other, or a value
                out of range.
        """
        from runtime.spellings import read_options  # which knows these classes

        return cls(**read_options(options)).check()

    def check(self) -> Self:
        """Itself.

        Raises:
            InvalidRequestError: A value out of range; the message names it.
            GrammarError: Something that contradicts the grammar.
        """
        self.sampling.check()
        if self.speculative is not None:
            if not isinstance(self.speculative, SpeculativeOptions):
                raise InvalidRequestError(f"speculative is SpeculativeOptions(...) or None, not {self.speculative!r:.80}")
            self.speculative.check()
        if self.max_tokens is not None and not whole(self.max_tokens, 1):
            raise InvalidRequestError(f"max_tokens must be a whole number, 1 or more, not {self.max_tokens!r}")
        if not isinstance(self.stop, list | tuple) or any(not isinstance(s, str) or not s for s in self.stop):
            raise InvalidRequestError(f"stop is a sequence of texts, none of them empty, not {self.stop!r}")
        if not whole(self.top_k, 0) or self.top_k > 1000:
            raise InvalidRequestError(f"top_k (alternatives recorded) must lie within 0 and 1,000, not {self.top_k!r}")
        for name in ("stages", "resolve", "ignore_eos"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} is True or False, not {getattr(self, name)!r:.80}")
        self.check_eos()
        for name, value in (("seed", self.seed), ("branch", self.branch)):
            if value is not None and (not whole(value, 0) or value >= 1 << 64):
                raise InvalidRequestError(f"{name} must be a whole number within 0 and 2**64 - 1, not {value!r}")
        if self.adapters is not None:
            check_adapters(self.adapters)
        self._check_grammar()
        return self

    def check_eos(self, vocab: int | None = None) -> None:
        """Checks `eos_token_ids`, against the vocabulary where its size is known.

        Raises:
            InvalidRequestError: They are no token ids, or outside the vocabulary.
        """
        ids = self.eos_token_ids
        if ids is None:
            return
        if not isinstance(ids, list | tuple) or not all(whole(token, 0) for token in ids):
            raise InvalidRequestError(f"eos_token_ids is a sequence of token ids, not {ids!r:.80}")
        outside = next((token for token in ids if vocab is not None and token >= vocab), None)
        if outside is not None:
            raise InvalidRequestError(f"eos_token_ids: token id {outside} is outside the vocabulary of {vocab:,}")

    def _check_grammar(self) -> None:
        if not whole(self.grammar_prefix, 0):
            raise InvalidRequestError(f"grammar_prefix counts tokens, 0 or more, not {self.grammar_prefix!r}")
        if self.grammar is None:
            if self.grammar_prefix:
                raise InvalidRequestError(f"grammar_prefix={self.grammar_prefix} without a grammar: give both or neither")
            return
        if not isinstance(self.grammar, Grammar):
            raise GrammarError(
                f"grammar is made by Grammar.json_schema, Grammar.regex or Grammar.lark, not {self.grammar!r:.80}"
            )
        name = "ignore_eos" if self.ignore_eos else "eos_token_ids" if self.eos_token_ids is not None else None
        if name is not None:
            raise GrammarError(
                f"{name} contradicts a grammar, which alone says where an answer may end: leave out one of the two"
            )


def given(options: GenerationOptions | None) -> GenerationOptions:
    """A call's options, checked; the defaults where there are none.

    Raises:
        InvalidRequestError: Something else than options, or a value out of range.
    """
    if options is None:
        return GenerationOptions()
    if not isinstance(options, GenerationOptions):
        raise InvalidRequestError(
            f"options is a GenerationOptions, not {options!r:.80}; GenerationOptions.from_mapping makes one of names and values"
        )
    return options.check()
