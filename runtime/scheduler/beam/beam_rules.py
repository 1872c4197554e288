"""Grammar and stop strings of a beam search, whose states fork with the beams."""

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
class BeamState:
    """The state of one beam's text and grammar after one token.

    Attributes:
        before: The state before the token; None at the beginning.
        token: The token.
        text: The text that it completes.
        finish: Why the beam ends with it, if it does.
        cut: Characters at the end of the whole text that are not shown: a stop string, and the text after it.
        decoder: The decoder's state after the token.
        stops: The search for stop strings after the token; None without stop strings.
        constraint: The grammar's state after the token; None without a grammar.
    """

    before: BeamState | None
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
        stops: Strings that end a hypothesis, none of them empty.
        constraint: The initial state of its grammar, not shared with other requests.
        eos: Ids that end a hypothesis.
        token_bytes: The bytes of every id.

    Attributes:
        work_seconds: CPU time of the grammar masks.
        wait_seconds: Time that steps waited for them.
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
        self._start = BeamState(None, -1, "", Finish.NONE, 0, Utf8Stream(), finder, constraint)
        self.work_seconds = self.wait_seconds = 0.0

    def ready(self, at: BeamState | None, patience: float) -> bool:
        """Whether the mask for `allowed` is there; waits up to `patience` seconds for it."""
        constraint = (at or self._start).constraint
        return constraint is None or constraint.ready(patience)

    def begin(self, places: Iterable[BeamState | None]) -> None:
        """Starts the computation of masks while the forward runs."""
        for at in places:
            if at is not None and at.constraint is not None:
                at.constraint.begin()

    def allowed(self, at: BeamState | None) -> Mask | None:
        """``(vocab,)`` mask of the tokens that may come next, None for all; all False if the grammar is stuck.

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
            return np.zeros(len(self._token_bytes), np.bool_)  # only this beam ends here
        finally:
            self.work_seconds += constraint.work_seconds
            self.wait_seconds += constraint.wait_seconds

    def after(self, before: BeamState | None, token: int, finish: Finish) -> BeamState:
        """The state after one more token; `before` does not change.

        Args:
            before: The beam's state; None at the beginning.
            token: An allowed token.
            finish: Why a beam of this length ends by itself, if it does.
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
        begins = stops.feed(text) if stops is not None and not finish.by_eos else None  # the name of an eos token is no text
        if begins is None:
            return BeamState(before, token, text, finish, 0, decoder, stops, constraint)
        cut = len(text) - begins
        found = BeamState(before, token, text, Finish.STOP, cut, decoder, stops, constraint)
        if constraint is not None and not self._whole_before(found, constraint):
            return BeamState(before, token, text, Finish.STOP_INSIDE, cut, decoder, stops, constraint)
        return found

    def _whole_before(self, at: BeamState, constraint: Constraint) -> bool:
        """Whether the shown text of a hypothesis that a stop string ended satisfies the grammar."""
        tokens, covered, place = 1, len(at.text), at
        while covered < at.cut and place.before is not None:
            place = place.before
            tokens, covered = tokens + 1, covered + len(place.text)
        shown = place.text[: covered - at.cut].encode()
        begun = self._token_bytes[place.token].startswith(shown)  # false inside a character of several tokens
        return begun and constraint.could_end(tokens, shown)


def shown(texts: list[str], cut: int) -> list[str]:
    """The texts of a hypothesis's tokens without their last `cut` characters."""
    left = list(texts)
    for i in reversed(range(len(left))):
        removed = min(cut, len(left[i]))
        left[i] = left[i][: len(left[i]) - removed]
        cut -= removed
    return left
