"""A slot that receives the end of an operation may start the next operation at once, and stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ui.conftest import Scene, until
from tests.ui.fakes import FakeWorkbench
from ui import MainWindow

Play = Callable[[Scene], None]
SMOL = "smollm2"


class Once:
    """Starts the next operation, behind a closed gate, at the first end signal; records the later signals too."""

    def __init__(self, bench: FakeWorkbench, begin: Callable[[], None]) -> None:
        self._bench, self._begin = bench, begin
        self.heard: list[tuple[object, ...]] = []

    def __call__(self, *told: object) -> None:
        self.heard.append(told)
        if len(self.heard) == 1:
            self._bench.gate = asyncio.Semaphore(0)
            self._begin()


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["", "model.safetensors is another file"])
def test_a_verification_started_by_the_end_of_another_can_be_stopped(
    problem: str, in_window: Play, bench: FakeWorkbench
) -> None:
    bench.problem = problem

    async def scene(window: MainWindow) -> None:
        shelf, stopped = window.controller.shelf, list[str]()
        again = Once(bench, lambda: shelf.verify(SMOL))
        shelf.verified.connect(again)
        shelf.verify_stopped.connect(stopped.append)
        shelf.verify(SMOL)
        await until(lambda: len(bench.asked("verify_model")) == 2)
        shelf.stop_verifying(SMOL)
        await until(lambda: stopped == [SMOL])
        assert again.heard == [(SMOL, problem)]

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["", "the disk is full"])
def test_a_quantisation_started_by_the_end_of_another_can_be_stopped(
    problem: str, in_window: Play, bench: FakeWorkbench
) -> None:
    bench.problem = problem

    async def scene(window: MainWindow) -> None:
        shelf, told = window.controller.shelf, list[tuple[str, str]]()
        again = Once(bench, lambda: shelf.quantise(SMOL, 4))
        shelf.quantise_ended.connect(lambda name, why: told.append((name, why)))
        (shelf.quantise_ended if problem else shelf.quantised).connect(again)
        shelf.quantise(SMOL, 8)
        await until(lambda: bench.asked("quantise_model") == [(SMOL, 8), (SMOL, 4)])
        shelf.stop_quantising(SMOL)
        await until(lambda: told[-1:] == [(SMOL, "")])
        assert again.heard[0] == (SMOL, problem or f"{SMOL}-8bit")

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("refusal", ["", "a.gguf: not a GGUF file"])
def test_an_import_started_by_the_end_of_another_can_be_stopped(refusal: str, in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        shelf, refused = window.controller.shelf, list[str]()
        again = Once(bench, lambda: shelf.import_gguf(Path("b.gguf"), False))
        shelf.import_ended.connect(again)
        shelf.refused.connect(refused.append)
        bench.refusal = refusal
        shelf.import_gguf(Path("a.gguf"), True)
        await until(lambda: (Path("b.gguf"), False) in bench.asked("import_gguf"))
        shelf.stop_import()
        await until(lambda: len(again.heard) == 2)
        assert again.heard == [("" if refusal else "a",), ("",)]
        assert refused == ([refusal] if refusal else [])

    in_window(scene)


def test_a_second_import_is_not_started_before_the_first_has_ended(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        shelf, ended = window.controller.shelf, list[str]()
        shelf.import_ended.connect(ended.append)
        bench.gate = asyncio.Semaphore(0)
        shelf.import_gguf(Path("a.gguf"), True)
        shelf.import_gguf(Path("b.gguf"), True)
        shelf.stop_import()  # before it began
        await until(lambda: ended == [""])
        bench.gate = None
        shelf.import_gguf(Path("c.gguf"), True)
        await until(lambda: ended == ["", "c"])
        assert bench.asked("import_gguf") == [(Path("c.gguf"), True)]

    in_window(scene)


def test_kv_can_be_accepted_from_within_its_offer(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(window: MainWindow) -> None:
        notice, bar = window.parts.composer.notice, window.parts.status.transfer
        say, said = notice.say, list[tuple[str, bool]]()

        def and_act(words: str, action: str = "") -> None:
            said.append((words, bar.isVisible()))
            say(words, action)
            if action == "Accept KV":
                notice.acted.emit()

        monkeypatch.setattr(notice, "say", and_act)
        monkeypatch.setattr(window.parts.toast, "say", and_act)
        window.transfers.take(tmp_path / "trip.kv.elsewise")
        await until(lambda: len(said) == 2)
        assert said[1] == ("1,234 KV blocks were imported from trip.kv.elsewise", False)
        assert not any(visible for _, visible in said)

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["refused", "stopped"])
def test_an_import_can_start_from_within_the_message_that_another_failed(
    end: str, in_window: Play, bench: FakeWorkbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"refused": "in.json: not ours", "stopped": "stopped; nothing was kept"}[end]

    async def scene(window: MainWindow) -> None:
        notice, said = window.parts.composer.notice, list[str]()
        say = notice.say

        def and_act(words: str, action: str = "") -> None:
            said.append(words)
            say(words, action)
            if len(said) == 1:
                bench.gate = None
                window.transfers.take(tmp_path / "other.json")

        monkeypatch.setattr(notice, "say", and_act)
        monkeypatch.setattr(window.parts.toast, "say", and_act)
        bench.gate = asyncio.Semaphore(0)
        if end == "refused":
            bench.refusal = words
        window.transfers.take(tmp_path / "in.json")
        if end == "stopped":
            await until(lambda: bench.asked("import_file"))
            window.transfers.stop()
        await until(lambda: len(said) == 2)
        assert said == [words, "imported other.json; 2 things were left out"]

    in_window(scene)
