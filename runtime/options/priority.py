"""Who goes first where several wait for the model."""

from __future__ import annotations

from enum import IntEnum

from runtime.errors import InvalidRequestError


class Priority(IntEnum):
    """Who goes first; of equals, who has waited longest."""

    CHAT = 0  # an answer that somebody waits for
    INSPECTOR = 1  # what is looked up beside it
    BACKGROUND = 2  # what nobody waits for


def check_priority(priority: object) -> Priority:
    """The priority.

    Raises:
        InvalidRequestError: Something else.
    """
    if isinstance(priority, Priority):
        return priority
    known = ", ".join(f"Priority.{each.name}" for each in Priority)
    raise InvalidRequestError(f"unknown priority {priority!r:.60}: use one of {known}")
