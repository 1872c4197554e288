"""The order in which waiting requests reach the model."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """Lower values first; among equals, the one that has waited longest."""

    CHAT = 0  # an answer that a person waits for
    INSPECTOR = 1  # a query beside it
    BACKGROUND = 2  # work that no person waits for
