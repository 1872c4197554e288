"""What holds for every test of the runtime."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

NEVER = 1 << 60  # forwards


@pytest.fixture(autouse=True, scope="package")
def _count_what_is_asked_for() -> Iterator[None]:
    """No forward of hf is recorded: what is computed to compare a recording is counted too.

    A model that several tests share would come to that at a forward which depends on the tests before. `test_replay` turns
    recordings on; so do the tests outside of this folder, which count nothing so closely.
    """
    if importlib.util.find_spec("torch") is None:
        yield
        return
    from runtime.backends.hf import replay

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "AFTER", NEVER)
        yield
