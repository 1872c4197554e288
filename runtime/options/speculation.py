"""How a generation speculates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from runtime.errors import InvalidRequestError
from runtime.options.checking import check_fields, one_of, option, whole


@dataclass(frozen=True, slots=True)
class SpeculativeOptions:
    """Several drafted tokens are verified in one forward; those that the model draws too are accepted.

    The answer is the same as without speculation: each token is drawn from the model's own distribution with its own random
    number; a draft only decides how many distributions one forward gives. (A forward of several tokens may round differently
    from a forward of one, within the printed tolerance.) Drafts come from a draft model, if one was loaded
    (`LoadOptions.draft_model`), else from the text itself: the tokens after the last occurrence of its final n-gram (prompt
    lookup, Saxena 2023). Used while a stream decodes alone in its pack: a batch gains nothing by it, and `continue_many` with
    several branches and beam search refuse it.
    """

    num_tokens: int = option(5, whole(1, 64))  # drafted at a time, at most
    method: Literal["auto", "draft", "prompt_lookup"] = option("auto", one_of("auto", "draft", "prompt_lookup"))
    prompt_lookup_max: int = option(3, whole(1, 16))  # largest n-gram
    prompt_lookup_min: int = option(1, whole(1, 16))  # smallest n-gram

    def check(self) -> Self:
        """Returns itself.

        Raises:
            InvalidRequestError: A value is out of range; the message names it.
        """
        check_fields(self, "speculative: ")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise InvalidRequestError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) is more than prompt_lookup_max ({self.prompt_lookup_max})"
            )
        return self
