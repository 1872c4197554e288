"""What a running answer asks of its grammar."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """Where one answer stands in its grammar. One caller at a time; every member raises `GrammarError` when it fails.

    The mask of the next token is worked out beside the caller, once `begin` was called; `allowed` waits for what is missing
    of it.
    """

    def begin(self) -> None:
        """Has the next mask worked out."""

    def ready(self, patience: float | None) -> bool:
        """Whether `allowed` would answer at once, after so many seconds at most; None: however long it takes. Never raises."""

    def allowed(self) -> Mask:
        """``(vocab,)`` which tokens may come next, at least one; eos exactly where the answer may end. Not to be changed."""

    def accept(self, token: int) -> None:
        """The token came next."""

    def rollback(self, count: int) -> None:
        """Takes the last `count` tokens back."""

    def fork(self) -> Self:
        """A second one at the same place; what happens to either is nothing to the other."""

    def could_end(self, back: int = 0, then: bytes = b"") -> bool:
        """Whether the answer may end, and would be sound: before its last `back` tokens, with `then` instead of them."""

    def sound(self, back: int = 0) -> bool:
        """Whether an answer that ends here, or before its last `back` tokens, is still one of the grammar's once it was read.

        See `runtime.grammar.matcher`; other answers than those of a JSON schema are read as they are written.
        """

    @property
    def stuck(self) -> bool:
        """Whether nothing can follow although the answer is not whole; known once `allowed` has failed."""

    @property
    def finished(self) -> bool:
        """Whether the answer is whole and nothing can follow it."""

    @property
    def work_seconds(self) -> float:
        """Processor time its masks and steps took."""

    @property
    def wait_seconds(self) -> float:
        """How long the answer waited for masks."""
