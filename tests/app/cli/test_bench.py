"""An installed app has no benchmark, and names the place to find it."""

from __future__ import annotations

import sys

import pytest

from tests.app.cli.conftest import Elsewise


def test_the_command_names_the_place_of_the_benchmark(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks", None)  # as if it were not installed
    done = elsewise("bench", "--quick", "--only", "trie")
    assert (done.code, "make bench" in done.err) == (1, True)
