"""Requests cancelled at any moment, and requests that fail, beside some that are awaited: on the real libraries."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import engine_of
from tests.reliability.cancels import LITTLE, Crowd
from tests.runtime.model.trouble import CASES, audit, troubled

LIBRARIES = [case for case in CASES if case[0] != "fake"]
LEAVERS = 40  # tests/reliability runs thousands of them


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), LIBRARIES)
def test_cancelled_and_failing_requests_do_not_affect_the_others(backend: str, name: str) -> None:
    # given little memory, small chunks and batches
    with troubled(backend, name, **LITTLE) as case:
        held = engine_of(case.model).backend
        case.model.set_kv_budget(400 * held.slot_bytes + 40 * held.state_bytes)
        # when requests come and go
        crowd = Crowd(case, 1)
        asyncio.run(crowd.until(LEAVERS))
        # then awaited requests had right answers, failing ones their error, and nothing of any is left
        assert crowd.wrong == []
        assert crowd.left >= LEAVERS
        assert crowd.stayed
        assert crowd.failed
        audit(case.model)
