"""How a generation speculates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from runtime.errors import InvalidRequestError
from runtime.options.checking import check_fields, one_of, option, whole


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

    num_tokens: int = option(5, whole(1, 64))  # guessed at a time, at most
    method: Literal["auto", "draft", "prompt_lookup"] = option("auto", one_of("auto", "draft", "prompt_lookup"))
    prompt_lookup_max: int = option(3, whole(1, 16))  # tokens that must recur, at most
    prompt_lookup_min: int = option(1, whole(1, 16))  # and at least

    def check(self) -> Self:
        """Itself.

        Raises:
            InvalidRequestError: A value out of range; the message names it.
        """
        check_fields(self, "speculative: ")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise InvalidRequestError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) is more than prompt_lookup_max ({self.prompt_lookup_max})"
            )
        return self
