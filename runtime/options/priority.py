"""The order in which waiting requests reach the model."""

from __future__ import annotations

from enum import IntEnum

from runtime.errors import InvalidRequestError


class Priority(IntEnum):
    """Lower values first; among equals, the request that has waited longest."""

    CHAT = 0  # an answer that a person waits for
    INSPECTOR = 1  # a look-up beside it
    BACKGROUND = 2  # work without a waiter


def check_priority(priority: object) -> Priority:
    """The priority.

    Raises:
        InvalidRequestError: Something else.
    """
    if isinstance(priority, Priority):
        return priority
    known = ", ".join(f"Priority.{each.name}" for each in Priority)
    raise InvalidRequestError(f"unknown priority {priority!r:.60}: use one of {known}")
