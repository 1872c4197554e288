"""The window's use cases with a model on a server: Elsewise's own, over HTTP, with a real small model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.supervisor import open_model
from runtime import LanguageModel, Origin, connections, find_connection, load
from tests.app.serve.conftest import Served, serving, tiny
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, until
from tests.app.workbench.test_scoring import imported
from tests.tiny_models import tiny_path
from ui import EngineState, Refusal, ServerModel, Tier, TurnStatus, TurnView


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    with serving(tiny()) as one:
        yield one


async def connected(s: Scene, served: Served) -> None:
    said = await s.workbench.shelf.connect(ServerModel(served.url, "big"))
    assert said.startswith("big is on the list: ")
    await s.workbench.models.choose("big")


def own(turn: TurnView) -> list[int]:
    return [int(i) for i, origin in zip(turn.run.ids, turn.run.origin, strict=True) if origin != Origin.TEMPLATE]


def test_a_session_continues_with_a_model_on_a_server(play: Play, served: Served) -> None:
    async def scene(s: Scene) -> None:
        await connected(s, served)
        assert [(each.name, each.kind, each.loaded) for each in await s.workbench.shelf.list()] == [("big", "server", True)]
        assert [(each.source, each.loaded) for each in await s.workbench.models.list()] == [("big", True)]
        assert (await s.workbench.models.load_plan("big")).fit is None
        session_id = await s.asked("hello 中文 🙂")
        answer = await s.last(session_id)
        assert len(own(answer)) == 12
        # every token of the prompt has numbers, and the answer has alternatives
        _, *rest = [turn.run for turn in (await s.view(session_id)).turns]
        assert all(np.isfinite(run.logprob[1:]).all() and run.top_ids.shape[1] == 10 for run in rest)
        assert (rest[0].rank[1:] > 0).all()
        # every alternative has its bytes, also if a token is a part of a character
        pieces = s.workbench.answers.token_text(session_id, range(served.model.info.vocab_size))
        assert list(pieces) == served.model.byte_vocab
        # the numbers name the model and the server
        made = s.workbench.answers.how_made(session_id, answer.node_id)
        assert made is not None
        host = served.url.partition("://")[2]
        assert (made.facts["model"], made.facts["engine"]) == (f"tiny-llama at {host}", f"elsewise · {host}")
        # drawn again with the same seed, it is the same
        await s.workbench.answers.regenerate_exactly(session_id, answer.node_id)
        again = await s.last(session_id)
        assert again.node_id != answer.node_id
        assert own(again) == own(answer)
        # a branch at a token
        at = len(again.run) - 6
        other = int(again.run.top_ids[at][1])
        await s.workbench.answers.branch(session_id, again.node_id, at, other)
        branch = await s.last(session_id)
        assert branch.run.ids[at] == other
        assert branch.run.ids[:at].tolist() == again.run.ids[:at].tolist()
        # the Why tab, with the whole row of the server
        drawing = await s.workbench.drawings.find(session_id, again.node_id, at)
        row = await s.workbench.drawings.whole_row(session_id, again.node_id, at)
        assert drawing is not None
        assert drawing.model == made.facts["model"]
        assert np.isclose(row[again.run.ids[at]], again.run.logprob[at], atol=1e-4)
        # the same numbers as the model's own, here
        prompt = (await s.path_ids(session_id))[:-1]
        there = (await s.workbench.services.supervisor.model()).next_token_logprobs_sync(prompt)
        assert np.abs(there - served.model.next_token_logprobs_sync(prompt)).max() < 1e-4

    play(scene, engine=open_model)


async def open_either(source: str, backend: str, **options: Any) -> LanguageModel:
    """A model on a server, or one of the shelf in this process."""
    if find_connection(source) is not None:
        return await open_model(source, backend, **options)
    return await asyncio.to_thread(load, source, "hf")


@pytest.mark.slow
def test_one_session_is_written_by_a_model_here_and_on_a_server_and_both_are_compared(
    play: Play, served: Served, tmp_path: Path
) -> None:
    here, there = "tiny-llama", f"tiny-llama at {served.url.partition('://')[2]}"
    link = tmp_path / "models" / here
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tiny_path("llama"))
    sessions: list[int] = []

    async def locally(s: Scene) -> None:
        await s.workbench.models.choose(here)
        sessions.append(await s.asked("hello"))
        assert s.workbench.status.written_by == ""

    async def remotely(s: Scene) -> None:
        await connected(s, served)
        session_id = sessions[0]
        await s.workbench.sessions.open(session_id)
        await s.workbench.services.supervisor.model()
        s.workbench.services.windows.refresh_status()
        # the model that wrote it and the one that would continue it, as the notice shows
        assert (s.workbench.status.written_by, s.workbench.status.model) == (here, there)
        await s.workbench.answers.send(session_id, "and then?")
        assert s.workbench.status.written_by == ""
        turns = (await s.view(session_id)).turns
        made = [s.workbench.answers.how_made(session_id, turn.node_id) for turn in turns if turn.role == "assistant"]
        assert [each.facts["model"] for each in made if each is not None] == [here, there]
        # every number of both is the model's own
        stored = np.concatenate([turn.run.logprob for turn in turns])
        scored = await served.model.score_run(await s.path_ids(session_id))
        np.testing.assert_allclose(stored[1:], scored.logprob[1:], atol=1e-4)
        # the model on the server compared with the local one
        (choice,) = await s.workbench.comparison.choices(session_id)
        assert choice.source == here
        found = await s.workbench.comparison.compare(session_id, choice, lambda *_: None, anyway=True)
        assert (found.left, found.right) == (there, choice.label)
        np.testing.assert_allclose(found.found.left.logprob[1:], found.found.right.logprob[1:], atol=1e-4)
        assert found.found.kl is not None
        assert np.nanmax(found.found.kl) < 1e-6

    async def locally_again(s: Scene) -> None:
        await s.workbench.models.choose(here)
        await s.workbench.sessions.open(sessions[0])
        await s.workbench.services.supervisor.model()
        s.workbench.services.windows.refresh_status()
        assert (s.workbench.status.written_by, s.workbench.status.model) == (there, here)
        await s.workbench.answers.send(sessions[0], "and at last?")
        assert len(own(await s.last(sessions[0]))) == 12

    for scene in (locally, remotely, locally_again):
        play(scene, engine=open_either)


@pytest.mark.slow
def test_the_context_of_an_imported_session_is_counted_after_the_server_has_read_it(play: Play, served: Served) -> None:
    async def scene(s: Scene) -> None:
        await connected(s, served)
        await s.asked()  # the server has reported the length of its context
        session_id = await imported(s)
        # given turns without tokens: their count is not known here
        assert (await s.workbench.drafts.compose(session_id, "")).context_length is None
        assert await s.workbench.answers.score(session_id, lambda _done, _total: None) > 0
        counted = await s.workbench.drafts.compose(session_id, "")
        assert counted.context_length == served.model.info.context_length
        assert counted.context_used == len(await s.path_ids(session_id)) > 4

    play(scene, engine=open_model)


@pytest.mark.slow
def test_functions_that_a_server_lacks_are_refused_with_the_reason(play: Play, served: Served) -> None:
    async def scene(s: Scene) -> None:
        await connected(s, served)
        session_id = await s.asked()
        answer = await s.last(session_id)
        assert answer.tier is Tier.SERVER
        await s.workbench.services.sessions.find_tiers()
        assert s.workbench.status.tiers[Tier.SERVER] == len((await s.view(session_id)).turns)
        assert s.workbench.cache.view(session_id) is None
        for refused in (
            s.workbench.cache.clear(),
            s.workbench.cache.keep_path(session_id, True),
            s.workbench.cache.check_uncached(session_id),
            s.workbench.continuations.beams(session_id, answer.node_id, 10, 2),
        ):
            with pytest.raises(Refusal, match=r"server|KV cache that can be looked into"):
                await refused
        # a draft does not go to the server before it is sent
        requests = sum(served.engine.responses.values())
        assert await s.workbench.drafts.score(session_id, "secret") is None
        assert (await s.workbench.drafts.compose(session_id, "secret")).tokens is None
        with pytest.raises(Refusal, match="asked only on request"):
            await s.workbench.drawings.whole_row(session_id, answer.node_id, 10, here=True)
        assert sum(served.engine.responses.values()) == requests
        # it can be compared with local models only
        assert await s.workbench.comparison.choices(session_id) == []
        assert not any(choice.chosen for choice in s.workbench.models.backends())
        await s.workbench.settings.change("kv_cache_bytes", 1 << 30)  # applies to local models

    play(scene, engine=open_model)


@pytest.mark.slow
def test_a_lost_connection_keeps_the_text_and_waits_for_a_click(play: Play, served: Served) -> None:
    async def scene(s: Scene) -> None:
        await s.workbench.models.choose(served.url)  # the address alone, as of `elsewise --connect`
        session_id = await s.asked()
        s.call["max_tokens"] = 3000
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "go on"))
        before = s.arrived(session_id)
        await until(lambda: s.arrived(session_id) > before + 5)
        await asyncio.gather(asyncio.to_thread(served.model.close), sending)
        answer = await s.last(session_id)
        assert answer.status is TurnStatus.PARTIAL
        assert len(own(answer)) > 5
        assert answer.can_retry
        assert s.workbench.status.engine is EngineState.READY
        # no automatic retry; a click retries, on the same connection
        s.call["max_tokens"] = 30
        await s.workbench.answers.continue_turn(session_id, answer.node_id)
        assert len(own(await s.last(session_id))) > len(own(answer))

    play(scene, engine=open_model)


@pytest.mark.slow
def test_a_cancelled_connection_is_not_saved(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))

    async def scene(s: Scene) -> None:
        calls: set[asyncio.Task[None]] = set()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            calls.add(task)
            await reader.read()  # read to its end: the client closes the socket
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            connecting = asyncio.create_task(s.workbench.shelf.connect(ServerModel(url, "slow")))
            await asyncio.sleep(1.0)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            await asyncio.wait_for(asyncio.gather(*calls), 10)
        assert calls
        assert connections() == []

    play(scene, engine=open_model)


@pytest.mark.slow
def test_an_unreachable_server_is_refused_and_not_saved(play: Play, tmp_path: Path, served: Served) -> None:
    models_dir = tmp_path / "models"

    async def scene(s: Scene) -> None:
        with pytest.raises(Refusal, match=r"no connection to 127\.0\.0\.1:1: "):
            await s.workbench.shelf.connect(ServerModel("http://127.0.0.1:1"))
        with pytest.raises(Refusal, match="unencrypted"):
            await s.workbench.shelf.connect(ServerModel("http://vllm.example:8000"))
        assert connections() == []
        # the name is made from the address; removing it from the list does not affect the server
        await s.workbench.shelf.connect(ServerModel(served.url))
        name = served.url.partition("://")[2].replace(":", "-")  # "127.0.0.1-8000"
        assert [each.name for each in connections()] == [name]
        assert await s.workbench.shelf.remove(name) == 0
        assert connections() == []
        # a model of the shelf keeps its name, also if it was added later
        await s.workbench.shelf.connect(ServerModel(served.url, "big"))
        (models_dir / "big").mkdir()
        with pytest.raises(Refusal, match="model of the shelf"):
            await s.workbench.shelf.connect(ServerModel(served.url, "big"))
        assert find_connection("big") is None
        # a damaged list does not prevent loading other models
        (models_dir / "connections.json").write_text("{")
        assert [each.name for each in await s.workbench.shelf.list()] == ["big"]
        assert [each.source for each in await s.workbench.models.list()] == ["big"]

    play(scene, engine=open_model)
