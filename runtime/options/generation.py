"""`GenerationOptions`: how long one generation is, how it is drawn, what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.errors import GrammarError, InvalidRequestError, OptionError
from runtime.grammar.source import Grammar
from runtime.options.checking import (
    MOST_SEED,
    check_fields,
    check_token,
    flag,
    instance,
    is_whole,
    many,
    option,
    shown,
    whole,
)
from runtime.options.sampling import SamplingOptions
from runtime.speculation.options import SpeculativeOptions

MOST_ALTERNATIVES: Final = 1000
ALTERNATIVES: Final = whole(0, MOST_ALTERNATIVES, of="alternatives recorded")


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """One generation: how long, how drawn, what is recorded."""

    max_tokens: int | None = option(None, whole(1))  # default 512, or what is left of the context
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: tuple[str, ...] = option((), many("texts, none of them empty", lambda each: isinstance(each, str) and each != ""))
    ignore_eos: bool = option(False, flag)
    # end the answer in place of the model's own and its format's stops
    eos_token_ids: tuple[int, ...] | None = option(None, many("token ids", lambda each: is_whole(each, 0)))
    top_k: int = option(10, ALTERNATIVES)  # alternatives recorded per token; the sampler's top-k is in `sampling`
    stages: bool = option(False, flag)  # each record tells what the sampler's stages did, and has at least 64 alternatives
    seed: int | None = option(None, whole(0, MOST_SEED))  # None: a fresh one; the request's timings have it (`Metrics.request`)
    branch: int = option(0, whole(0, MOST_SEED))  # separates streams that share a seed
    resolve: bool = option(True, flag)  # False: the library's defaults alone, for parity and benchmarks
    # several tokens a forward, guessed and checked
    speculative: SpeculativeOptions | None = option(None, instance(SpeculativeOptions, "SpeculativeOptions(...) or None"))
    adapters: tuple[AdapterUse, ...] | None = None  # of loaded ones, in order; () is the base, None the model's stack
    grammar: Grammar | None = None  # what the answer must look like
    grammar_prefix: int = option(0, whole(0))  # so many of the last ids given are the beginning of that answer already

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Checked options from names and values: ours, flat or nested, or as Hugging Face and OpenAI spell them.

        Raises:
            InvalidRequestError: An unknown name (the nearest is named), two spellings that contradict each other, or a value
                out of range.
        """
        from runtime.options.aliases import read_options  # which knows these classes

        return cls(**read_options(options))

    def check(self, vocab: int | None = None) -> Self:
        """Itself.

        Args:
            vocab: Size of the vocabulary, where it is known.

        Raises:
            InvalidRequestError: A value out of range, an id outside the vocabulary, or nothing left to draw; the message names
                it.
            GrammarError: Something that contradicts the grammar.
        """
        check_fields(self)
        if not isinstance(self.sampling, SamplingOptions):
            raise OptionError("{option} is SamplingOptions(...), not {value}", "sampling", shown(self.sampling))
        self.sampling.check(vocab)
        if vocab is not None:
            for token in self.eos_token_ids or ():
                check_token("eos_token_ids", token, vocab)
        if self.speculative is not None:
            self.speculative.check()
        if self.adapters is not None:
            check_adapters(self.adapters)
        if self.grammar is not None or self.grammar_prefix:
            self._check_grammar()
        return self

    def _check_grammar(self) -> None:
        if self.grammar is None:
            raise InvalidRequestError(f"grammar_prefix={self.grammar_prefix} without a grammar: give both or neither")
        if not isinstance(self.grammar, Grammar):
            raise GrammarError(
                f"grammar is made by Grammar.json_schema, Grammar.regex or Grammar.lark, not {shown(self.grammar)}"
            )
        name = "ignore_eos" if self.ignore_eos else "eos_token_ids" if self.eos_token_ids is not None else None
        if name is not None:
            raise GrammarError(
                f"{name} contradicts a grammar, which alone says where an answer may end: leave out one of the two"
            )


def given(options: GenerationOptions | None, named: Mapping[str, Any] | None = None) -> GenerationOptions:
    """A call's options, checked; the defaults where there are none.

    Args:
        options: As an object.
        named: Or one by one, by the names that `GenerationOptions.from_mapping` knows.

    Raises:
        InvalidRequestError: Something else than options, a value out of range, or both forms at once.
    """
    if named:
        if options is not None:
            raise InvalidRequestError(f"options and {', '.join(named)} beside them: put all of them into the GenerationOptions")
        return GenerationOptions.from_mapping(named)
    if options is None:
        return GenerationOptions()
    if not isinstance(options, GenerationOptions):
        raise InvalidRequestError(
            f"options is a GenerationOptions, not {shown(options)}; make one by its keywords, "
            "GenerationOptions(max_tokens=64), or by GenerationOptions.from_mapping(names and values)"
        )
    return options.check()
