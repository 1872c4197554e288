"""A path in columns says what a walk along it says, and costs no walk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.workbench.tree.node_index import NodeIndex
from app.workbench.tree.session import WholeSession
from runtime import Origin, TokenRun
from storage import NodeColumns, NodeRow, SessionRow, SessionShape, SessionTree
from tests.app.workbench.trees import node
from ui import Tier, TurnStatus

FEW, MANY = 1_000, 3_000  # turns, of which the same part is shown
MODEL = "m"


def tokens(count: int) -> TokenRun:
    return TokenRun.unscored(range(count), [b" x"] * count, [" x"] * count, Origin.TYPED)


@st.composite
def trees(draw: st.DrawFn) -> list[NodeRow]:
    """Nodes that leave others at their end or inside, some without tokens, in any order of ids."""
    ids = draw(st.lists(st.integers(1, 60), min_size=1, max_size=14, unique=True))
    rows: list[NodeRow] = []
    for place, node_id in enumerate(ids):
        parent = draw(st.sampled_from([*ids[:place], None, 99]))
        count = draw(st.integers(0, 4))
        rows.append(
            node(
                node_id,
                parent,
                draw(st.sampled_from(["user", "assistant"])),
                draw(st.sampled_from(["", "said"])),
                at_token=draw(st.none() | st.integers(0, 5)),
                turn_start=draw(st.booleans()),
                token_count=count,
                seq=place,
            )
        )
    return rows


@pytest.mark.slow
@given(trees(), st.data())
def test_lengths_along_a_path_are_those_of_its_segments(rows: list[NodeRow], data: st.DataObject) -> None:
    known = SessionRow(1, "", 0.0, 0.0, pinned=False, is_sample=False, current_node=None, branches=1)
    held = WholeSession(SessionTree(known, tuple(rows)))
    # given runs of some nodes, read or growing, which need not be as long as the store says
    for row in rows:
        match data.draw(st.sampled_from(["unread", "read", "grows", "waits"])):
            case "read":
                held.runs[row.id] = tokens(data.draw(st.integers(0, 4)))
            case "grows":
                held.runs.extend(row.id, tokens(1))
                held.runs.extend(row.id, tokens(data.draw(st.integers(0, 3))))
            case "waits":
                held.states[row.id] = TurnStatus.WAITING
    for row in rows:
        segments = held.tree.path(row.id)
        columns = held.tree.path_columns(row.id)
        assert held.lengths(row.id).tolist() == [held.segment_length(segment) for segment in segments]
        assert columns.ids.tolist() == [segment.node.id for segment in segments]
        assert [columns.stop(at) for at in range(len(columns))] == [segment.stop for segment in segments]
        assert held.is_read_along(columns).tolist() == [s.node.id in held.runs or s.node.id in held.states for s in segments]
        assert held.unread_along(row.id) == held.unread(segments)
        said = [s.node for s in segments if s.node.has_text]
        unknown = [node for node in said if not (node.token_count or len(held.runs.get(node.id, ())))]
        assert held.has_unread_text(row.id) == bool(unknown)
        assert len(columns.turns) == len(held.tree.turns(row.id))
        for other in rows:
            on_it = [at for at, segment in enumerate(segments) if segment.node.id == other.id]
            assert columns.row(other.id) == (on_it[0] if on_it else None)
        # what is taken away or put in anew counts at once
        if row.id in held.runs:
            del held.runs[row.id]
            assert held.lengths(row.id)[-1] == held.segment_length(segments[-1])
            held.runs[row.id] = tokens(5)
            assert held.lengths(row.id)[-1] == held.segment_length(segments[-1])


@pytest.mark.slow
@given(trees())
def test_links_of_many_nodes_are_those_of_one_after_the_other(rows: list[NodeRow]) -> None:
    shape = NodeColumns(1)
    for row in rows:
        shape.append(row)
    at_once, singly = NodeIndex(shape), NodeIndex(NodeColumns(1))
    for row in rows:
        singly.put(row)
    for place in range(-1, len(rows)):
        assert list(at_once.children(place)) == list(singly.children(place))
        if place >= 0:
            assert at_once.up(place) == singly.up(place)
            assert at_once.path(place) == singly.path(place)
            assert at_once.chain_end(place) == singly.chain_end(place) == followed(at_once, place)
    assert at_once.columns.parent == singly.columns.parent


def followed(index: NodeIndex, place: int) -> int:
    """The last of a chain, one by one."""
    while len(after := list(index.children(place))) == 1 and index.leaves_at_end(after[0]):
        place = after[0]
    return place


def opened(turns: int) -> WholeSession:
    """A session of which the end alone was read."""
    shape = NodeColumns(1)
    for number in range(1, turns + 1):
        role = "assistant" if number % 2 == 0 else "user"
        shape.append(node(number, number - 1 or None, role, "said", token_count=7))
    row = SessionRow(1, "long", 0.0, 0.0, pinned=False, is_sample=False, current_node=turns, branches=1)
    session = WholeSession(SessionShape(row, shape))
    for number in [*session.missing(), *session.unnamed()]:
        role = "assistant" if number % 2 == 0 else "user"
        session.tree.put(node(number, number - 1 or None, role, "said", token_count=7))
        session.runs[number] = tokens(7)
    return session


QUESTIONS: dict[str, Callable[[WholeSession], object]] = {
    "view": WholeSession.view,
    "tiers": WholeSession.tiers,
    "length before a draft": WholeSession.length_before,
    "path length": WholeSession.path_length,
    "unread": lambda session: session.is_read,
    "unnamed": WholeSession.unnamed,
    "status": WholeSession.last_stats,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_what_a_window_asks_of_a_long_session_takes_no_walk_along_it(name: str) -> None:
    few, many = (calls(partial(QUESTIONS[name], session)) for session in (opened(FEW), opened(MANY)))
    assert many < few + 50


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, and generators gone on with."""
    count = 0

    def note(_frame: FrameType, event: str, _given: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_turns_that_the_engine_holds_are_counted_from_the_beginning() -> None:
    session = opened(FEW)
    session.warm, session.stored = 3 * 7, 10 * 7 - 1  # the last token's KV follows with the next turn
    assert session.tiers() == {Tier.WARM: 3, Tier.DISK: 7, Tier.COLD: FEW - 10}
    session.warm = session.stored = 0
    assert session.tiers() == {Tier.WARM: 0, Tier.DISK: 0, Tier.COLD: FEW}
    assert np.array_equal(session.turn_lengths(), [7] * FEW)
