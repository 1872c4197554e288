"""Models that are shared by the parts of a case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import ours
from benchmarks.catalogue import chosen_parts
from benchmarks.findings import Case, LoadedModels
from benchmarks.run import measure_all
from runtime import LanguageModel
from tests.benchmarks.small import SMALL


class Thing:
    """Records when it was closed."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self._closed = name, closed

    def close(self) -> None:
        self._closed.append(self.name)


def test_each_kind_is_loaded_once_and_closed_at_the_end() -> None:
    # given two kinds, one of which is requested twice
    loaded, closed = LoadedModels(), list[str]()
    first = loaded.get("a", lambda: Thing("a", closed))
    assert loaded.get("a", lambda: Thing("another", closed)) is first
    loaded.get("b", lambda: Thing("b", closed))
    assert closed == []
    # when it ends, then the last one is closed first, and each once
    loaded.close()
    loaded.close()
    assert closed == ["b", "a"]
    # and a later request loads it anew
    assert loaded.get("a", lambda: Thing("anew", closed)).name == "anew"


@pytest.mark.slow
def test_the_counting_parts_of_a_case_load_our_model_once(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[LanguageModel] = []
    really = ours.open_model

    def spied(folder: Path, backend: str, *, kv_cache_bytes: int | None = None) -> LanguageModel:
        opened.append(really(folder, backend, kv_cache_bytes=kv_cache_bytes))
        return opened[-1]

    monkeypatch.setattr(ours, "open_model", spied)
    case = replace(cases[0], loaded=LoadedModels())
    report = measure_all([case], chosen_parts(("W2", "W3")), SMALL, quick=True)
    assert len(opened) == 1
    assert [each.part for each in report.took] == ["W2", "W3"]
    with pytest.raises(Exception, match="closed"):  # whatever a closed model raises
        opened[0].next_token_logprobs_sync([1])
