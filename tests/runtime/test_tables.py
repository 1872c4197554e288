"""Results as tables and as HTML, hostile texts included."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from resources import ramp
from runtime import (
    BeamOptions,
    Completion,
    GenerationOptions,
    LensRun,
    UnsupportedFeatureError,
    compare_models,
    html,
    load,
    run_sync,
)
from runtime.beams import Hypothesis
from runtime.html import DARK_COLOURS, LIGHT_COLOURS, MOST_TOKENS, ON_STRONGEST, visible
from runtime.records import NO_TOKEN, Origin, Scores, TokenRecords, TokenRun, TopLogprobs
from runtime.tables import Tabular, arrow_table
from tests.pages import PAGES
from tests.runtime.test_records import scored
from ui.theme.palette import DARK, LIGHT

HOSTILE = ('<script>alert("1")</script>', "\ud800 lone", "\u202eevil", "שלום", "&amp;'", "a\x00b\r\n", "\ud83d\ude42")
COLUMNS = ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass")  # of Scores


class Tags(HTMLParser):
    """Tag names, attributes, and the text between the tags except styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str] = []
        self.classes: list[str] = []
        self.cells: list[str] = []  # classes of a grid's cells
        self.data: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        assert not any(name.startswith("on") or name in ("src", "href") for name in found)
        self.titles += [found["title"] or ""] if "title" in found else []
        self.classes += [found["class"] or ""] if tag == "span" else []
        self.cells += [found["class"] or ""] if tag == "td" and "class" in found else []

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"] or not data.startswith(".elsewise"):
            self.data.append(data)


async def collected(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


def hostile() -> TokenRun:
    return TokenRun.unscored(range(len(HOSTILE)), [b"\xff<"] * len(HOSTILE), HOSTILE, Origin.TYPED)


@pytest.mark.slow
def test_the_table_of_a_run_has_the_numbers_of_its_records() -> None:
    run = scored()
    run = replace(
        run,
        logprob=np.array([np.nan, *run.logprob[1:]], np.float32),
        rank=np.array([0, *run.rank[1:]], np.int32),
        top_ids=np.array([[NO_TOKEN] * 3, *run.top_ids[1:]], np.int32),
    )
    table = run.to_arrow()
    assert table.to_pylist() == list(run.rows())
    for at, (row, record) in enumerate(zip(table.to_pylist(), run, strict=True)):
        assert (row["position"], row["token_id"], row["text"], row["bytes"]) == (
            at, record.token_id, record.text, record.token_bytes,
        )  # fmt: skip
        for name in ("logprob", "rank", "entropy", "covered_mass", "finish_reason"):
            assert row[name] == getattr(record, name), name
        assert row["surprisal_bits"] == pytest.approx(record.surprisal_bits)
        assert (tuple(row["top_ids"]), tuple(row["top_logprobs"])) == (record.top_ids, record.top_logprobs)
        assert row["origin"] == "sampled"
    assert table.column("logprob").null_count == table.column("rank").null_count == 1
    assert run.to_pandas()["text"].tolist() == list(run.texts)
    assert run.to_polars()["rank"].to_list() == [None, *run.rank[1:].tolist()]


def test_the_first_columns_are_those_of_the_tokens_view_of_the_sessions_file() -> None:
    page = PAGES["docs/sql.md"]
    row = next(line for line in page.splitlines() if line.startswith("| `tokens` |"))
    names = re.findall(r"`(\w+)`", row)
    shared = names[names.index("position") :]
    assert shared == scored().to_arrow().column_names[: len(shared)]
    # and related results use the same names for these numbers
    own = {
        "Scores": {"position", "logprob", "rank", "entropy", "surprisal_bits"},
        "TopLogprobs": {"token_id", "text", "logprob", "rank", "surprisal_bits"},
        "LensRun": {"position", "token_id", "text", "logprob", "rank", "entropy", "surprisal_bits"},
    }
    scores = Scores(*(getattr(scored(), name) for name in COLUMNS))
    top = TopLogprobs.of(np.array([4, 2], np.int32), np.array([-0.5, -1.5], np.float32), 9)
    for result in (scores, top, lens_of(2)):
        assert {*shared} & {*result.to_arrow().column_names} == own[type(result).__name__]


@pytest.mark.parametrize(
    "result",
    [
        scored()[:0],
        Scores(
            *(getattr(scored(), name) for name in ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass"))
        ),
        Hypothesis(scored(), -1.0, -0.5),
        TokenRecords(scored()),
        Completion(scored()),
        TopLogprobs.of(np.array([4, 2], np.int32), np.array([-0.5, -1.5], np.float32), 9, {2: -1.5, 7: -np.inf}),
    ],
    ids=lambda result: type(result).__name__,
)
def test_related_results_are_tables_too(result: Tabular) -> None:
    table = result.to_arrow()
    assert table.to_pylist() == list(result.rows())
    assert len(result.to_pandas()) == len(result.to_polars()) == table.num_rows
    assert Tags(result._repr_html_()).tags[0] == "div"  # type: ignore[attr-defined]  # all have it


def test_chosen_ids_are_listed_after_the_likeliest() -> None:
    top = TopLogprobs.of(np.array([4, 2], np.int32), np.array([-0.5, -1.5], np.float32), 9, {2: -1.5, 7: -3.0})
    assert [(row["token_id"], row["rank"], row["logprob"]) for row in top.rows()] == [
        (4, 1, -0.5),
        (2, 2, -1.5),
        (7, None, -3.0),
    ]


def test_hostile_texts_are_cleaned_in_a_table_and_escaped_in_html() -> None:
    run = hostile()
    assert run.to_arrow().column("text").to_pylist()[1] == "\ufffd lone"
    assert run.to_arrow().column("text").to_pylist()[-1] == "🙂"
    text = run._repr_html_()
    text.encode()  # no lone surrogate
    found = Tags(text)
    assert set(found.tags) == {"div", "style", "span"}
    shown = "".join(found.data)
    assert '<script>alert("1")</script>' in shown
    assert "\u202e" not in text  # an override would reverse the following text
    assert "[U+202E]evil" in shown
    assert "שלום" in shown
    assert "a[U+0000]b[U+000D]\n" in shown
    assert len(found.titles) == len(HOSTILE)
    assert not re.search(r"https?:|url\(|@import", text)
    assert repr(run).startswith("TokenRun(7 tokens: ")


def test_tokens_are_coloured_by_the_ramp_of_the_window() -> None:
    run = scored()
    text = run._repr_html_()
    assert Tags(text).classes == [f"s{ramp.step_of(bits)}" for bits in run.surprisal_bits]
    light, dark = text.split("@media (prefers-color-scheme:dark)")
    for palette, part, own in ((LIGHT, light, LIGHT_COLOURS), (DARK, dark, DARK_COLOURS)):
        assert own == (palette.text, palette.window, palette.soft)
        assert palette.on_strongest == ON_STRONGEST
        for step, colour in enumerate(palette.surprise):
            assert (f".s{step}{{background:{colour}}}" in part) == (colour is not None)
    assert ramp.step_of(float("nan")) == 0
    assert f"{run.summary}" in text


def test_the_hover_text_of_a_token_is_readable() -> None:
    words = (b" of", b" the", b"\xf0\x9f", b"")
    run = TokenRun(
        ids=np.array([1, 2], np.int32),
        token_bytes=(b" the", b"\xf0\x9f"),
        texts=(" the", ""),
        logprob=np.array([np.nan, np.log(0.125)], np.float32),
        rank=np.array([0, 2], np.int32),
        entropy=np.array([np.nan, 2 * np.log(2)], np.float32),
        top_ids=np.array([[NO_TOKEN] * 4, [0, 2, 3, NO_TOKEN]], np.int32),
        top_logprobs=np.log(np.array([[1e-30] * 4, [0.5, 0.125, 0.0625, 1e-30]], np.float32)),
        covered_mass=np.full(2, np.nan, np.float32),
        origin=np.zeros(2, np.uint8),
        finish=np.zeros(2, np.uint8),
        draw=np.full(2, np.nan, np.float32),
        vocabulary=words,
    )
    first, second = (title.splitlines() for title in Tags(run._repr_html_()).titles)
    assert first == ["' the' (id 1)", "not scored"]
    assert second == [
        "bytes F0 9F (id 2)",
        "12.50%, log-probability -2.079, 3.00 bits",
        "rank 2",
        "entropy 2.00 bits",
        "1. ' of' (id 0): 50.00%, log-probability -0.693",
        "2. bytes F0 9F (id 2): 12.50%, log-probability -2.079",
        "3. id 3: 6.25%, log-probability -2.773",
    ]
    # slices and concatenations keep the vocabulary; without it alternatives are shown by id
    for same in (run[1:], TokenRun.concat([run[:1], run[1:]])[1:], Hypothesis(run[1:], -1.0, -1.0)):
        assert Tags(same._repr_html_()).titles[0].splitlines() == second
    unknown = Tags(replace(run, vocabulary=())._repr_html_()).titles[1].splitlines()
    assert unknown[4] == "1. id 0: 50.00%, log-probability -0.693"


def test_the_results_of_a_model_show_the_texts_of_alternatives() -> None:
    options = GenerationOptions(max_tokens=3, ignore_eos=True, seed=1)
    with load("x", backend="fake") as model:
        ids = model.tokenize("abc")
        runs = [
            model.score_run_sync(ids),
            model.score_sync(ids, stride=2).run,
            model.complete_sync("abc", options).run,
            TokenRun.concat(list(model.generate_runs_sync(ids, options))),
            next(iter(model.score_many_sync([ids])))[1],
            *run_sync(collected(model.generate_runs(ids, options))),
            *(run for _, run in run_sync(collected(model.continue_many_runs(ids, 2, options)))),
            *(run for _, run in run_sync(collected(model.generate_many_runs([ids], options)))),
            *(found.run for found in run_sync(model.beam_generate(ids, BeamOptions(2, 3, ignore_eos=True)))),
            run_sync(compare_models(model, model, "abc")).left.run,
        ]
        for run in runs:
            name = html.spelled(int(run.top_ids[-1, 0]), model.decode_token(int(run.top_ids[-1, 0])))
            assert f"1. {name}: " in Tags(run._repr_html_()).titles[-1]
        top = model.top_logprobs_sync(ids, 7, chosen=[3])
        assert [row["text"] for row in top.rows()] == [model.detokenize([row["token_id"]]) for row in top.rows()]
        shown = "".join(Tags(top._repr_html_()).data)
        assert [f"{rank}. " in shown for rank in range(1, 9)] == [True] * 7 + [False]


def test_records_and_completions_are_also_a_list_and_a_string() -> None:
    with load("x", backend="fake") as model:
        ids = model.tokenize("abc")
        records, answer = model.score_sync(ids), model.complete_sync("abc", max_tokens=3, ignore_eos=True, seed=1)
    assert isinstance(records, list)
    assert records == list(records.run)
    assert type(records[1:]) is list
    assert repr(records) == f"TokenRecords({records.run.summary}: 'abc')"
    assert records.to_arrow() == records.run.to_arrow()
    assert isinstance(answer, str)
    assert (answer, answer.finish_reason) == (answer.run.text, "length")
    assert answer.to_arrow() == answer.run.to_arrow()
    assert Tags(answer._repr_html_()).tags.count("span") == len(answer.run) == 3


def test_scores_show_their_positions() -> None:
    scores = Scores(*(getattr(scored(), name) for name in COLUMNS))
    found = Tags(scores._repr_html_())
    assert found.classes == [f"s{ramp.step_of(bits)}" for bits in scores.surprisal_bits]
    assert found.titles[1].splitlines()[:2] == ["token 1", *Tags(scored()._repr_html_()).titles[1].splitlines()[1:2]]
    assert repr(scores) == f"Scores({scored().summary})"


def test_a_long_run_shows_its_beginning() -> None:
    n = MOST_TOKENS + 5
    run = TokenRun.unscored([1] * n, [b"x"] * n, ["x"] * n, Origin.TYPED)
    assert Tags(run._repr_html_()).tags.count("span") == MOST_TOKENS
    assert "and 5 more tokens" in run._repr_html_()


def lens_of(n: int, vocabulary: tuple[bytes, ...] = ()) -> LensRun:
    """Two layers: the next token, id 1, has ranks 3, 2 and 1; the last position has no next token."""
    ids = np.full((n, 1), 1, np.int32)
    ids[-1] = NO_TOKEN
    ranks = np.tile(np.array([[[3], [2], [1]]], np.int32), (n, 1, 1))
    ranks[-1] = 0
    return LensRun(
        positions=np.arange(n, dtype=np.int32),
        token_ids=ids,
        logprobs=np.full((n, 3, 1), -1.0, np.float32),
        ranks=ranks,
        top_ids=np.tile(np.array([[[2, 0], [2, 1], [1, NO_TOKEN]]], np.int32), (n, 1, 1)),
        top_logprobs=np.tile(np.log(np.array([[[0.5, 0.25], [0.5, 0.25], [1.0, 0.0]]], np.float32) + 1e-30), (n, 1, 1)),
        entropy=np.ones((n, 3), np.float32),
        vocabulary=vocabulary,
    )


def test_a_lens_is_shown_as_a_grid_of_layers_and_positions() -> None:
    run = lens_of(2, (b"a", b"<b>", "\u202ec".encode()))
    found = Tags(run._repr_html_())
    assert set(found.tags) == {"div", "style", "table", "tr", "th", "td"}
    assert found.tags.count("td") == 3 * 2
    shown = "".join(found.data)
    assert "0 <b>" in shown  # the header: a position and its next token
    assert "[U+202E]c" in shown
    assert [(row["text"], row["token_id"]) for row in run.rows()] == [("<b>", 1)] * 3 + [(None, None)] * 3
    # the cell of the last layer is the next token, certain and marked; the last position has no next token
    assert found.cells == ["s1", "s1", "s1", "s1", "s0 marked", "s0"]
    assert "layer 1 after token 0, entropy 1.44 bits" in found.titles[2]
    assert found.titles[2].splitlines()[1:] == [
        "1. '\\u202ec' (id 2): 50.00%, log-probability -0.693",
        "2. '<b>' (id 1): 25.00%, log-probability -1.386",
        "'<b>' (id 1), which follows:",
        "36.79%, log-probability -1.000, rank 2",
    ]
    assert "which follows" not in found.titles[3]
    assert "id -1" not in "".join((*found.titles, shown))
    assert repr(run) == "LensRun(2 positions, 2 layers, 1 of 1 tokens lead at the end)"
    assert repr(run[:1]) == "LensRun(1 position, 2 layers, '<b>' leads from layer 2)"
    # without a vocabulary tokens are shown by id, and only the first of many positions
    many = Tags(lens_of(MOST_TOKENS)._repr_html_())
    assert "id 2" in "".join(many.data)
    assert len(many.cells) <= MOST_TOKENS
    assert f"and {MOST_TOKENS - len(many.cells) // 3:,} more positions" in "".join(many.data)


def test_places_without_a_token_are_null_in_every_table() -> None:
    numbers = {"logprob": -1.0, "rank": 1, "entropy": 1.0, "covered_mass": 1.0}
    columns = {name: np.full(2, value, np.float32) for name, value in numbers.items()}
    logprobs = np.array([[-0.1, -np.inf], [-0.7, -0.9]], np.float32)
    top = {"top_ids": np.array([[3, NO_TOKEN], [4, 5]], np.int32), "top_logprobs": logprobs}
    scores = Scores(**columns, **top)  # type: ignore[arg-type]  # columns by name
    for result in (scores, lens_of(1)):
        table = result.to_arrow()
        assert table.to_pylist() == list(result.rows())
        assert all(token >= 0 for row in result.rows() for token in row["top_ids"])
    assert [row["top_ids"] for row in scores.rows()] == [[3], [4, 5]]
    assert [len(row["top_logprobs"]) for row in scores.rows()] == [1, 2]
    assert [(row["token_id"], row["position"]) for row in lens_of(1).rows()] == [(None, None)] * 3


def test_a_missing_library_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, convert in (("pyarrow", "to_arrow"), ("pandas", "to_pandas"), ("polars", "to_polars")):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, module, None)
            with pytest.raises(UnsupportedFeatureError, match=rf"{convert} needs {module}.*pip install {module}"):
                getattr(scored(), convert)()


def test_table_libraries_are_imported_only_when_needed() -> None:
    code = "import sys, runtime.records, runtime.api.comparison; print({'pyarrow', 'pandas', 'polars'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_arrow_tables_accept_masked_columns_and_metadata() -> None:
    table = arrow_table({"a": [None, "x"], "b": np.ma.masked_equal([[1, 0], [2, 3]], 0)}, {"model": "m", "options": {"k": 1}})
    assert table.to_pylist() == [{"a": None, "b": [1]}, {"a": "x", "b": [2, 3]}]
    assert table.schema.metadata == {b"model": b"m", b"options": b'{"k": 1}'}


def test_comparisons_models_and_sessions_have_tables_or_html() -> None:
    with load("x", backend="fake") as model:
        found = run_sync(compare_models(model, model, "a <b> c", kl_start=0))
        table = found.to_arrow()
        assert table.to_pylist() == list(found.rows())
        assert table.column_names[-1] == "kl"
        assert b"".join(table.column("bytes").to_pylist()) == b"a <b> c"
        assert "&lt;" in found._repr_html_()
        assert model.info.name in repr(model)
        assert visible(model.info.name) in model._repr_html_()
        with model.open_session() as session:
            session.ensure_prefix_sync("tell <me>")
            fork = session.fork()
            with fork:
                list(fork.decode_sync(GenerationOptions(max_tokens=3, ignore_eos=True)))
                outline = str(session).splitlines()
                assert outline[0] == repr(session)
                assert re.fullmatch(r"  0-\d+  prefix  'tell <me>'", outline[1])
                assert outline[2] == f"  fork after {len(session)}: {len(fork)} tokens"
                assert outline[3].startswith(f"    {len(session)}-{len(fork)}  generated")
                assert "tell &lt;me&gt;" in session._repr_html_()
            assert repr(fork).endswith(", closed)")
