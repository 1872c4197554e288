"""`elsewise lens`: table, JSON, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runtime import LensCost, load
from tests.app.cli.conftest import Elsewise
from tests.tiny_models import tiny_path

TEXT = "def parse(line):\n    return line.split()"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return str(path)


def test_json_holds_the_models_numbers(elsewise: Elsewise, file: str) -> None:
    model = str(tiny_path("llama"))
    done = elsewise("lens", file, "--model", model, "--backend", "hf", "--position", "2-3", "--position", "0", "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    with load(model, "hf") as loaded:
        ids = loaded.tokenize(TEXT)
        run, info = loaded.lens_sync(ids, [2, 3, 0], top_k=3), loaded.info
    assert [row["position"] for row in rows] == [2, 3, 0]
    assert "3 positions" in done.err  # the cost, first
    assert "12 rows of the vocabulary" in done.err
    taken = re.search(r"^([0-9.]+) s: ([0-9.,]+) ms and ([0-9,]+) bytes of answer for each position$", done.err, re.MULTILINE)
    assert taken is not None  # and the time it took, afterwards
    assert float(taken[1]) > 0
    assert int(taken[3]) * 3 == LensCost.of(info, 3, 3).answer_bytes
    for at, row in enumerate(rows):
        [followed] = row["followed"]
        assert (followed["id"], followed["leads_from"]) == (ids[row["position"] + 1], run.leads_from()[at])
        assert [layer["layer"] for layer in row["layers"]] == [0, 1, 2, 3]
        for number, layer in enumerate(row["layers"]):
            assert layer["ranks"] == [run.ranks[at, number, 0]]
            assert layer["logprobs"] == [pytest.approx(float(run.logprobs[at, number, 0]), abs=1e-4)]
            assert [one["id"] for one in layer["top"]] == run.top_ids[at, number].tolist()


def test_a_table_names_the_leading_layer(elsewise: Elsewise, file: str) -> None:
    done = elsewise("lens", file, "--backend", "fake", "--token", "p")
    assert done.code == 0
    assert "after token" in done.out
    assert "p: " in done.out
    assert "layer" in done.out
    assert len(done.out.splitlines()) == 2 + 1 + 2  # the followed tokens, the head, two rows


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--position", "x"), "give a number"),
        (("--position", "-1"), "give a number"),
        (("--position", "5-2"), "behind the last"),
        (("--position", "0-99999999"), "more positions than"),
        (("--position", "4000"), "not 4000"),
        (("--position", "9" * 5000), "no text is so long"),
        (("--position", "0-" + "9" * 5000), "no text is so long"),
        (("--position", "1", "--position", "1"), "given twice"),
        (("--token", ""), "empty"),
    ],
    ids=str,
)
def test_refusals(given: tuple[str, ...], words: str, elsewise: Elsewise, file: str) -> None:
    done = elsewise("lens", file, "--backend", "fake", *given)
    assert done.code
    assert words in done.err
    assert not done.out


def test_an_empty_text_is_refused(elsewise: Elsewise, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    done = elsewise("lens", str(tmp_path / "empty"), "--backend", "fake")
    assert done.code
    assert "empty; there is no position" in done.err


def test_the_cost_of_a_million_positions_is_printed_before_the_refusal(elsewise: Elsewise, file: str) -> None:
    done = elsewise("lens", file, "--backend", "fake", "--position", "0-999999")
    assert done.code
    cost, *_, refusal = done.err.splitlines()
    assert cost.startswith("1,000,000 positions of ")
    assert "1,000,000 positions of a text of 40 tokens: give each at most once" in refusal
