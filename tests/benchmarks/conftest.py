from __future__ import annotations

import pytest

from benchmarks.findings import Case
from benchmarks.run import make_cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """The tiny models, on both backends."""
    return make_cases("tiny", ("hf", "mlx"), tmp_path_factory.mktemp("bench"), None)
