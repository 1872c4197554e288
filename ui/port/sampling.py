"""The sampler's stages, as the runtime has them: the window names them, and shows what they did to a draw."""

from __future__ import annotations

from runtime import SAMPLER_STAGES, RuntimeFault, SamplingOptions, Stage

__all__ = ["SAMPLER_STAGES", "RuntimeFault", "SamplingOptions", "Stage"]
