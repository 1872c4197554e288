"""Texts that commands read and write: the same bytes give the same tokens and refusals from every source."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import ContextOverflowError, GenerationOptions, compare_models, load
from tests.app.cli.conftest import Elsewise, stdin_of

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 120
TEXTS = {
    "carriage returns": b"one\r\ntwo\rthree\n",
    "mark": b"\xef\xbb\xbfone",
    "mark inside": b"one\xef\xbb\xbf",
    "Latin-1": "caf\xe9 noir".encode("latin-1"),
    "Latin-1 behind a mark": b"\xef\xbb\xbfcaf\xe9",
    "cut": "é".encode()[:1],
    "NUL": b"a\x00b\x1a",
    "empty": b"",
}


def process(*arguments: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own; `shell` is appended to it."""
    line = " ".join([sys.executable, "-m", "app", *arguments, shell])
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("command", [("score", "--json"), ("embed",)], ids=["score", "embed"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_file_and_stdin_are_read_alike(
    elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...], text: bytes
) -> None:
    (tmp_path / "text").write_bytes(text)
    name, *more = command
    from_file = elsewise(name, str(tmp_path / "text"), "--backend", "fake", *more)
    monkeypatch.setattr(sys, "stdin", stdin_of(text))
    from_stdin = elsewise(name, "-", "--backend", "fake", *more)
    said = from_stdin.err.replace("stdin", str(tmp_path / "text")).replace("-:", f"{tmp_path / 'text'}:")
    assert (from_stdin.code, from_stdin.out, said) == (from_file.code, from_file.out, from_file.err)


def test_a_shells_process_substitution_is_read(elsewise: Elsewise, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXTS["carriage returns"])
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb") as stream:
        stream.write(TEXTS["carriage returns"])
        stream.close()
        substituted = elsewise("score", f"/dev/fd/{reading}", "--backend", "fake", "--json")
    assert substituted.out == elsewise("score", str(tmp_path / "text"), "--backend", "fake", "--json").out
    assert substituted.code == 0


def test_tokens_have_the_bytes_of_the_file(elsewise: Elsewise, tmp_path: Path) -> None:
    for written, scored in (
        (b"a\r\nb\rc", b"a\r\nb\rc"),
        (b"\xef\xbb\xbfa", b"a"),  # the mark is not text, as in the window's pinned files
    ):
        (tmp_path / "text").write_bytes(written)
        done = elsewise("score", str(tmp_path / "text"), "--backend", "fake", "--json")
        assert bytes.fromhex("".join(json.loads(line)["bytes"] for line in done.out.splitlines())) == scored
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfcaf\xe9")
    done = elsewise("score", str(tmp_path / "text"), "--backend", "fake")
    assert (done.code, "not UTF-8 at byte 6" in done.err) == (1, True)


def test_a_batch_may_begin_with_a_byte_order_mark(elsewise: Elsewise, file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 2}\r\n')
    done = elsewise("ask", "--batch", str(file), "--backend", "fake")
    assert (done.code, json.loads(done.out)["tokens"]) == (0, 2)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="closes a stream by a shell")
def test_a_closed_stdin_is_reported_in_one_line(tmp_path: Path) -> None:
    done = process("--data-dir", str(tmp_path), "score -", "--backend", "fake", shell="<&-")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, b"", 1)
    assert b"stdin is closed; name a file" in done.stderr


@pytest.mark.parametrize("command", [("embed", "-"), ("ask", "--batch", "-")])
def test_a_closed_stdin_is_reported_by_the_other_commands(
    elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # its value in Python then
    done = elsewise(*command, "--backend", "fake")
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "stdin is closed; name a file" in done.err


@pytest.mark.parametrize(
    "command", [("chat", "--backend", "fake"), ("models", "login"), ("models", "connect", "far", "http://127.0.0.1:9", "--key")]
)
def test_a_closed_stdin_is_reported_by_interactive_commands(
    elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    done = elsewise(*command)
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "stdin is closed; " in done.err


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="closes a stream by a shell")
def test_a_closed_stdout_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one")
    done = process("score", str(tmp_path / "text"), "--backend", "fake", shell=">&-")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="reads a device")
def test_a_text_without_an_end_is_refused(tmp_path: Path) -> None:  # see test_special_files for devices by their names
    done = process("--data-dir", str(tmp_path), "score -", "--backend", "fake", shell="</dev/zero")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, b"", 1)
    assert b"more than 268,435,456 bytes; split it into" in done.stderr


@pytest.mark.slow
def test_characters_outside_the_encoding_of_stdout_are_escaped_as_in_json(tmp_path: Path) -> None:
    (tmp_path / "words.jsonl").write_text('{"text": "é \U0001f600"}\n', "utf-8")
    (tmp_path / "halves.jsonl").write_text('{"text": "a\\ud800b"}\n')
    for encoding in ("ascii", "latin-1", "utf-16"):
        words = process("embed", str(tmp_path / "words.jsonl"), "--backend", "fake", PYTHONIOENCODING=encoding)
        written = words.stdout.decode("utf-8" if encoding == "ascii" else encoding)
        assert (words.returncode, json.loads(written)["text"]) == (0, "é \U0001f600"), encoding
    assert process("score", str(tmp_path / "words.jsonl"), "--backend", "fake", PYTHONIOENCODING="ascii").returncode == 0
    for encoding in ("ascii", "utf-8"):
        embedded = process("embed", str(tmp_path / "halves.jsonl"), "--backend", "fake", PYTHONIOENCODING=encoding)
        assert (embedded.returncode, json.loads(embedded.stdout)["text"]) == (0, "a\ud800b")


def test_vectors_of_text_with_surrogates_are_written_to_a_file(elsewise: Elsewise, tmp_path: Path) -> None:
    (tmp_path / "halves.jsonl").write_text('{"text": "a\\ud800b"}\n')
    out = tmp_path / "vectors.jsonl"
    assert elsewise("embed", str(tmp_path / "halves.jsonl"), "--backend", "fake", "--out", str(out)).code == 0
    assert json.loads(out.read_text("utf-8"))["text"] == "a\ud800b"


@pytest.mark.slow
def test_sessions_are_listed_on_an_ascii_terminal(elsewise: Elsewise, data: Path) -> None:
    assert elsewise("ask", "héllo", "--session", "Ünïcode", "--backend", "fake", "--max-tokens", "2").code == 0
    for command in ("sessions list", "sessions show 1"):
        done = process("--data-dir", str(data), command, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert done.returncode == 0, done.stderr
        assert "Ünïcode" in done.stdout.decode()


def test_an_empty_data_folder_is_not_the_working_directory(elsewise: Elsewise, tmp_path: Path) -> None:
    done = elsewise("--data-dir", "", "ask", "hi", "--session", "A", "--backend", "fake")
    assert (done.code, done.out) == (2, "")
    assert "the path is empty; name a folder, or leave the option out" in done.err


SHARED = """
import resource, sys
from runtime import Grammar, GrammarError
schema = {"type": "string"}
for _ in range(25):
    schema = {"type": "object", "properties": {"a": schema, "b": schema}}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Grammar.json_schema(schema)
except GrammarError as fault:
    print(fault)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_schema_is_refused_by_its_size_before_it_is_expanded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    said, grown = done.stdout.splitlines()
    assert "characters written out; at most 131,072 are read" in said
    assert int(grown) < 64_000  # KiB; expanded it takes 2 GB


def test_a_text_is_refused_by_its_size_before_it_is_tokenised(elsewise: Elsewise, tmp_path: Path) -> None:
    long = "so it goes. " * 400_000
    (tmp_path / "long").write_text(long)
    (tmp_path / "batch").write_text(json.dumps({"prompt": long}))
    for command in (("score",), ("score", "--against-backend", "mock"), ("embed",), ("ask", "--raw", "--batch")):
        name = "batch" if "--batch" in command else "long"
        done = elsewise(command[0], *command[1:], str(tmp_path / name), "--backend", "fake")
        assert (done.code != 0, done.out) == (True, ""), command
        assert "at least 369,231 tokens do not fit into the context of 131,072" in done.err, command


def test_a_text_scored_in_windows_has_a_size_limit_too(elsewise: Elsewise, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(bytes((16 << 20) + 1))
    done = elsewise("score", "--stride", "64", str(tmp_path / "long"), "--backend", "fake")
    assert (done.code, done.out) == (1, "")
    assert "16,777,217 characters; at most 16,777,216 are scored in windows: split the text" in done.err
    without = elsewise("score", str(tmp_path / "long"), "--backend", "fake")
    assert (without.code, "do not fit into the context" in without.err, "--stride" in without.err) == (1, True, False)


def test_no_function_of_a_model_tokenises_a_text_that_cannot_fit() -> None:
    long = "so it goes. " * 400_000
    with load("x", backend="fake") as model, load("x", backend="fake") as other:

        async def each() -> None:
            with pytest.raises(ContextOverflowError, match="at least"):
                await model.complete(long)
            with pytest.raises(ContextOverflowError, match="at least"):
                await model.complete([{"role": "user", "content": long}])
            with pytest.raises(ContextOverflowError, match="at least"):
                await compare_models(model, other, long)
            with pytest.raises(ContextOverflowError, match=r"texts\[1\]: at least"):
                await model.embed(["short", long])
            with pytest.raises(ContextOverflowError, match="prompt 1: at least"):
                async for _ in model.generate_many([[1], long], GenerationOptions(max_tokens=1)):
                    pass

        asyncio.run(each())


LATIN_1 = os.fsdecode(b"caf\xe9")  # as Python has it in `sys.argv`; test_process gives it to a process


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", LATIN_1),
        ("ask", "hi", "--system", LATIN_1),
        ("ask", "hi", "--session", LATIN_1),
        ("ask", "hi", "--stop", LATIN_1),
        ("ask", "hi", "--regex", LATIN_1),
        ("ask", "hi", "--schema", f'{{"title": "{LATIN_1}"}}'),
        ("ask", "hi", "--lark", f'start: "{LATIN_1}"'),
        ("ask", "hi", "--option", f'logit_bias={{"{LATIN_1}": 1}}'),
        ("sessions", "search", LATIN_1),
    ],
    ids=lambda arguments: "-".join(arguments[:-1]),
)
def test_arguments_that_are_not_utf_8_are_refused(elsewise: Elsewise, arguments: tuple[str, ...]) -> None:
    done = elsewise("--backend", "fake", "--model", "x", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "it is not UTF-8" in done.err


@pytest.mark.slow
def test_texts_of_the_command_line_are_utf_8_where_the_locale_is_ascii(elsewise: Elsewise, tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    ours = ("--data-dir", str(tmp_path), "--backend", "fake", "--model", "x")
    assert process(*ours, "ask", "Zürich", "--session", "Größe", "--max-tokens", "1", **ascii_only).returncode == 0
    shown = elsewise("--data-dir", str(tmp_path), "sessions", "show", "1").out
    assert "# Größe" in shown
    assert "user: Zürich" in shown


@pytest.mark.slow
def test_a_piped_message_that_is_not_utf_8_is_not_sent(elsewise: Elsewise, tmp_path: Path) -> None:
    ours = ("--data-dir", str(tmp_path), "chat", "--backend", "fake", "--model", "x", "--max-tokens", "1", "--session", "s")
    done = process(*ours, shell=r"< <(printf 'caf\xe9\nhello\n')")
    assert done.returncode == 1
    assert b"that message was not sent: it is not UTF-8" in done.stderr
    shown = elsewise("--data-dir", str(tmp_path), "sessions", "show", "1").out
    assert shown.count("user:") == 1
    assert "user: hello" in shown
