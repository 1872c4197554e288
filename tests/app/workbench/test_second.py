"""The path of a real session under a second model, in engines that can fail."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.supervisor import Supervisor
from app.workbench import AppWorkbench
from app.workbench.second import comparing
from app.workbench.second import engine as second_engine
from app.workbench.second.choices import second_choices
from runtime import (
    EngineClient,
    EngineDiedError,
    Fit,
    LanguageModel,
    LoadProgress,
    ModelLoadError,
    ModelShelf,
    Priority,
    SamplingOptions,
    load,
)
from storage import SessionStore
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, Engine, Scene, answered, until
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path
from ui import AdapterChoice, BackendChoice, NoRoomRefusal, PathComparison, Refusal, SecondChoice

SAME = SecondChoice("x", "fake", "x on fake", adapters=())
TINY = SecondChoice("tiny", "hf", "Tiny llama")
Told = list[tuple[str, int, int]]


class Engines(Engine):
    """The first engine is the toy; others by their source. `open` are those that nobody has closed yet."""

    def __init__(self, **second: Any) -> None:
        super().__init__()
        self.second = second
        self.started: list[tuple[str, str, Mapping[str, Any]]] = []
        self.open: list[LanguageModel] = []
        self.dies = False  # the second one, when it is asked for scores
        self.waits: asyncio.Event | None = None

    async def __call__(
        self, source: str, backend: str, *, on_progress: Callable[[LoadProgress], None] | None = None, **options: Any
    ) -> LanguageModel:
        self.started.append((source, backend, options))
        first = len(self.started) == 1
        if source in self.second:
            fault = self.second[source]
            if isinstance(fault, BaseException):
                raise fault
            model: LanguageModel = await asyncio.to_thread(load, fault, backend="hf")
        else:
            model = await super().__call__(source, backend, on_progress=on_progress, **options)
        if first:
            return model
        return _Second(model, self)


class _Second:
    def __init__(self, model: LanguageModel, engines: Engines) -> None:
        self.model, self._engines = model, engines
        engines.open.append(model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def score_run(self, *ids: Any, **how: Any) -> Any:
        if self._engines.dies:
            raise EngineDiedError("the engine process has ended: signal 9 (SIGKILL)")
        if self._engines.waits is not None:
            await self._engines.waits.wait()
        return await self.model.score_run(*ids, **how)

    async def close_async(self) -> None:
        self._engines.open.remove(self.model)
        await self.model.close_async()


async def compared(s: Scene, session_id: int, choice: SecondChoice, told: Told | None = None, **how: Any) -> PathComparison:
    def progress(*news: Any) -> None:
        if told is not None:
            told.append(news)

    return await s.workbench.compare_with(session_id, choice, progress, **how)


def everything(path: Path) -> list[Any]:
    """All that stands in the file, in every table."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        names = [row[0] for row in conn.execute("select name from sqlite_master where type = 'table' order by name")]
        return [(name, conn.execute(f'select * from "{name}"').fetchall()) for name in names]  # the file's own names


def test_the_same_model_on_another_engine_says_the_same(play: Play, path: Path) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, answer = await answered(s)
        before, told = everything(path), Told()
        found = await compared(s, session_id, SAME, told)
        assert everything(path) == before
        ids = await s.path_ids(session_id)
        assert (found.read, len(found.found), found.found.aligned_by) == (len(ids), len(ids), "tokens")
        assert found.found.difference[1:].tolist() == [0.0] * (len(ids) - 1)
        assert found.found.kl is not None
        assert found.found.kl[1:].max() == 0.0
        places = found.spans[answer.node_id]
        assert len(places) == len(answer.run)
        np.testing.assert_allclose(found.found.left.logprob[places], answer.run.logprob, atol=1e-5)
        assert (found.left, found.right) == (s.workbench.supervisor.running.info.name, "x on fake")  # type: ignore[union-attr]  # it runs
        assert told[-1] == ("comparing", told[-1][2], told[-1][2])
        assert told[0][0] == "loading x on fake"
        assert engine.priorities[-1] is Priority.BACKGROUND
        assert engine.open == []  # it ended with the comparison

    play(scene, engine=engine)


def test_another_tokenizer_is_aligned_by_bytes(play: Play, path: Path) -> None:
    engine = Engines(tiny=tiny_path("llama"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        before = everything(path)
        found = (await compared(s, session_id, TINY)).found
        assert everything(path) == before
        assert (found.aligned_by, found.kl) == ("bytes", None)
        assert found.left.run.ids.tolist() == await s.path_ids(session_id)
        assert [t.bytes for t in found.totals()] == [found.totals()[0].bytes] * 2

    ascii_only = SamplingOptions(banned_tokens=tuple(range(128, 256)))
    play(scene, engine=engine, options=replace(OPTIONS, sampling=ascii_only))


def test_an_answer_that_is_no_text_cannot_be_read_by_another_tokenizer(play: Play) -> None:
    engine = Engines(tiny=tiny_path("llama"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        with pytest.raises(Refusal, match="Tiny llama cannot be compared with: the tokens' bytes are not UTF-8"):
            await compared(s, session_id, TINY)
        assert engine.open == []

    no_text = SamplingOptions(banned_tokens=tuple(i for i in range(256) if not 0x80 <= i < 0xC0))
    play(scene, engine=engine, options=replace(OPTIONS, sampling=no_text))


def test_other_adapters_need_no_second_engine(play: Play, tmp_path: Path) -> None:
    engine = Engines()
    folder = toy_adapter(tmp_path / "A", 1)

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        await s.workbench.add_adapter(session_id, str(folder))
        choices = await s.workbench.second_choices(session_id)
        base = next(choice for choice in choices if choice.same_engine)
        assert base.adapters == ()
        assert base.label.endswith("with no adapters")
        found = await compared(s, session_id, base)
        assert found.left.endswith("with the adapters A × 1")
        assert np.abs(found.found.difference[1:]).max() > 0.01
        assert len(engine.started) == 1
        (stack,) = (await s.workbench.setup(session_id)).adapters
        assert stack.loaded  # the session's own are left where they are

        choice = AdapterChoice(stack.choice.folder, stack.choice.name, on=False)
        await s.workbench.set_adapters(session_id, [choice])
        with_it = next(c for c in await s.workbench.second_choices(session_id) if c.same_engine)
        again = await compared(s, session_id, with_it)
        np.testing.assert_allclose(again.found.difference[1:], -found.found.difference[1:], atol=1e-5)

    play(scene, engine=engine)


def test_the_second_engine_is_kept_while_it_is_wanted(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        await s.workbench.keep_second(True)
        await compared(s, session_id, SAME)
        await compared(s, session_id, SAME)
        assert (len(engine.started), len(engine.open)) == (2, 1)
        await compared(s, session_id, SecondChoice("y", "fake", "y"))
        assert (len(engine.started), len(engine.open)) == (3, 1)  # another one takes its place
        assert s.workbench.keeps_second
        await s.workbench.keep_second(False)
        assert engine.open == []
        await s.workbench.keep_second(True)
        await compared(s, session_id, SAME)

    play(scene, engine=engine)
    assert engine.open == []  # the app's end is its end


def test_the_second_engine_has_the_firsts_options_but_those_that_are_its_own(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        s.workbench.supervisor.options |= {
            "threads": 2, "blocks": {"path": "b"}, "draft_model": "d", "context_length": 64, "log_path": Path("/l/engine.log"),
        }  # fmt: skip
        await compared(s, session_id, SecondChoice("x", "fake", "x", dtype="bfloat16"))

    play(scene, engine=engine)
    assert engine.started[1] == ("x", "fake", {"threads": 2, "log_path": Path("/l/engine-second.log"), "dtype": "bfloat16"})


def test_one_that_cannot_be_loaded_is_told_and_nothing_is_left(play: Play) -> None:
    engine = Engines(gone=ModelLoadError("gone: not on the shelf"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        with pytest.raises(Refusal, match="Gone could not be loaded: gone: not on the shelf"):
            await compared(s, session_id, SecondChoice("gone", "hf", "Gone"))
        with pytest.raises(Refusal, match="mlx is not here"):
            await compared(s, session_id, SecondChoice("x", "mlx", "x on mlx", problem="mlx is not here"))
        await s.workbench.send(session_id, "and now?")  # the first one goes on

    play(scene, engine=engine)


def test_an_engine_that_dies_under_it(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.dies = True
        with pytest.raises(Refusal, match="the engine of x on fake stopped; compare again"):
            await compared(s, session_id, SAME)
        assert engine.open == []
        engine.dies = False
        assert (await compared(s, session_id, SAME)).read

    play(scene, engine=engine)


def test_stopped_in_the_middle_nothing_goes_on(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.waits = asyncio.Event()
        work = asyncio.create_task(compared(s, session_id, SAME))
        await until(lambda: engine.open)
        told = Told()
        after = asyncio.create_task(compared(s, session_id, SAME, told))
        await until(lambda: told)
        assert told == [("waiting for another comparison to end", 0, 0)]
        engine.waits.set()  # the second one does not wait for it
        engine.waits = None
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()
        assert (await after).read
        assert engine.open == []

    play(scene, engine=engine)


def test_stopped_while_it_is_loaded(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.loading = asyncio.Event()
        work = asyncio.create_task(compared(s, session_id, SAME))
        await until(lambda: len(engine.started) == 2)
        work.cancel()
        await asyncio.wait([work])
        engine.loading.set()
        assert work.cancelled()
        assert engine.open == []

    play(scene, engine=engine)


def test_the_app_ends_under_a_comparison(play: Play) -> None:
    engine = Engines()
    works = []

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.waits = asyncio.Event()
        works.append(asyncio.create_task(compared(s, session_id, SAME)))
        await until(lambda: engine.open)
        await s.workbench.close()
        assert engine.open == []
        works[0].cancel()
        await asyncio.wait(works)

    play(scene, engine=engine)


def test_where_memory_is_short_it_is_asked_first(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engines()
    asked = []

    async def room_for(choice: SecondChoice, tokens: int) -> Fit:
        asked.append((choice, tokens))
        return Fit("fake", tokens, 1, 4_200_000_000, 1, 1, 1, 8_000_000_000, 1_100_000_000, 0)

    monkeypatch.setattr(comparing, "room_for", room_for)

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        with pytest.raises(NoRoomRefusal, match=r"about 4\.2 GB beside the model in use; 1\.1 GB are free"):
            await compared(s, session_id, SAME)
        assert len(engine.started) == 1
        assert asked == [(SAME, len(await s.path_ids(session_id)))]
        assert (await compared(s, session_id, SAME, anyway=True)).read

    play(scene, engine=engine)


def test_room_is_reckoned_from_the_shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    entry = ModelShelf().add(tiny_path("llama"), "local/tiny")
    fit = asyncio.run(second_engine.room_for(SecondChoice(entry.name, "hf", "Tiny"), 100))
    assert fit is not None
    assert (fit.backend, fit.context) == ("hf", 100)
    assert fit.weights > 100_000
    assert asyncio.run(second_engine.room_for(SecondChoice("nowhere", "hf", "?"), 100)) is None


def test_a_path_that_no_model_has_read(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        with pytest.raises(Refusal, match="no model has read this path yet"):
            await compared(s, session_id, SAME)

    play(scene, engine=Engines())


def test_what_was_typed_since_is_left_out(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, answer = await answered(s)
        read = len(await s.path_ids(session_id))
        engine.dies_after = 0
        await s.workbench.send(session_id, "more?")
        view = await s.view(session_id)
        found = await compared(s, session_id, SAME)
        assert found.read >= read
        assert answer.node_id in found.spans
        for turn in view.turns:
            assert len(found.spans.get(turn.node_id, turn.run.ids)) == len(turn.run)

    play(scene, engine=engine)


def test_a_session_of_another_tokenizer_is_refused(play: Play) -> None:
    engine = Engines(tiny=tiny_path("llama"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        await s.workbench.supervisor.change(source="tiny", backend="hf")
        with pytest.raises(Refusal, match="was written with another tokenizer"):
            await compared(s, session_id, SAME)

    play(scene, engine=engine)


def test_what_there_is_to_choose_from(play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    ModelShelf().add(tiny_path("llama"), "local/tiny")

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        choices = await s.workbench.second_choices(session_id)
        labels = [choice.label for choice in choices]
        assert ("x on hf" in labels, "x on mlx" in labels) == (False, True)  # hf runs it now
        assert "x in bfloat16" in labels
        tiny = next(choice for choice in choices if choice.source == "local/tiny")
        assert (tiny.problem, tiny.adapters, tiny.same_engine) == ("", None, False)
        assert tiny.backend in ("hf", "mlx")

    play(scene, engine=Engines())


def test_what_the_model_may_compute_in_instead() -> None:
    backends = [BackendChoice("hf", "", True), BackendChoice("mlx", "mlx is not here", False)]
    stack = [AdapterChoice("/a", "A"), AdapterChoice("/b", "B", 0.5, on=False)]
    choices = second_choices("m", backends, [], stack, dtype="float32")
    assert [(choice.label, choice.adapters, choice.problem) for choice in choices] == [
        ("m with no adapters", (), ""),
        ("m with the adapters B × 0.5", (AdapterChoice("/b", "B", 0.5),), ""),
        ("m on mlx", (stack[0],), "mlx is not here"),
        ("m in bfloat16", (stack[0],), ""),
    ]
    assert choices[-1].dtype == "bfloat16"
    assert not any(choice.dtype for choice in second_choices("m", backends, [], [], dtype=""))


@pytest.mark.slow
def test_two_real_engines_and_one_that_is_killed(path: Path) -> None:
    async def play() -> None:
        store = SessionStore.open(path)
        workbench = AppWorkbench(store, Supervisor("x", "fake"), OPTIONS)
        try:
            session_id = (await workbench.new_session()).session_id
            await workbench.send(session_id, "where to?")
            found = await workbench.compare_with(session_id, SAME, lambda *_: None)
            assert np.abs(found.found.difference[1:]).max() == 0.0
            await workbench.keep_second(True)
            killed: list[int] = []

            def kill(words: str, _done: int, _total: int) -> None:
                held = workbench._second._held
                second = held.running if held is not None else None
                if words == "comparing" and isinstance(second, EngineClient) and not killed:
                    killed.append(second.pid)
                    os.kill(second.pid, signal.SIGKILL)

            with pytest.raises(Refusal, match="the engine of x on fake stopped"):
                await workbench.compare_with(session_id, SAME, kill)
            assert killed
            await workbench.send(session_id, "the first one lives")
            assert (await workbench.compare_with(session_id, SAME, lambda *_: None)).read > found.read
        finally:
            await workbench.close()

    asyncio.run(play())
