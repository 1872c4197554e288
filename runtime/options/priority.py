"""The order in which waiting requests reach the model."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """The priority of a request: lower values first; among equals, the request that has waited longest."""

    CHAT = 0  # an answer that a person waits for
    INSPECTOR = 1  # a query, such as that of the token inspector
    BACKGROUND = 2  # work that no person waits for
