"""The runtime's names that the window uses: the views of the port are made of its tokens, the inspector names its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime import SAMPLER_STAGES, Origin, RuntimeFault, SamplingOptions, Stage, TokenRecord, TokenRun, __version__

if TYPE_CHECKING:  # a type alone: the window opens without its module
    from runtime import Pooling as Pooling

__all__ = ["SAMPLER_STAGES", "Origin", "RuntimeFault", "SamplingOptions", "Stage", "TokenRecord", "TokenRun", "__version__"]
