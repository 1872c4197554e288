"""The order in which waiting requests reach the model."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """Lower values first; among equals, the request that has waited longest."""

    CHAT = 0  # an answer that a person waits for
    INSPECTOR = 1  # a look-up beside it
    BACKGROUND = 2  # work without a waiter
