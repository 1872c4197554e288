"""Tokens and their numbers, as the runtime has them: the views of the port are made of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime import Origin, TokenRecord, TokenRun, __version__

if TYPE_CHECKING:  # a type alone: the window opens without its module
    from runtime import Pooling as Pooling

__all__ = ["Origin", "TokenRecord", "TokenRun", "__version__"]
