"""Read or Tokens."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How the conversation is rendered."""

    TOKENS = "tokens"
    READ = "read"
