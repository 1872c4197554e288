"""A workbench without an engine or a store: it keeps sessions in memory and returns what a test sets."""

from __future__ import annotations

from tests.ui.fake_answers import FakeAnswers, FakeCache, FakeContinuations, FakeDrafts, FakeDrawings, FakeSimilar
from tests.ui.fake_models import FakeComparison, FakeModels, FakeServer, FakeSettings, FakeShelf
from tests.ui.fake_sessions import FakeBranches, FakeSessions, FakeSetup, FakeTransfers
from tests.ui.fake_state import FakeState

SAMPLE, TRIP = 1, 2


class FakeWorkbench(FakeState):
    """Satisfies `ui.port.Workbench`."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = FakeSessions(self)
        self.branches = FakeBranches(self)
        self.setup = FakeSetup(self)
        self.transfers = FakeTransfers(self)
        self.answers = FakeAnswers(self)
        self.drafts = FakeDrafts(self)
        self.continuations = FakeContinuations(self)
        self.drawings = FakeDrawings(self)
        self.similar = FakeSimilar(self)
        self.cache = FakeCache(self)
        self.models = FakeModels(self)
        self.shelf = FakeShelf(self)
        self.settings = FakeSettings(self)
        self.server = FakeServer(self)
        self.comparison = FakeComparison(self)

    async def close(self) -> bool:
        self.calls.append(("close",))
        self.closed = True
        return True
