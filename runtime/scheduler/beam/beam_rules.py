"""What a hypothesis must look like and which texts end it: a grammar and stop strings, whose state forks with the beams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from runtime.errors import GrammarError
from runtime.grammar.constraint import Constraint
from runtime.grammar.masks import Mask
from runtime.records import Finish
from runtime.scheduler.decode.stops import StopFinder, own_end
from runtime.text.utf8 import Utf8Stream


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where one beam is in its text and its grammar, after one token.

    Attributes:
        before: After the token before; None at the beginning.
        token: The token.
        text: What it completes.
        finish: Why the beam ends with it, if it does.
        cut: Characters at the end of the whole text that are not shown: a stop string and what came with its end.
        decoder: Has read up to it.
        stops: Likewise; None where nothing is looked for.
        constraint: Likewise; None where there is no grammar.
    """

    before: Standing | None
    token: int
    text: str
    finish: Finish
    cut: int
    decoder: Utf8Stream
    stops: StopFinder | None
    constraint: Constraint | None


class BeamRules:
    """The rules of one search. Owner thread only.

    Args:
        stops: Texts that end a hypothesis, none of them empty.
        constraint: Where its grammar begins; this search's alone.
        eos: Ids that end a hypothesis.
        token_bytes: Bytes of every id.

    Attributes:
        work_seconds: Processor time that the grammar's masks took.
        wait_seconds: What was waited for them.
    """

    def __init__(
        self,
        stops: Sequence[str],
        constraint: Constraint | None,
        *,
        eos: Set[int],
        token_bytes: Sequence[bytes],
    ) -> None:
        self._eos = eos
        self._token_bytes = token_bytes
        finder = StopFinder(stops) if stops else None
        self._start = Standing(None, -1, "", Finish.NONE, 0, Utf8Stream(), finder, constraint)
        self.work_seconds = self.wait_seconds = 0.0

    def ready(self, at: Standing | None, patience: float) -> bool:
        """Whether `allowed` would not wait, after so many seconds at most."""
        constraint = (at or self._start).constraint
        return constraint is None or constraint.ready(patience)

    def begin(self, places: Iterable[Standing | None]) -> None:
        """Has the masks at some places worked out, while the forward runs."""
        for at in places:
            if at is not None and at.constraint is not None:
                at.constraint.begin()

    def allowed(self, at: Standing | None) -> Mask | None:
        """``(vocab,)`` which tokens may come next; None for all. None of them where the grammar lets the beam end nowhere.

        Raises:
            GrammarError: The grammar fails.
        """
        constraint = (at or self._start).constraint
        if constraint is None:
            return None
        try:
            return constraint.allowed()
        except GrammarError:
            if not constraint.stuck:
                raise
            return np.zeros(len(self._token_bytes), np.bool_)  # this beam ends here; others may go on
        finally:
            self.work_seconds += constraint.work_seconds
            self.wait_seconds += constraint.wait_seconds

    def after(self, before: Standing | None, token: int, finish: Finish) -> Standing:
        """One token on; what stood before stays as it is.

        Args:
            before: Where the beam stands; None at the beginning.
            token: One that is allowed.
            finish: Why a beam of so many tokens ends by itself, if it does.
        """
        start = before or self._start
        constraint = start.constraint
        if constraint is not None:
            constraint = constraint.fork()
            constraint.advance([token])
        finish = own_end(constraint, eos=token in self._eos) or finish
        decoder, stops = start.decoder.fork(), start.stops and start.stops.fork()
        text = decoder.feed(self._token_bytes[token])
        if finish:
            text += decoder.flush()
        begins = stops.feed(text) if stops is not None and not finish.by_eos else None  # eos's name is no text
        if begins is None:
            return Standing(before, token, text, finish, 0, decoder, stops, constraint)
        cut = len(text) - begins
        found = Standing(before, token, text, Finish.STOP, cut, decoder, stops, constraint)
        if constraint is not None and not self._whole_before(found, constraint):
            return Standing(before, token, text, Finish.STOP_INSIDE, cut, decoder, stops, constraint)
        return found

    def _whole_before(self, at: Standing, constraint: Constraint) -> bool:
        """Whether what is shown of a hypothesis that a stop string ended is a whole answer."""
        tokens, covered, place = 1, len(at.text), at
        while covered < at.cut and place.before is not None:
            place = place.before
            tokens, covered = tokens + 1, covered + len(place.text)
        shown = place.text[: covered - at.cut].encode()
        begun = self._token_bytes[place.token].startswith(shown)  # not so inside a character of several tokens
        return begun and constraint.could_end(tokens, shown)


def shown(texts: list[str], cut: int) -> list[str]:
    """The texts of a hypothesis's tokens without their last `cut` characters."""
    left = list(texts)
    for i in reversed(range(len(left))):
        gone = min(cut, len(left[i]))
        left[i] = left[i][: len(left[i]) - gone]
        cut -= gone
    return left
