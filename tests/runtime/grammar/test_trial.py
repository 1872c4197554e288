"""Grammars are tried out together in one process; one that crashes it is identified, and may be tried again later."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from typing import Any

import pytest

from runtime import GenerationOptions, Grammar, GrammarError
from runtime.grammar import grammars as compiling
from runtime.grammar import trial
from runtime.grammar.grammars import KEPT
from tests.fakes import fake_model, local, until

DEEP = "start:a0\n" + "\n".join(f"a{i}:a{i + 1}" for i in range(1300)) + '\na1300:"x"'


class Started:
    """Counts the processes that are started, and can set a timeout for each of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.most: float | None = None  # seconds
        self._run = subprocess.run
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        if self.most is not None:
            kwargs["timeout"] = self.most
        return self._run(*args, **kwargs)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    return Started(monkeypatch)


def own(i: int, name: str) -> Grammar:
    """A grammar that no other test uses, because results are cached."""
    return Grammar.regex(f"{name}[a-z]{i}")


def test_many_grammars_are_checked_in_one_process_and_results_are_cached(started: Started) -> None:
    grammars = [own(i, "many") for i in range(12)]
    bad = Grammar.regex("many(")
    found = trial.check_grammars([*grammars, bad])
    assert {grammar for grammar, fault in found.items() if fault} == {bad}
    assert "unclosed" in str(found[bad])
    assert trial.check_grammars([*grammars, bad]).keys() == found.keys()
    assert started.count == 1


def test_a_large_batch_of_grammars_is_split_over_two_processes(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    grammars = [own(i, "shared") for i in range(trial.EACH + 1)]
    assert not any(trial.check_grammars(grammars).values())
    assert started.count == 2


@pytest.mark.slow
def test_a_crashing_grammar_does_not_affect_other_grammars(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a grammar between two others whose rules overflow the stack
    monkeypatch.setattr(trial, "CHILD_STACK", 1 << 20)
    before, deep, after = own(0, "before"), Grammar.lark(DEEP + "\n\n"), own(0, "after")
    found = trial.check_grammars([before, deep, after])
    # then the other two are judged as they are alone
    assert found[before] is None
    assert found[after] is None
    assert "nested too deeply" in str(found[deep])
    assert started.count == 3  # all three; the crashing one and those after it, with only the first to blame; the rest
    # and the crash is not remembered: a later check compiles the grammar
    monkeypatch.undo()
    Grammar.lark(DEEP + "\n\n").check()


def test_a_timed_out_grammar_can_be_checked_again(started: Started) -> None:
    grammar = own(0, "late")
    started.most = 0.001
    with pytest.raises(GrammarError, match="took longer than 60 s"):
        grammar.check()
    started.most = None
    assert grammar.check() is grammar


@pytest.mark.slow
def test_a_batch_of_grammars_compiles_once_off_the_event_loop(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    # given more grammars than the cache keeps
    count = KEPT + 6
    grammars = [Grammar.regex(f"batch{i:03}") for i in range(count)]
    options = [GenerationOptions(grammar=grammar, max_tokens=20, seed=i) for i, grammar in enumerate(grammars)]
    loop_thread, ticks = threading.get_ident(), 0
    compiled_on: set[int] = set()

    async def main() -> list[str]:
        nonlocal ticks
        texts = [""] * count

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        beside = asyncio.create_task(tick())
        async for number, record in model.generate_many([[1, 2]] * count, options):
            texts[number] += record.text
        beside.cancel()
        return texts

    with fake_model(max_batch_rows=8) as model:

        def noted(wanted: Any) -> Any:
            compiled_on.add(threading.get_ident())
            before = ticks
            until(lambda: ticks > before + 20)  # the event loop keeps running
            return trial.check_grammars(wanted)

        monkeypatch.setattr(compiling, "check_grammars", noted)
        # when
        assert asyncio.run(main()) == [f"batch{i:03}" for i in range(count)]
        # then none was compiled on the event loop's thread, or a second time
        assert loop_thread not in compiled_on
        assert started.count <= trial.MOST_PROCESSES
        assert sum(map(local(model).operations.grammars.ready, grammars)) <= KEPT


def test_a_batch_names_the_prompt_whose_grammar_cannot_be_used() -> None:
    async def main() -> None:
        async for _ in model.generate_many([[1], [2], [3]], [GenerationOptions(grammar=g) for g in grammars]):
            pass

    grammars = [own(0, "named"), Grammar.regex("named("), Grammar.regex("named)")]
    with fake_model() as model:
        with pytest.raises(GrammarError, match=r"prompt 1: the regex cannot be used: (?s:.*)unclosed"):
            asyncio.run(main())
        assert model.metrics().tokens_computed == 0
        # and none of them is kept beyond others
        local(model).operations.grammars.prepare_all([own(i, "others") for i in range(KEPT)])
        assert not local(model).operations.grammars.ready(grammars[0])
