"""How much of a row is sorted or searched at first, depending on the settings."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.numerics.ranking import SHALLOW, Look
from runtime.options.generation import ORDER, SamplingOptions
from runtime.sampling.chain import LONGEST_HEAD, Sampler

LATE_HEAT = tuple(sorted(ORDER, key=lambda name: name == "temperature"))
MIN_P_FIRST = tuple(sorted(ORDER, key=lambda name: name != "min_p"))
USUAL, MORE = Look(times=4.0, fewest=512), Look(times=8.0, fewest=512)
COLD = Look(times=2.0, fewest=256)


@pytest.mark.parametrize(
    ("settings", "drawn", "traced"),
    [
        ({}, SHALLOW, SHALLOW),
        ({"temperature": 0.0, "top_p": 0.9}, SHALLOW, SHALLOW),  # greedy
        ({"top_k": 40, "top_p": 0.9}, Look(40), SHALLOW),
        ({"top_k": 1000}, Look(LONGEST_HEAD), SHALLOW),
        ({"top_p": 0.9}, USUAL._replace(share=0.9), USUAL._replace(share=0.9)),
        ({"top_p": 0.95}, MORE._replace(share=0.95), MORE._replace(share=0.95)),
        ({"typical_p": 0.95}, MORE._replace(share=0.95), MORE._replace(share=0.95)),
        ({"top_p": 0.5, "typical_p": 0.95}, USUAL._replace(share=0.5), USUAL._replace(share=0.5)),
        ({"top_p": 0.95, "min_p": 0.05}, SHALLOW, MORE._replace(share=0.95)),  # min-p keeps less, but a report needs top-p
        ({"typical_p": 0.95, "min_p": 0.05, "order": MIN_P_FIRST}, USUAL, USUAL),
        ({"temperature": 0.8, "top_p": 0.95}, COLD, COLD),
        ({"temperature": 1.5, "top_p": 0.95}, MORE, MORE),
        ({"dry_multiplier": 0.8, "temperature": 0.8, "top_p": 0.95}, COLD, COLD),  # a preceding edit changes nothing
        ({"temperature": 0.8, "top_p": 0.95, "order": LATE_HEAT}, MORE._replace(share=0.95), MORE._replace(share=0.95)),
        ({"temperature": 0.8, "top_p": 0.95, "min_p": 0.05}, SHALLOW, COLD),
    ],
    ids=str,
)
def test_the_first_look_depends_on_the_settings_of_the_stages(settings: dict[str, Any], drawn: Look, traced: Look) -> None:
    assert Sampler(SamplingOptions(**settings), seed=0).looks == [drawn, traced]
