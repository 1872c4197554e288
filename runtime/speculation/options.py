"""How a generation speculates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from runtime.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SpeculativeOptions:
    """Several tokens are guessed and pushed in one forward; those that the model would have drawn are kept.

    The answer is the one that would have been given without: each token is drawn from the model's own distribution with
    its own random number, a guess only decides how many distributions one forward gives. (A forward of several tokens may
    round otherwise than one of one, within the printed tolerance.) Guesses come from a draft model, if one was loaded
    (`LoadOptions.draft_model`), else from the text itself: what followed the same few tokens when they last occurred
    (prompt lookup, Saxena 2023). Used while a stream decodes alone in its working pack: a batch
    gains nothing by it, and `continue_many` with several branches and beam search refuse it.
    """

    num_tokens: int = 5  # guessed at a time, at most
    method: Literal["auto", "draft", "prompt_lookup"] = "auto"
    prompt_lookup_max: int = 3  # tokens that must recur, at most
    prompt_lookup_min: int = 1  # and at least

    def check(self) -> Self:
        """Itself.

        Raises:
            InvalidRequestError: A value out of range; the message names it.
        """
        for name, most in (("num_tokens", 64), ("prompt_lookup_max", 16), ("prompt_lookup_min", 16)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise InvalidRequestError(f"{name} must be a whole number within 1 and {most}, not {value!r}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise InvalidRequestError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) is more than prompt_lookup_max ({self.prompt_lookup_max})"
            )
        if self.method not in ("auto", "draft", "prompt_lookup"):
            raise InvalidRequestError(f"method is 'auto', 'draft' or 'prompt_lookup', not {self.method!r}")
        return self
