"""Replays a draw; a module of its own, imported only when the Why tab is opened."""

from __future__ import annotations

from runtime import replay_draw

__all__ = ["replay_draw"]
