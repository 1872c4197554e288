"""The cache in the window: its contents, clearing, a pinned path, and its results compared with uncached ones."""

from __future__ import annotations

import numpy as np
import pytest

from runtime import EngineDiedError
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, until
from ui import Refusal


def pins(s: Scene, session_id: int) -> tuple[int | None, int]:
    """Tokens of the path that are kept, and the number of kept paths; the engine reports them after its next step."""
    view = s.workbench.cache.view(session_id)
    assert view is not None
    return view.kept, view.pins


def size(s: Scene, session_id: int) -> tuple[int, int]:
    """The tokens and edges in the cache, reported as late as the pins."""
    view = s.workbench.cache.view(session_id)
    assert view is not None
    return view.tokens, view.edges


def test_the_view_shows_the_trie_and_why_the_last_prefix_ended(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        assert s.workbench.cache.view(session_id) is None  # no engine runs yet
        await s.workbench.answers.send(session_id, "hello")
        first = s.workbench.cache.view(session_id)
        assert first is not None
        assert first.tokens >= len(await s.path_ids(session_id)) - 1
        assert (first.edges > 0, first.bytes > 0, first.bytes <= first.budget, first.kept) == (True, True, True, None)
        await s.workbench.answers.send(session_id, "and then?")
        view = s.workbench.cache.view(session_id)
        assert view is not None
        assert view.hits > first.hits
        assert view.found > 0
        assert view.ended != ""
        largest = view.largest[0]
        assert (largest.tokens > 0, largest.bytes >= view.largest[-1].bytes) == (True, True)
        assert "hello" in "".join(edge.tail for edge in view.largest) or largest.tail != ""

    play(scene)


def test_clearing_empties_the_cache_and_its_pins(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        with pytest.raises(Refusal, match="no model runs"):
            await s.workbench.cache.clear()
        await s.workbench.answers.send(session_id, "hello")
        await s.workbench.cache.keep_path(session_id, True)
        s.events.clear()
        await s.workbench.cache.clear()
        await until(lambda: (pins(s, session_id), size(s, session_id)) == ((None, 0), (0, 0)))
        assert any(type(event).__name__ == "StatusChanged" for event in s.events)  # the status bar shows bytes
        # and the conversation continues
        await s.workbench.answers.send(session_id, "still there?")
        assert (await s.last(session_id)).role == "assistant"

    play(scene)


def test_a_kept_path_is_not_evicted(play: Play) -> None:
    async def scene(s: Scene) -> None:
        kept = await s.asked("keep this path")
        await s.workbench.cache.keep_path(kept, True)
        await until(lambda: pins(s, kept)[0] is not None)
        view = s.workbench.cache.view(kept)
        assert view is not None
        assert view.kept is not None
        assert view.kept >= len(await s.path_ids(kept)) - 1
        await until(lambda: pins(s, kept) == (view.kept, 1))
        model = s.workbench.services.supervisor.running
        assert model is not None
        # when the budget has room for hardly more than that
        other = await s.asked("another one")
        await model.set_kv_budget_async(2 * view.bytes + 1)
        for _ in range(4):
            await s.asked("x" * 200)
        held = await model.prefix_match_async(await s.path_ids(kept))
        gone = await model.prefix_match_async(await s.path_ids(other))
        assert held.tokens >= view.kept
        assert gone.tokens < held.tokens
        # until it is released; a second release does no harm
        for _ in range(2):
            await s.workbench.cache.keep_path(kept, False)
        await until(lambda: pins(s, kept) == (None, 0))

    play(scene)


def test_the_cached_result_is_compared_with_an_uncached_one(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        with pytest.raises(Refusal, match="no model runs"):
            await s.workbench.cache.check_uncached(session_id)
        await s.asked("hello")
        with pytest.raises(Refusal, match="no tokens yet"):
            await s.workbench.cache.check_uncached(session_id)
        await s.workbench.answers.send(session_id, "hello")
        check = await s.workbench.cache.check_uncached(session_id)
        assert check.tokens == len(await s.path_ids(session_id))
        assert check.difference <= 1e-4
        assert check.same_first
        assert check.entries > 200
        # a wrong one is reported with its difference
        model = s.workbench.services.supervisor.running
        assert model is not None
        ids = await s.path_ids(session_id)
        wrong = np.array(await model.next_token_logprobs(ids))
        wrong[int(wrong.argmax())] -= 3.0

        async def answer(*_: object, **__: object) -> np.ndarray:
            return wrong

        monkeypatch.setattr(model, "next_token_logprobs", answer, raising=False)
        check = await s.workbench.cache.check_uncached(session_id)
        assert check.difference == pytest.approx(3.0, abs=1e-3)
        # and an engine that ends meanwhile is a refusal

        async def die(*_: object, **__: object) -> np.ndarray:
            raise EngineDiedError("the engine process has ended")

        monkeypatch.setattr(model, "next_token_logprobs", die, raising=False)
        with pytest.raises(Refusal, match="ended"):
            await s.workbench.cache.check_uncached(session_id)
        assert s.workbench.cache.view(session_id) is None

    play(scene, engine=Engine())
