"""What holds for every test."""

from __future__ import annotations

import pytest
from hypothesis import settings

# No time limit for an example: how long one takes says how busy the machine is. Where CI is set, hypothesis itself takes
# the same examples every time; elsewhere each run looks at new ones.
settings.register_profile("house", parent=settings(), deadline=None)
settings.load_profile("house")

SLOWEST = "falcon_h1"  # of the tiny models: attention and state spaces in each layer; both alone are in the fast tests too


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is run on every architecture is run on the slowest one with the slow tests."""
    for item in items:
        if SLOWEST in item.name:
            item.add_marker(pytest.mark.slow)
