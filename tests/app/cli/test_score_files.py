"""`elsewise score FILES --out`: many texts into one file; stopped, resumed, refused."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow as pa  # the library with which the command writes
import pyarrow.ipc as ipc  # as above
import pyarrow.parquet as pq  # as above
import pytest

from app.cli.score import files as score_files
from runtime import LanguageModel, RemoteError, load
from tests.app.cli.conftest import Elsewise
from tests.runtime.remote.servers import Refused, serving, tokenizer_folder

TEXTS = ["one <b>", 'two, "quoted"\nlines', "naïve 🌧", "שלום"]
FAKE = ("--backend", "fake")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "utf-8")
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.mark.slow
def test_parquet_has_the_models_numbers_and_the_options_that_made_them(elsewise: Elsewise, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    done = elsewise("score", str(texts), *FAKE, "--parquet", str(out), "--alternatives", "2")
    assert (done.code, done.out) == (0, "")
    table = pq.read_table(out)
    rows = table.to_pylist()
    with load("x", backend="fake") as model:
        for number, text in enumerate(TEXTS):
            own = [row for row in rows if row["text_id"] == number]
            assert "".join(row["text"] for row in own) == text
            records = model.score_sync(model.tokenize(text), 2)
            assert [row["logprob"] for row in own] == pytest.approx([r.logprob for r in records], abs=1e-5)
            assert [row["top_ids"] for row in own] == [list(r.top_ids) for r in records]
            assert {(row["file"], row["row"]) for row in own} == {(str(texts), number + 1)}
        metadata = table.schema.metadata
        assert metadata[b"model"].decode() == model.info.name
        assert metadata[b"model_fingerprint"].decode() == model.info.model_fingerprint
        assert json.loads(metadata[b"options"]) == {"alternatives": 2, "rows": "token"}
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("rows", ["token", "text"])
def test_each_format_in_and_out_has_the_same_rows(elsewise: Elsewise, texts: Path, tmp_path: Path, rows: str) -> None:
    with (tmp_path / "in.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["n", "text"], *enumerate(TEXTS)])
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "in.parquet")
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in ("jsonl", "csv", "parquet"):
        out = tmp_path / f"out.{kind}"
        assert elsewise("score", str(tmp_path / f"in.{kind}"), *FAKE, "--out", str(out), "--rows", rows).code == 0
    found["parquet"] = pq.read_table(tmp_path / "out.parquet").to_pylist()
    first, *lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    found["jsonl"] = lines
    found["csv"] = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text("utf-8"))))
    assert first["metadata"]["model"] == "fake"
    for name in ("text_id", "row", "text", "logprob"):
        expected = [row[name] for row in found["parquet"]]
        assert [row[name] for row in found["jsonl"]] == expected
        told = [row[name] for row in found["csv"]]
        assert told == ["" if v is None else v if isinstance(v, str) else pytest.approx(v) for v in expected] or [
            float(value) if value else None for value in told
        ] == pytest.approx(expected)
    if rows == "text":
        for row in found["parquet"]:
            assert row["perplexity"] == pytest.approx(math.exp(-row["logprob"] / (row["tokens"] - 1)))


def stopped_after(
    monkeypatch: pytest.MonkeyPatch, n: int, error: BaseException, before: Callable[[], object] = lambda: None
) -> None:
    """After the results of `n` texts comes an error; `before` is called first."""
    many = LanguageModel.score_many_sync

    def failing(*arguments: Any, **named: Any) -> Iterator[Any]:
        with closing(many(*arguments, **named)) as stream:
            for at, each in enumerate(stream):
                if at == n:
                    before()
                    raise error
                yield each

    monkeypatch.setattr(LanguageModel, "score_many_sync", failing)


@pytest.mark.parametrize("error", [click.Abort(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_stopped_run_is_resumed(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    elsewise("score", str(texts), *FAKE, "--out", str(whole))
    with monkeypatch.context() as faulty:
        stopped_after(faulty, 2, error)
        done = elsewise("score", str(texts), *FAKE, "--out", str(out))
    assert done.code != 0
    assert "--resume" in done.err
    assert not out.exists()
    # and the partial file lost its last bytes
    part = tmp_path / ".out.parquet.part"
    with part.open("r+b") as file:
        file.truncate(part.stat().st_size - 4)
    scored: list[object] = []
    many = LanguageModel.score_run

    async def counted(self: LanguageModel, *arguments: Any, **named: Any) -> Any:
        scored.append(arguments)
        return await many(self, *arguments, **named)

    monkeypatch.setattr(LanguageModel, "score_run", counted)
    done = elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume")
    assert done.code == 0
    assert "2 texts are done already; 2 texts scored" in done.err
    assert len(scored) == 2
    assert pq.read_table(out).to_pylist() == pq.read_table(whole).to_pylist()
    assert left_in(tmp_path) == []
    assert "complete" in elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume").err


def test_a_server_that_dies_ends_the_run_which_can_be_resumed(
    elsewise: Elsewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out, dead = tmp_path / "in.jsonl", tmp_path / "out.parquet", True
    texts.write_text("".join(f'"{text}"\n' for text in ("one", "two", "x" * 77, "four")), "utf-8")
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    with load("mock", backend="mock") as model, serving(model) as server:
        answer = server.answer

        async def dying(method: str, path: str, body: Any) -> Any:
            if dead and path == "/v1/completions" and len(body["prompt"]) == 77:
                raise Refused(500, "engine dead")
            return await answer(method, path, body)

        monkeypatch.setattr(server, "answer", dying)
        folder = tokenizer_folder(tmp_path / "tokenizer")
        words = ("score", str(texts), "--connect", server.base_url, "--tokenizer", str(folder), "--out", str(out))
        done = elsewise(*words)
        assert (done.code, out.exists(), "left out" in done.err) == (1, False, False)
        assert "engine dead" in done.err
        assert "go on with --resume" in done.err
        dead = False
        done = elsewise(*words, "--resume")
    assert done.code == 0
    assert "2 texts are done already; 2 texts scored" in done.err
    assert sorted(set(pq.read_table(out).column("text_id").to_pylist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("rows", ["token", "text"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_texts_of_one_token_have_the_types_of_others(
    elsewise: Elsewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rows: str
) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / f"out.{kind}"
    path.write_text('"a"\n"bcd"\n"e"\n', "utf-8")
    monkeypatch.setattr(score_files, "FLUSHED_TOKENS", 1)  # each in a batch of its own
    monkeypatch.setattr(score_files, "GROUPED_ROWS", 1)
    words = ("score", str(path), *FAKE, "--out", str(out), "--rows", rows)
    assert elsewise(*words).code == 0
    if kind == "parquet":
        table = pq.read_table(out)
        assert [table.schema.field(name).type for name in ("logprob", "surprisal_bits")] in (
            [pa.float32(), pa.float64()],
            [pa.float64(), pa.float64()],
        )
        if rows == "text":
            assert [value is None for value in table.column("perplexity").to_pylist()] == [True, False, True]


def test_results_are_written_every_few_seconds_and_survive_a_kill(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, part, written = tmp_path / "out.parquet", tmp_path / ".out.parquet.part", list[bytes]()
    with monkeypatch.context() as killed:
        killed.setattr(score_files, "FLUSHED_SECONDS", 0.0)
        stopped_after(killed, 2, click.Abort(), lambda: written.append(part.read_bytes()))
        elsewise("score", str(texts), *FAKE, "--out", str(out))
    part.write_bytes(written[0])  # as a kill leaves it: nothing more is written at the end
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(out.exists()))
    done = elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume")
    assert "2 texts are done already; 2 texts scored" in done.err
    assert synced == [False]  # before it has its name
    assert pq.ParquetFile(out).num_row_groups == 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), click.Abort()])
def test_a_resumed_run_does_not_change_finished_results(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    whole, out, part = tmp_path / "whole.parquet", tmp_path / "out.parquet", tmp_path / ".out.parquet.part"
    elsewise("score", str(texts), *FAKE, "--out", str(whole))
    words = ("score", str(texts), *FAKE, "--out", str(out))
    with monkeypatch.context() as faulty:
        stopped_after(faulty, 2, click.Abort())
        elsewise(*words)
    before = part.read_bytes()
    for n in (0, 1):
        with monkeypatch.context() as faulty:
            stopped_after(faulty, n, error)
            assert elsewise(*words, "--resume").code == 1
        assert part.read_bytes() == before
    assert left_in(tmp_path) == [".out.parquet.part", ".out.parquet.part2"]
    assert "3 texts are done already; 1 texts scored" in elsewise(*words, "--resume").err
    assert pq.read_table(out).to_pylist() == pq.read_table(whole).to_pylist()
    assert left_in(tmp_path) == []


def test_a_run_without_resume_removes_earlier_results(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("score", str(texts), *FAKE, "--out", str(tmp_path / "out.parquet"))
    with monkeypatch.context() as faulty:
        stopped_after(faulty, 1, click.Abort())
        elsewise(*words)
        stopped_after(faulty, 1, click.Abort())
        elsewise(*words, "--resume")
    assert "already" not in elsewise(*words).err
    assert left_in(tmp_path) == []


def test_nothing_is_written_after_a_failed_write(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_stream = ipc.new_stream

    class SecondFails:
        def __init__(self, file: Any, schema: Any) -> None:
            self._file, self._stream, self._writes = file, new_stream(file, schema), 0

        def write_table(self, table: Any) -> None:
            self._writes += 1
            if self._writes == 2:
                self._file.write(b"a half")
                raise OSError(errno.ENOSPC, "No space left on device")
            self._stream.write_table(table)

        def close(self) -> None:
            self._stream.close()

    words = ("score", str(texts), *FAKE, "--out", str(tmp_path / "out.parquet"))
    monkeypatch.setattr(score_files, "FLUSHED_TOKENS", 1)
    with monkeypatch.context() as faulty:
        faulty.setattr(ipc, "new_stream", SecondFails)
        assert "No space left on device" in elsewise(*words).err
    assert (tmp_path / ".out.parquet.part").read_bytes().endswith(b"a half")
    assert "1 texts are done already; 3 texts scored" in elsewise(*words, "--resume").err


def test_results_that_cannot_be_read_back_at_the_end_fail_the_run(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    out, part, open_stream = tmp_path / "out.parquet", tmp_path / ".out.parquet.part", ipc.open_stream

    def damaged(file: object) -> Any:
        part.write_bytes(part.read_bytes()[:-20])
        return open_stream(file)

    for fault, words in ((unreadable, "Input/output error"), (damaged, "has 3 of 4 texts")):
        with monkeypatch.context() as faulty:
            faulty.setattr(score_files, "FLUSHED_TOKENS", 1)
            faulty.setattr(ipc, "open_stream", fault)
            done = elsewise("score", str(texts), *FAKE, "--out", str(out))
        assert (done.code, out.exists(), left_in(tmp_path)) == (1, False, [".out.parquet.part"])
        assert words in done.err
    assert "3 texts are done already" in elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume").err


def test_a_stream_that_fails_to_close_loses_no_result(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = LanguageModel.score_many_sync

    class Closing:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            self._stream = many(*arguments, **named)

        def __iter__(self) -> Iterator[Any]:
            return self._stream

        def close(self) -> None:
            self._stream.close()
            raise RemoteError("the server is gone")

    words = ("score", str(texts), *FAKE, "--out", str(tmp_path / "out.parquet"))
    with monkeypatch.context() as faulty:
        faulty.setattr(LanguageModel, "score_many_sync", lambda *a, **k: Closing(*a, **k))
        done = elsewise(*words)
    assert (done.code, "the server is gone" in done.err) == (1, True)
    assert "4 texts are done already" in elsewise(*words, "--resume").err


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Sets the system's limit of file sizes: a write beyond it is truncated, and fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("kind", "at_the_end"),
    [("parquet", False), ("jsonl", True), ("csv", True)],  # a Parquet file is the smaller one
)
def test_a_full_disk_leaves_no_incomplete_file(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at_the_end: bool
) -> None:
    texts.write_text(texts.read_text("utf-8") * 5, "utf-8")
    whole, out = tmp_path / f"whole.{kind}", tmp_path / f"out.{kind}"
    elsewise("score", str(texts), *FAKE, "--out", str(whole))
    monkeypatch.setattr(score_files, "FLUSHED_TOKENS", 60)
    words = ("score", str(texts), *FAKE, "--out", str(out))
    with no_file_beyond(whole.stat().st_size - 1 if at_the_end else 20_000):
        done = elsewise(*words)
    assert (done.code, out.exists()) == (1, False)
    assert "File too large; the results so far are in" in done.err
    assert left_in(tmp_path) == [f".out.{kind}.part"]
    # then the written results are kept, and the file equals that of a run without a fault
    done = elsewise(*words, "--resume")
    assert done.code == 0
    found = int(done.err.split(" texts are done already")[0].split()[-1])
    assert found == 20 if at_the_end else 0 < found < 20
    assert out.read_bytes() == whole.read_bytes()
    assert left_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
    reason="no file system can be mounted here",
)
def test_a_full_file_system_is_reported_and_the_run_can_be_resumed(texts: Path, tmp_path: Path) -> None:
    texts.write_text(texts.read_text("utf-8") * 100, "utf-8")
    (tmp_path / "small").mkdir()
    score = f"{sys.executable} -m app score {texts} {' '.join(FAKE)} --out {tmp_path}/small/out.parquet"
    lines = (
        f"mount -t tmpfs -o size=64k none {tmp_path}/small",
        f"{score}; echo $?; ls -A {tmp_path}/small",
        f"mount -o remount,size=16m {tmp_path}/small",
        f"{score} --resume; echo $?; ls -A {tmp_path}/small",
        f"cp {tmp_path}/small/out.parquet {tmp_path}",
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["1", ".out.parquet.part", "0", "out.parquet"], done.stderr
    assert "No space left on device; the results so far are in" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(set(pq.read_table(tmp_path / "out.parquet")["text_id"].to_pylist())) == list(range(400))


def test_a_partial_file_of_other_inputs_is_not_resumed(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.parquet"
    with monkeypatch.context() as faulty:
        stopped_after(faulty, 2, click.Abort())
        elsewise("score", str(texts), *FAKE, "--out", str(out))
    words = ("score", str(texts), *FAKE, "--out", str(out), "--resume")
    for more in (("--alternatives", "7"), ("--load", "context_length=64")):
        done = elsewise(*words, *more)
        assert (done.code, "begun with another model, other options" in done.err) == (1, True)
        assert left_in(tmp_path) == [".out.parquet.part"]  # as it was
    text, was = texts.read_text("utf-8"), texts.stat()
    texts.write_text(text.replace("one", "two"), "utf-8")  # as long as before
    done = elsewise(*words)
    assert (done.code, "other files" in done.err) == (1, True)
    texts.write_text(text, "utf-8")
    os.utime(texts, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert elsewise(*words, "--load", "threads=1").code == 0  # no other numbers


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_a_file_is_complete_only_if_it_records_the_same_inputs_and_options(
    elsewise: Elsewise, texts: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / f"out.{kind}"
    words = ("score", str(texts), *FAKE, "--out", str(out), "--resume")
    elsewise(*words)
    made = out.read_bytes()
    same, other = elsewise(*words), elsewise(*words, "--alternatives", "7")
    out.write_bytes(b"of something else")
    foreign = elsewise(*words)
    if kind != "csv":  # which does not record them
        assert (same.code, "complete" in same.err) == (0, True)
    for done in (other, foreign, *([same] if kind == "csv" else ())):
        assert (done.code, "does not say that it was made of these inputs" in done.err) == (1, True)
    assert out.read_bytes() == b"of something else"
    assert elsewise(*words[:-1]).code == 0
    assert out.read_bytes()[:100] == made[:100]


def test_inputs_that_cannot_be_read_twice_are_not_resumed(elsewise: Elsewise, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    for file, named in (("-", "stdin"), (str(pipe), "pipe.jsonl")):
        done = elsewise("score", file, *FAKE, "--out", str(tmp_path / "out.parquet"), "--resume")
        assert done.code == 2
        assert f"which {named} does not allow" in done.err.replace(str(tmp_path) + "/", "")


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_an_input_is_not_overwritten(elsewise: Elsewise, texts: Path, tmp_path: Path, link: Any) -> None:
    before, out = texts.read_bytes(), texts
    if link is not None:
        out = tmp_path / "other.jsonl"
        link(out, texts)
    done = elsewise("score", str(texts), *FAKE, "--out", str(out))
    assert (done.code, "is one of the inputs" in done.err) == (2, True)
    assert texts.read_bytes() == before


def test_texts_that_cannot_be_scored_are_named_and_the_others_are_scored(elsewise: Elsewise, tmp_path: Path) -> None:
    text, empty, out = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "out.parquet"
    text.write_text("fine", "utf-8")
    empty.write_text("", "utf-8")
    done = elsewise("score", str(empty), str(text), *FAKE, "--out", str(out))
    assert f"{empty}, row 1: left out: no tokens" in done.err
    assert set(pq.read_table(out).column("text_id").to_pylist()) == {1}
    done = elsewise("score", str(empty), *FAKE, "--out", str(out))
    assert (done.code, "there is no text that can be scored" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("cut.parquet", None, "no whole Parquet file"),
        ("other.parquet", b"PAR1 nothing", "no whole Parquet file"),
        ("bad.jsonl", b'{"text": "a"}\n{', "line 2: no JSON"),
        ("bad.jsonl", b'{"txt": "a"}\n', 'there is no "text"'),
        ("bad.csv", b"a,b\n1,2\n", 'there is no "text"'),
        ("missing.jsonl", b"", "No such file"),
        ("bad.jsonl", b'"a"\n"\xff"\n', "bad.jsonl, line 2: not UTF-8"),
        ("bad.csv", b"text\na\n\xff\n", "bad.csv, line 3: not UTF-8"),
        ("bad.csv", b'text\na\n"b', "bad.csv, line 3: no CSV"),
        ("deep.jsonl", b'"a"\n' + b"[" * 100_000, "deep.jsonl, line 2: nested too deeply"),
        ("long.jsonl", b'"a"\n"' + b"b" * 200_000 + b'"', "long.jsonl, line 2: longer than 150,000 bytes"),
        ("long.csv", b"text\n" + b"b" * 200_000, "long.csv, line 2: longer than 150,000 bytes"),
        ("long.csv", b'text\n"' + b"b\n" * 100_000, "long.csv, line 75,002: no CSV (field larger"),
    ],
)
def test_unreadable_files_are_refused_with_the_reason(
    elsewise: Elsewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, why: str
) -> None:
    monkeypatch.setattr(score_files, "LONGEST_LINE", 150_000)
    path, out = tmp_path / name, tmp_path / "out.parquet"
    if content is None:
        pq.write_table(pa.table({"text": TEXTS * 100}), path)
        path.write_bytes(path.read_bytes()[:-20])
    elif content:
        path.write_bytes(content)
    done = elsewise("score", str(path), *FAKE, "--out", str(out))
    assert done.code == 1
    assert why in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["a.txt", "b.txt"], "need --out"),
        (["a.txt", "--resume"], "need --out"),
        (["a.txt", "--out", "x.xlsx"], "ends in .parquet, .jsonl or .csv"),
        (["a.txt", "--parquet", "x.csv"], "ends in .parquet"),
        (["a.txt", "--out", "x.csv", "--json"], "its name says the format"),
    ],
)
def test_missing_and_contradictory_options_are_refused(elsewise: Elsewise, given: list[str], why: str) -> None:
    done = elsewise("score", *given, *FAKE)
    assert done.code == 2
    assert why in done.err
