"""Options and results of a beam search: `BeamOptions`, `BeamStep`, `Hypothesis`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from runtime import html
from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.grammar.source import Grammar
from runtime.options.checking import check_fields, number, option, shown, whole
from runtime.options.generation import ALTERNATIVES, GenerationOptions
from runtime.options.speculation import SpeculativeOptions
from runtime.records import Finish, TokenRun
from runtime.tables import Columns, Tabular

MOST_BEAMS = 1024  # each beam holds the KV of its own tokens, and a step considers at least three candidates of each
MOST_LENGTH_PENALTY = 50.0  # the longest context to this power is still finite


def _when_to_stop(value: Any) -> str | None:
    return None if isinstance(value, bool) or value == "never" else "{option} is True, False or 'never', not {value}"


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """The options of a beam search, as in `transformers.generate(num_beams=...)`.

    Attributes:
        width: The number of beams; 1 is greedy decoding.
        max_tokens: The most tokens of a hypothesis; None: 512, or the rest of the context.
        length_penalty: The score of a hypothesis of n tokens is its log-probability divided by ``n ** length_penalty``: values
            above 0 favour long hypotheses, values below 0 short ones.
        early_stopping: When the search ends. True: as soon as `width` hypotheses are complete. False: when the best running
            beam scores, at its present length, no better than the worst of them. "never": when it could not score better at any
            length (the canonical search).
        num_return: Hypotheses returned, the best of at most `width`; None: all.
        eos_token_ids: Ids that end a hypothesis; None: the model's own.
        ignore_eos: Treats the eos ids as ordinary tokens.
        top_k: Alternatives recorded per token.
        stop: Texts that end a hypothesis, also across tokens. The text of the hypothesis ends before them, while its numbers
            cover all of its tokens. The chat format's stops are not added.
        grammar: Restricts a hypothesis. Log-probabilities stay the model's own over all tokens, as with transformers'
            `prefix_allowed_tokens_fn`.
        grammar_prefix: The number of last prompt ids that already belong to the answer.
        speculative: Refused: a step is already one forward for all beams, and a draft for one beam does not fit another.
    """

    width: int = option(4, whole(1, MOST_BEAMS, of="beams"))
    max_tokens: int | None = option(None, whole(1))
    length_penalty: float = option(1.0, number(-MOST_LENGTH_PENALTY, MOST_LENGTH_PENALTY))
    early_stopping: bool | Literal["never"] = option(False, _when_to_stop)
    num_return: int | None = option(None, whole(1, MOST_BEAMS))
    eos_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    top_k: int = option(10, ALTERNATIVES)
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    grammar_prefix: int = 0
    speculative: SpeculativeOptions | None = None

    def check(self, vocabulary: int | None = None) -> Self:
        """Checks the options and returns them.

        Args:
            vocabulary: The size of the vocabulary; None: not known.

        Raises:
            InvalidRequestError: A value out of range, or more beams than the vocabulary has tokens; the message names it.
            GrammarError: An option that contradicts the grammar.
            UnsupportedFeatureError: `speculative` is set.
        """
        check_fields(self)
        if vocabulary is not None and self.width > vocabulary:
            raise InvalidRequestError(
                f"{self.width:,} beams are wider than the vocabulary of {vocabulary:,} tokens: no step has so many different "
                f"continuations; ask for a width of {vocabulary:,} at most"
            )
        if self.num_return is not None and self.num_return > self.width:
            raise InvalidRequestError(
                f"num_return must be a whole number within 1 and the width of {self.width:,}, not {self.num_return!r}"
            )
        if self.speculative is not None:
            raise UnsupportedFeatureError(
                "beam search does not speculate: a step is one forward for all beams already; leave `speculative` out"
            )
        GenerationOptions(  # the same fields, with the same meaning
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            eos_token_ids=self.eos_token_ids,
            grammar=self.grammar,
            grammar_prefix=self.grammar_prefix,
        ).check(vocabulary)
        return self


@dataclass(frozen=True, slots=True)
class BeamStep:
    """The beams after one step of a search, best first. All steps together form the tree of beams.

    Attributes:
        step: 1 for the first token.
        parents: For each beam, the place of its parent in the step before (0 in the first step).
        tokens: The id that each beam adds to its parent.
        logprobs: The sum of the log-probabilities of each beam's tokens, nats.
        finished: The number of complete hypotheses so far.
    """

    step: int
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: int


OnStep = Callable[[BeamStep], None]


@dataclass(frozen=True, slots=True)
class Hypothesis(Tabular):
    """One answer of a beam search; as a table, its run.

    Attributes:
        run: Its tokens with the model's own numbers, end-of-text included.
        logprob: The sum of their log-probabilities, nats.
        score: ``logprob / len(run) ** length_penalty``, by which hypotheses are ranked.
    """

    run: TokenRun
    logprob: float
    score: float

    def _repr_html_(self) -> str:
        return html.page(self.run.html(), caption=f"score {self.score:.3f}, {self.run.summary}, {self.finish_reason}")

    def table_columns(self) -> Columns:
        return self.run.table_columns()

    @property
    def ids(self) -> list[int]:
        """Its token ids, end-of-text included."""
        ids: list[int] = self.run.ids.tolist()
        return ids

    @property
    def text(self) -> str:
        """Its text, without that of an end-of-text token and without a stop string."""
        return self.run.answer

    @property
    def incomplete(self) -> bool:
        """See `Completion.incomplete`."""
        return Finish(int(self.run.finish[-1])).incomplete

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: "eos", "stop", "grammar" (nothing can follow), "length" or "context"."""
        return Finish(int(self.run.finish[-1])).label


def given_beams(options: BeamOptions | None, vocabulary: int) -> BeamOptions:
    """A search's options, checked; the defaults for None.

    Raises:
        InvalidRequestError: `options` is not a `BeamOptions`, or has a value out of range.
    """
    if options is not None and not isinstance(options, BeamOptions):
        raise InvalidRequestError(f"options of a beam search is a BeamOptions, not {shown(options)}")
    return (options or BeamOptions()).check(vocabulary)
