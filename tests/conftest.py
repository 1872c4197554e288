"""What holds for every test."""

from __future__ import annotations

import faulthandler

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

# No time limit for an example: how long one takes says how busy the machine is. Where CI is set, hypothesis itself takes
# the same examples every time; elsewhere each run looks at new ones.
settings.register_profile("house", parent=settings(), deadline=None)
settings.load_profile("house")

GRACE = 30  # seconds from a test's own limit to the end of its process, as between the two limits in pyproject.toml
SLOWEST = "falcon_h1"  # of the tiny models: attention and state spaces in each layer; both alone are in the fast tests too


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is run on every architecture is run on the slowest one with the slow tests."""
    for item in items:
        if SLOWEST in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that may take longer is not ended with its process at the limit of the others either."""
    limit = item.get_closest_marker("timeout")
    if limit is not None:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit.args[0] + GRACE, file=stderr, exit=True)
