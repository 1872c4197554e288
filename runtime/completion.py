"""`Completion`: the text of an answer, which knows how it ended."""

from __future__ import annotations

from typing import Self

from runtime.records import Finish


class Completion(str):
    """An answer's text. It is a `str` like any other; what is made of it (slices, joins) is plain text again.

    `finish_reason` is "eos", "stop", "length", "context" or "grammar". `incomplete` is True where the answer was cut before
    it came to its own end (by `max_tokens`, by the context, by a stop string inside a grammar's structure), and where it came
    to it but is not what was asked for once it is read: with a name twice in one object, or a number that no float holds. So
    a JSON answer that is not incomplete parses and validates.
    """

    __slots__ = ("finish",)
    finish: Finish

    def __new__(cls, text: str, finish: Finish) -> Self:
        self = super().__new__(cls, text)
        self.finish = finish
        return self

    @property
    def finish_reason(self) -> str | None:
        """Why it ended."""
        return self.finish.label

    @property
    def incomplete(self) -> bool:
        """Whether it was cut, or is not sound."""
        return self.finish.incomplete

    def __repr__(self) -> str:
        return f"Completion({str(self)!r}, {self.finish_reason!r})"

    def __reduce__(self) -> tuple[type[Completion], tuple[str, Finish]]:
        return type(self), (str(self), self.finish)
