"""The cost of a long path for the event loop: no objects are made for turns that were not read."""

from __future__ import annotations

import pytest

from app.workbench.tree.session import AT_ONCE, OpenSession
from storage import NodeColumns, NodeRow, SessionRow, SessionShape
from tests.app.workbench.trees import node

TURNS, TOKENS = 1000, 7


@pytest.fixture
def session() -> OpenSession:
    """A long session of which only the end was read."""
    shape = NodeColumns(1)
    for number in range(1, TURNS + 1):
        role = "assistant" if number % 2 == 0 else "user"
        shape.append(node(number, number - 1 or None, role, "said", token_count=TOKENS))
    row = SessionRow(1, "long", 0.0, 0.0, pinned=False, is_sample=False, current_node=TURNS, branches=1)
    session = OpenSession(SessionShape(row, shape))
    session.tree.put(node(TURNS, TURNS - 1, "assistant", "said", token_count=TOKENS))
    return session


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Places of the nodes for which objects were made."""
    places: list[int] = []
    stub = NodeColumns.stub

    def counted(columns: NodeColumns, place: int) -> NodeRow:
        places.append(place)
        return stub(columns, place)

    monkeypatch.setattr(NodeColumns, "stub", counted)
    return places


def test_the_length_before_a_draft_is_counted_without_the_nodes(session: OpenSession, made: list[int]) -> None:
    assert session.length_before() == TURNS * TOKENS
    assert session.length_before(replaces=TURNS - 1) == (TURNS - 2) * TOKENS
    assert len(made) < 10


def test_a_view_is_made_only_of_the_shown_turns(session: OpenSession, made: list[int]) -> None:
    assert len(session.tree.turns(session.tip, session.earlier)) == AT_ONCE
    assert len(made) == AT_ONCE - 1
    assert sum(session.turn_lengths()) == session.path_length() == TURNS * TOKENS


def test_stepping_back_to_a_hidden_turn_needs_no_nodes(session: OpenSession, made: list[int]) -> None:
    shown = session.earlier
    session.step_back_to(TURNS - 10)
    assert session.earlier == shown  # already shown
    session.step_back_to(300)
    assert session.earlier == 300 - 1 - AT_ONCE // 2
    session.step_back_to(3)
    assert session.earlier == 0
    assert session.tree.turn_ends() == list(range(1, TURNS + 1))
    assert session.tree.ends(TURNS) == list(range(1, TURNS + 1))
    assert made == []
