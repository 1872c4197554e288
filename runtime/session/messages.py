"""Conversations in a session: what is kept of it, what is new, and why reuse ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.language_model import LanguageModel, Message
from runtime.session.alignment import aligned
from runtime.session.status import Segment


def delta(model: LanguageModel, held: Sequence[int], full: Sequence[int]) -> list[int]:
    """What stands in a session as far as a rendered conversation repeats its text, and the rest of that.

    An end of turn is no text: somebody's answer that spells ``<|im_end|>`` is not taken for one.
    """

    def bytes_of(token: int) -> bytes:
        return b"\xff%d" % token if model.is_eos(token) else model.decode_token(token)

    same = aligned(held, full, bytes_of)
    return [*held[: same.held], *full[same.full :]]


@dataclass(frozen=True, slots=True)
class Said:
    """Messages as they were given: (role, content) of each."""

    messages: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Said:
        """A copy that does not change with them."""
        return cls(tuple((str(m.get("role")), str(m.get("content"))) for m in messages))

    def why(self, before: Said | None, at: int, segments: Sequence[Segment]) -> str:
        """Why the session's token `at` could not be taken over.

        Args:
            before: What was said when the session last took messages; None: never.
            at: The token.
            segments: Of the session as it still is.
        """
        if before is None:
            return "the session held something else than these messages"
        common = next(
            (i for i, (a, b) in enumerate(zip(before.messages, self.messages, strict=False)) if a != b),
            min(len(before.messages), len(self.messages)),
        )
        if common < len(before.messages):
            if common == len(self.messages):
                return f"message {common + 1} ({before.messages[common][0]}) is not there any more"
            return f"message {common + 1} ({self.messages[common][0]}) was changed"
        kind = next((s.kind for s in segments if s.start <= at < s.end), "prefix")
        if kind == "generated":
            return (
                "the answer is written differently: its message was changed, or the chat template leaves a part of answers out "
                "(thinking, for example) once they are history"
            )
        return "the messages are the same: the chat template itself writes something else there (a date, or a shorter history)"
