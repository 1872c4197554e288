"""The session of the drawing, as the fake workbench keeps it."""

from __future__ import annotations

from msgspec.structs import replace

from tests.ui.fakes import TRIP, FakeWorkbench
from ui import BranchRow, EngineState, SessionSummary, StatusView, Tier, TurnStats, TurnStatus


def spring_trip(now: float) -> FakeWorkbench:
    """The scene of the drawing: a pinned session with branches, a few others, a busy engine."""
    bench = FakeWorkbench()
    where = bench.turn("user", ["Where", " should", " we", " go", " in", " April", "?"], [1, 0.2, 0.1, 0.2, 2, 3.5, 0.1])
    words = "You| could| visit| Lisbon| when| it| rains|:| the| trams| are| empty|,| the| tiles| shine|,| and| every| second"
    words += "| bakery| has| a| window| seat|."
    bits = [0.2, 1, 2, 8.4, 2, 0.2, 3.6, 0.1, 1, 2, 0.3, 6, 0.1, 0.2, 1, 4, 0.1, 0.2, 1, 2, 6, 0.2, 0.2, 2, 4, 0.1]
    visit = bench.turn("assistant", words.split("|"), bits, tier=Tier.WARM, stats=TurnStats(312, 1, 0.18, 41.0, -23.9))
    visit = replace(visit, variants=(41, visit.node_id, 43))
    why = bench.turn("user", ["Why", " there", "?"], [0.3, 3.5, 0.1], tier=Tier.DISK)
    late = ["Because", " the", " city", " is", " built", " for", " slow", " mornings"]
    last = bench.turn("assistant", late, [0.2, 2, 1, 0.2, 4, 0.2, 5.5, 2], status=TurnStatus.STREAMING)
    rows = (
        BranchRow(where.node_id, 0, "", "Where should we go?", None, on_path=True, current=False),
        BranchRow(41, 1, "… visit", "Paris in spring", -18.2, on_path=False, current=False),
        BranchRow(visit.node_id, 1, "… visit", "Lisbon when it rains", -23.9, on_path=True, current=True),
        BranchRow(51, 2, "", "Why? → The light there", -31.0, on_path=False, current=False),
        BranchRow(52, 2, "", "Why? → Because few people", -29.4, on_path=True, current=False),
        BranchRow(43, 1, "", "… visit Rome", -20.7, on_path=False, current=False),
    )
    day = 86400.0
    bench.add(
        SessionSummary(TRIP, "A spring trip", now, 3, pinned=True, is_sample=False),
        [replace(where, tier=Tier.WARM), visit, why, last],
        branches=rows,
        branch_name="rainy ending",
        context_used=372,
    )
    for session_id, (title, age, branches) in enumerate(
        [
            ("Why proofs by contradiction", 60.0, 2),
            ("Names for a small boat", 90.0, 8),
            ("Recipe without an oven", 2 * day, 1),
            ("Letter to the council", 3 * day, 4),
        ],
        start=3,
    ):
        bench.add(SessionSummary(session_id, title, now - age, branches, pinned=False, is_sample=False))
    tiers = {Tier.WARM: 3, Tier.DISK: 1, Tier.COLD: 1}
    bench.status = StatusView(EngineState.READY, "", 41.0, 0.18, 312, 1, 14_000_000, 2_000_000_000, tiers)
    return bench
