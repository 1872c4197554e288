"""`Completion`: the text of an answer, which knows how it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from runtime.records import Finish, TokenRun
from runtime.tables import Columns, Tabular


class Completion(str, Tabular):
    """An answer's text. It is a `str` like any other; what is made of it (slices, joins) is plain text again.

    `run` has its tokens with their numbers (`GenerationOptions.top_k` alternatives each), the end-of-text token included: of
    them it is a table and, in a notebook, a coloured text.

    `finish_reason` is "eos", "stop", "length", "context" or "grammar". `incomplete` is True where the answer was cut before
    it came to its own end (by `max_tokens`, by the context, by a stop string inside a grammar's structure), and where it came
    to it but is not what was asked for once it is read: with a name twice in one object, or a number that no float holds. So
    a JSON answer that is not incomplete parses and validates.
    """

    __slots__ = ("run",)
    run: TokenRun

    def __new__(cls, run: TokenRun) -> Self:
        self = super().__new__(cls, run.answer)
        self.run = run
        return self

    @property
    def finish(self) -> Finish:
        """Why it ended, as a number."""
        return Finish(int(self.run.finish[-1])) if len(self.run) else Finish.NONE

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

    def _repr_html_(self) -> str:
        return self.run._repr_html_()

    def table_columns(self) -> Columns:
        """Those of its run."""
        return self.run.table_columns()

    def __reduce__(self) -> tuple[type[Completion], tuple[TokenRun]]:
        return type(self), (replace(self.run, vocabulary=()),)  # a copy shows alternatives by their ids
