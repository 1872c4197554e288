"""Conversations in a session: what is kept of it, what is new, and why reuse ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.info import Message
from runtime.session.alignment import aligned

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel


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

    def why(self, before: Said | None, answered: str | None) -> str:
        """Why reuse ended although the session held more.

        Args:
            before: What was said when the session last took messages; None: never.
            answered: What it has said since then, where that is what could not be taken over.
        """
        if before is None:
            return "the session held something else than these messages"
        pairs = zip(before.messages, self.messages, strict=False)
        common = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(before.messages), len(self.messages)))
        if common < len(before.messages):
            role = before.messages[common][0]
            return f"message {common + 1} ({role}) {'was changed' if common < len(self.messages) else 'is not there any more'}"
        if answered is None:
            return "the messages are the same: the chat template itself writes something else there (a date, for example)"
        role, content = self.messages[common] if common < len(self.messages) else ("", "")
        if content.strip() == answered.strip():
            return "the chat template writes this answer differently once it is history (it leaves out thinking, for example)"
        return f"message {common + 1} ({role}) is not what was answered"
