"""A process that ends with a model in it, however it ends, ends with its own status and leaves no child behind."""

from __future__ import annotations

import pytest

from tests import exits
from tests.tiny_models import tiny_path

LIMIT = 3 * exits.SECONDS


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        pytest.param(backend, name, marks=() if case.fast and backend == case.fast else pytest.mark.slow)
        for name, case in exits.EXITS.items()
        for backend in ("hf", "mlx")
    ],
)
def test_every_exit_keeps_its_status(backend: str, name: str) -> None:
    case = exits.EXITS[name]
    outcome = exits.run(case, backend, tiny_path("llama"))
    assert not outcome.faults(case), outcome.error
