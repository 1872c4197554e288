"""The sampler's stages. A new one is a file in `runtime.sampling.stages`, a line here and its fields in `SamplingOptions`."""

from __future__ import annotations

from typing import Any, Final

from runtime.sampling.spec import Kind, Parameter, StageSpec
from runtime.sampling.stages import bias, dry, min_p, penalties, temperature, top_k, top_p, typical, xtc

SAMPLER_STAGES: Final[tuple[StageSpec, ...]] = (  # in their default order
    bias.SPEC,
    penalties.SPEC,
    dry.SPEC,
    temperature.SPEC,
    top_k.SPEC,
    top_p.SPEC,
    min_p.SPEC,
    typical.SPEC,
    xtc.SPEC,
)
STAGES: Final = {spec.name: spec for spec in SAMPLER_STAGES}
ORDER: Final = tuple(STAGES)
PARAMETERS: Final[dict[str, Parameter]] = {each.name: each for spec in SAMPLER_STAGES for each in spec.parameters}
DEFAULTS: Final[dict[str, Any]] = {**{each.name: each.default for each in PARAMETERS.values()}, "order": ORDER}
STAGE_OF: Final = {each.name: spec.name for spec in SAMPLER_STAGES for each in spec.parameters if each.switch}
EDITS: Final = frozenset(spec.name for spec in SAMPLER_STAGES if spec.kind is Kind.EDIT)
NUMBERS: Final = {"": 0, "raw": 1, "grammar": 2, "draw": 12} | {spec.name: spec.number for spec in SAMPLER_STAGES}
STAGE_NAMES: Final = tuple(sorted(NUMBERS, key=NUMBERS.__getitem__))  # by number; 0 fills stored columns
