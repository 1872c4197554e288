"""What beam search is asked and answers: `BeamOptions`, `BeamStep`, `Hypothesis`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.grammar.source import Grammar
from runtime.options import GenerationOptions
from runtime.records import Finish, TokenRun
from runtime.speculation.options import SpeculativeOptions

MOST_BEAMS = 1024  # each holds the KV of its own tokens, and a step looks at three candidates or more of each
STEEPEST = 50.0  # the largest length penalty: of the longest context its power is still a number


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """One beam search. Options mean what they mean to `transformers.generate(num_beams=...)`.

    Attributes:
        width: Beams. One is greedy decoding.
        max_tokens: Tokens of a hypothesis at most; None: 512, or what is left of the context.
        length_penalty: A hypothesis of n tokens scores its log-probability divided by ``n ** length_penalty``: above 0
            longer ones gain, below 0 shorter ones.
        early_stopping: When the search ends. True: as soon as `width` hypotheses are complete. False: when the best
            running beam, as long as it is now, scores no better than the worst of them. "never": when it could not do so
            at any length either (the canonical search).
        num_return: Hypotheses returned, the best of at most `width`; None: all.
        eos_token_ids: Ids that end a hypothesis; None: the model's own.
        ignore_eos: Those are tokens like any other.
        top_k: Alternatives recorded per token.
        stop: Texts that end a hypothesis, across tokens; its text ends before them, its numbers are of all its tokens.
            None are added: what ends a turn of a chat format as a text is to be named here.
        grammar: What a hypothesis must look like. Log-probabilities stay the model's own over all tokens, as where
            transformers is given a `prefix_allowed_tokens_fn`.
        grammar_prefix: So many of the last ids given are the beginning of that answer already.
        speculative: Refused: a step is one forward for all beams already, and what was guessed for one is none of another's.
    """

    width: int = 4
    max_tokens: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    top_k: int = 10
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    grammar_prefix: int = 0
    speculative: SpeculativeOptions | None = None

    def check(self, vocabulary: int | None = None) -> Self:
        """Itself.

        Args:
            vocabulary: Its size, where it is known.

        Raises:
            InvalidRequestError: A value out of range, or more beams than the vocabulary has tokens; the message names it.
            GrammarError: Something that contradicts the grammar.
            UnsupportedFeatureError: It is to speculate.
        """
        if not _whole(self.width, 1) or self.width > MOST_BEAMS:
            raise InvalidRequestError(f"width (beams) must be a whole number within 1 and {MOST_BEAMS:,}, not {self.width!r}")
        if vocabulary is not None and self.width > vocabulary:
            raise InvalidRequestError(
                f"{self.width:,} beams are wider than the vocabulary of {vocabulary:,} tokens: no step has so many different "
                f"continuations; ask for a width of {vocabulary:,} at most"
            )
        if self.max_tokens is not None and not _whole(self.max_tokens, 1):
            raise InvalidRequestError(f"max_tokens must be a whole number, 1 or more, not {self.max_tokens!r}")
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not abs(penalty) <= STEEPEST:  # NaN too
            raise InvalidRequestError(f"length_penalty must lie within [-{STEEPEST:g}, {STEEPEST:g}], not {penalty!r}")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequestError(f"early_stopping is True, False or 'never', not {self.early_stopping!r}")
        if self.num_return is not None and (not _whole(self.num_return, 1) or self.num_return > self.width):
            raise InvalidRequestError(
                f"num_return must be a whole number within 1 and the width of {self.width:,}, not {self.num_return!r}"
            )
        for token in self.eos_token_ids or ():
            if vocabulary is not None and (not _whole(token, 0) or token >= vocabulary):
                raise InvalidRequestError(f"eos_token_ids must lie within the vocabulary of {vocabulary:,}, not {token!r}")
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(f"ignore_eos is True or False, not {self.ignore_eos!r}")
        if not _whole(self.top_k, 0) or self.top_k > 1000:
            raise InvalidRequestError(f"top_k (alternatives recorded) must lie within 0 and 1,000, not {self.top_k!r}")
        if self.speculative is not None:
            raise UnsupportedFeatureError(
                "beam search does not speculate: a step is one forward for all beams already; leave `speculative` out"
            )
        # the same fields, with the same meaning
        GenerationOptions(
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            eos_token_ids=self.eos_token_ids,
            grammar=self.grammar,
            grammar_prefix=self.grammar_prefix,
        ).check()
        return self


@dataclass(frozen=True, slots=True)
class BeamStep:
    """The beams after one step of a search, the best first: who watches all steps can draw their tree.

    Attributes:
        step: 1 for the first token.
        parents: For each beam the place, in the step before, of the one that it continues (0 in the first step).
        tokens: The id it continues it by.
        logprobs: Sum of the log-probabilities of its tokens, nats.
        finished: Complete hypotheses that are kept so far.
    """

    step: int
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: int


OnStep = Callable[[BeamStep], None]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One answer of a beam search.

    Attributes:
        run: Its tokens with the model's own numbers, end-of-text included.
        logprob: The sum of their log-probabilities, nats.
        score: ``logprob / len(run) ** length_penalty``, by which hypotheses are ranked.
    """

    run: TokenRun
    logprob: float
    score: float

    @property
    def ids(self) -> list[int]:
        """Its token ids, end-of-text included."""
        ids: list[int] = self.run.ids.tolist()
        return ids

    @property
    def text(self) -> str:
        """Its text, without that of an end-of-text token and without a stop string."""
        return "".join(t for t, end in zip(self.run.texts, self.run.by_eos.tolist(), strict=True) if not end)

    @property
    def incomplete(self) -> bool:
        """See `Completion.incomplete`."""
        return Finish(int(self.run.finish[-1])).incomplete

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: "eos", "stop", "grammar" (nothing can follow), "length" or "context"."""
        return Finish(int(self.run.finish[-1])).label


def given_beams(options: BeamOptions | None, vocabulary: int | None = None) -> BeamOptions:
    """A search's options, checked; the defaults where there are none.

    Raises:
        InvalidRequestError: Something else than options, or a value out of range.
    """
    if options is not None and not isinstance(options, BeamOptions):
        raise InvalidRequestError(f"options of a beam search is a BeamOptions, not {options!r:.80}")
    return (options or BeamOptions()).check(vocabulary)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
