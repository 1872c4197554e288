"""Requests that go away at any moment, and requests that the model fails on, beside some that stay: on the real libraries."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import engine_of
from tests.reliability.cancels import LITTLE, Crowd
from tests.runtime.model.trouble import CASES, audit, troubled

LIBRARIES = [case for case in CASES if case[0] != "fake"]
LEAVERS = 40  # thousands of them are a row of tests/reliability


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), LIBRARIES)
def test_nobody_notices_who_leaves_and_who_fails(backend: str, name: str) -> None:
    # given little room, small chunks and batches
    with troubled(backend, name, **LITTLE) as case:
        held = engine_of(case.model).backend
        case.model.set_kv_budget(400 * held.slot_bytes + 40 * held.state_bytes)
        # when they come and go
        crowd = Crowd(case, 1)
        asyncio.run(crowd.until(LEAVERS))
        # then those who stayed had right answers, those who had to fail their error, and nothing is left of any
        assert crowd.wrong == []
        assert crowd.left >= LEAVERS
        assert crowd.stayed
        assert crowd.failed
        audit(case.model)
