"""Draws a token again; imported when a token's Why is looked at, for the window opens without it."""

from __future__ import annotations

from runtime import replay_draw

__all__ = ["replay_draw"]
