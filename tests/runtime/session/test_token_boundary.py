"""Text and ids as input: at most one BOS, and the effect of a boundary between two texts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from runtime import LanguageModel, load
from tests.tiny_models import tiny_path

BOS = 0


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with load(tiny_path("llama"), backend="hf", threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def fronted() -> Iterator[LanguageModel]:
    with load(tiny_path("llama"), backend="hf", threads=1, add_bos="yes") as loaded:
        yield loaded


def test_bos_is_added_once_at_the_front_and_never_in_the_middle(fronted: LanguageModel) -> None:
    plain = fronted.tokenize("the statement")
    assert plain[0] == BOS
    with fronted.open_session() as session:
        session.ensure_prefix_sync("the statement")
        assert session.ids == plain
        for given in ("the statement", plain, [BOS, *plain]):
            session.ensure_prefix_sync(given)
            assert session.ids == plain
        for given in (" is", fronted.tokenize(" is"), [BOS, *fronted.tokenize(" is")]):
            session.prefill_suffix_sync(given)
            assert session.ids == [*plain, *fronted.tokenize(" is")[1:]]
            session.truncate_sync(len(plain))
        # ids without a BOS stay without
        session.ensure_prefix_sync(plain[1:])
        assert session.ids == plain[1:]
    with fronted.open_session() as session:
        session.prefill_sync(" is")  # the first text of a session
        assert session.ids[0] == BOS


def test_a_model_without_bos_adds_none(model: LanguageModel) -> None:
    with model.open_session() as session:
        session.ensure_prefix_sync("the statement")
        assert session.ids == model.tokenize("the statement")
        session.prefill_suffix_sync([BOS, 5])  # no BOS here: any token
        assert session.ids[-2:] == [BOS, 5]


@pytest.mark.parametrize("which", ["model", "fronted"])
@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [("the state", "ment"), ("the state", " of"), ("a ", "statement"), ("x = 1\n", "\ny"), ("caf", "é"), ("one", ". Two")],
)
def test_joint_differs_says_whether_joint_tokenisation_gives_other_tokens(
    which: str, prefix: str, suffix: str, request: pytest.FixtureRequest
) -> None:
    model: LanguageModel = request.getfixturevalue(which)
    with model.open_session() as session:
        session.ensure_prefix_sync(prefix)
        together = model.tokenize(prefix + suffix)
        front = model.tokenize("")
        apart = [*model.tokenize(prefix), *model.tokenize(suffix)[len(front) :]]
        assert session.joint_differs_sync(suffix) == (together != apart)
        status = session.prefill_suffix_sync(suffix)
        assert status.joint_differs == (together != apart)
        assert session.ids == apart


def test_joint_differs_is_true_for_some_boundaries_and_false_for_others(model: LanguageModel) -> None:
    with model.open_session() as session:
        session.ensure_prefix_sync("the state")
        assert session.joint_differs_sync("ment")
        assert not session.joint_differs_sync(" of")
        assert session.prefill_suffix_sync([5]).joint_differs is None


def test_after_a_control_token_joint_tokenisation_never_differs(model: LanguageModel) -> None:
    with model.open_session() as session:
        session.ensure_messages_sync([{"role": "user", "content": "hi"}], add_generation_prompt=False)
        session.truncate_sync(len(session) - 1)  # the newline after the end of the turn
        assert model.is_eos(session.ids[-1])
        assert not session.joint_differs_sync(">ment")


def test_a_boundary_inside_a_character_differs(model: LanguageModel) -> None:
    with model.open_session() as session:
        half = next(i for i, piece in enumerate(model.byte_vocab) if piece == "é".encode()[:1])
        session.ensure_prefix_sync([5, 6, half])
        assert session.joint_differs_sync("x")
        assert not session.joint_differs_sync("")


def test_sessions_work_inside_a_running_loop_and_with_several_loops(model: LanguageModel) -> None:
    with model.open_session() as session:

        async def inside() -> None:
            session.ensure_prefix_sync("the statement")  # blocks the loop, as every synchronous method does
            await session.prefill_suffix(" is")

        for _ in range(3):
            asyncio.run(inside())
        assert session.ids == [*model.tokenize("the statement"), *model.tokenize(" is")]
