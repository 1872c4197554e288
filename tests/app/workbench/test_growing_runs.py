"""Runs that grow: the same as joined anew each time, at a cost that does not grow with what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.workbench.tree.runs import EMPTY, GrowingRun, healed, unfinished
from runtime import Finish, GenerationOptions, Origin, SamplingOptions, TokenRun, texts_of
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, assert_same_run

PIECES = st.lists(
    st.sampled_from([b"a", b" b", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", "é".encode(), b""]), min_size=1
)


def run_of(pieces: Sequence[bytes], *, top_k: int = 2, texts: Sequence[str] | None = None) -> TokenRun:
    """Scored tokens with these bytes."""
    n = len(pieces)
    plain = TokenRun.unscored(range(n), pieces, texts_of(pieces) if texts is None else texts, Origin.SAMPLED)
    return replace(
        plain,
        vocabulary=[b"a", b"b"],  # as those of a model have it
        logprob=np.linspace(-3, -1, n, dtype=np.float32),
        rank=np.ones(n, np.int32),
        top_ids=np.arange(n * top_k, dtype=np.int32).reshape(n, top_k),
        top_logprobs=np.full((n, top_k), -1.0, np.float32),
    )


@pytest.mark.slow
@given(st.lists(st.tuples(PIECES, st.integers(0, 4)), min_size=1, max_size=8))
def test_it_is_what_joining_gives(parts: list[tuple[list[bytes], int]]) -> None:
    runs = [run_of(pieces, top_k=k, texts=["x"] * len(pieces)) for pieces, k in parts]
    growing = GrowingRun(runs[0])
    for run in runs[1:]:
        growing.append(run)
        assert growing.run is growing.run
    assert_same_run(growing.run, TokenRun.concat(runs))


def test_the_beginning_of_a_surrogate_leaves_no_mark() -> None:
    growing = GrowingRun(EMPTY)
    for piece in (b"\xed", b"\xa0", b"!"):  # such a beginning at the end of a text has a mark for each byte
        growing.append(run_of([piece]))
    assert "".join(growing.run.texts) == b"\xed\xa0!".decode(errors="replace")


@given(st.binary(min_size=1, max_size=24), st.data())
def test_a_character_split_over_seams_is_read_as_a_whole(data: bytes, drawn: st.DataObject) -> None:
    # given any bytes, cut anywhere into parts that were decoded apart
    pieces = [data[i : i + 1] for i in range(len(data))]
    cuts = sorted(drawn.draw(st.sets(st.integers(1, len(pieces)))) | {len(pieces)})
    growing, whole, at = GrowingRun(EMPTY), EMPTY, 0
    for cut in cuts:
        part = run_of(pieces[at:cut])
        growing.append(part)
        whole = healed(TokenRun.concat([whole, part]))
        at = cut
    # then the texts are those of the whole
    assert "".join(growing.run.texts) == "".join(texts_of(pieces)) == "".join(whole.texts)


def test_what_a_stop_string_cut_does_not_come_back_with_a_character() -> None:
    # given an answer that a stop string ended, the beginning of which was cut from the last token
    ended = replace(run_of([b"\xac", b"ab</"], texts=["\ufffd", "ab"]), finish=np.array([0, int(Finish.STOP)], np.uint8))
    growing = GrowingRun(run_of([b"\xe2\x82"]))
    # when a character is split over the tokens before it
    growing.append(ended)
    assert growing.run.texts == ("", "€", "ab")
    assert healed(TokenRun.concat([run_of([b"\xe2\x82"]), ended])).texts == ("", "€", "ab")
    # and where the token that was cut completes it
    ended = replace(run_of([b"\x98\x80ab</"], texts=["\ufffd\ufffdab"]), finish=np.array([int(Finish.STOP)], np.uint8))
    growing = GrowingRun(run_of([b"\xf0\x9f"]))
    growing.append(ended)
    assert growing.run.texts == ("", "😀ab")
    assert healed(TokenRun.concat([run_of([b"\xf0\x9f"]), ended])).texts == ("", "😀ab")


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"", b""),
        (b"abc", b""),
        (b"\xe2\x82", b"\xe2\x82"),
        (b"x\xf0\x9f\x98", b"\xf0\x9f\x98"),
        (b"\x82\xac", b""),
        (b"\xe2a", b""),
    ],
)
def test_what_a_text_leaves_unfinished(data: bytes, left: bytes) -> None:
    assert unfinished(data) == left


def test_what_was_asked_for_does_not_change_later() -> None:
    growing = GrowingRun(run_of([b"a", b"\xe2\x82"]))
    before = growing.run
    kept = (before.texts, before.ids.copy(), before.top_ids.copy())
    for _ in range(200):
        growing.append(run_of([b"\xac", b"z"], top_k=3))
    assert before.texts == kept[0] == ("a", "\ufffd")
    np.testing.assert_array_equal(before.ids, kept[1])
    np.testing.assert_array_equal(before.top_ids, kept[2])
    assert growing.run.texts[:3] == ("a", "", "€")


@pytest.mark.slow
def test_a_stream_moves_fewer_than_two_rows_per_token() -> None:
    tokens = 20_000
    growing = GrowingRun(EMPTY)
    for i in range(tokens):
        growing.append(run_of([b"w%d " % i]))
    assert len(growing) == len(growing.run) == tokens
    assert growing.moved < 2 * tokens


@pytest.mark.slow
def test_an_answer_costs_in_proportion_to_its_length(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0
    join = TokenRun.concat.__func__  # type: ignore[attr-defined]  # the plain function under the classmethod

    def counting(cls: type[TokenRun], runs: Sequence[TokenRun]) -> Any:
        nonlocal copied
        parts = [run for run in runs if len(run)]
        copied += sum(map(len, parts)) if len(parts) > 1 else 0
        return join(cls, runs)

    async def scene(s: Scene) -> None:
        nonlocal copied
        session_id = await s.asked()
        before, copied = s.arrived(session_id), 0
        await s.workbench.answers.send(session_id, "and now at length")
        assert s.arrived(session_id) - before == 300
        assert copied < 15 * 300, copied  # joined anew with each token it would be 150 times as many, and more

    monkeypatch.setattr(TokenRun, "concat", classmethod(counting))
    play(scene, options=GenerationOptions(max_tokens=300, ignore_eos=True, sampling=SamplingOptions(temperature=0.8), seed=5))
