"""`elsewise models catalogue`: what can be fetched, told without a network."""

from __future__ import annotations

import json

import pytest

from runtime import catalogue
from tests.app.cli.conftest import Elsewise


def test_the_catalogue_says_what_fits(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", None)  # nobody is asked
    done = elsewise("models", "catalogue")
    assert done.code == 0
    rows = done.out.splitlines()
    assert len(rows) == 1 + len(catalogue())
    for row, model in zip(rows[1:], catalogue(), strict=True):
        assert row.startswith(model.name)
        assert model.variant().source in row
        assert ("fit" in row) is not ("too large" in row)
    assert "elsewise models fetch ORG/NAME" in done.err


def test_programs_read_the_same(elsewise: Elsewise) -> None:
    done = elsewise("models", "catalogue", "--json", "--context", "1000")
    told = [json.loads(line) for line in done.out.splitlines()]
    assert [entry["name"] for entry in told] == [model.name for model in catalogue()]
    first = told[0]
    assert first["fit"][0]["context"] == 1000
    assert first["variants"][0]["source"] == first["source"] == catalogue()[0].source
