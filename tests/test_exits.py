"""A process that ends with a loaded model keeps its own exit status and leaves no child, however it ends.

Each case runs on one engine here, and on both in `make reliability` (row "process exits").
"""

from __future__ import annotations

import itertools

import pytest

from tests import exits
from tests.tiny_models import tiny_path

LIMIT = 3 * exits.SECONDS


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        pytest.param(case.fast or backend, name, marks=() if case.fast else pytest.mark.slow)
        for (name, case), backend in zip(exits.EXITS.items(), itertools.cycle(("hf", "mlx")), strict=False)
    ],
)
def test_every_exit_keeps_its_status(backend: str, name: str) -> None:
    case = exits.EXITS[name]
    outcome = exits.run(case, backend, tiny_path("llama"))
    assert not outcome.faults(case), outcome.error
