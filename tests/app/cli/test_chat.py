"""`elsewise chat`: a conversation in a pipe and in a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import runtime
from app.cli.printing import Wrapper
from app.workbench.prompt.vocabulary import SETTING
from runtime import LanguageModel, ModelShelf
from storage import DataFolderLock, NewNode, SessionStore, vocabulary_digest
from tests.app.cli.conftest import Done, Elsewise
from tests.app.workbench.scene import rows
from tests.tiny_models import tiny_path

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 60
FAKE = ("--backend", "fake", "--max-tokens", "6", "--seed", "1")
Talk = Callable[..., Done]


@pytest.fixture
def talk(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Says some lines to `elsewise chat`, each a message or a command."""

    def run(*lines: str, options: tuple[str, ...] = FAKE) -> Done:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return elsewise("chat", *options)

    return run


def said(elsewise: Elsewise, session: str) -> list[str]:
    """The person's turns of a session, as they are saved."""
    return re.findall(r"^user: (.*)$", elsewise("sessions", "show", session).out, re.MULTILINE)


def test_a_conversation_is_saved_under_its_first_words_and_gone_on_with_by_name(talk: Talk, elsewise: Elsewise) -> None:
    first = talk("where to?", "and then?")
    assert first.code == 0
    assert "saved as 'where to?': elsewise chat --session 'where to?'" in first.err
    assert first.err.count("6 tokens, reached the length limit (/continue goes on), ") == 2
    assert "tok/s" in first.err
    second = talk("and home?", options=(*FAKE, "--session", "where to?"))
    assert "continuing 'where to?', 4 turns" in second.err
    assert said(elsewise, "1") == ["where to?", "and then?", "and home?"]
    shown = elsewise("sessions", "show", "1").out
    for answer in (*first.out.splitlines(), *second.out.splitlines()):
        assert answer.strip("\x1a\x1e\x1f\ufffd \t") in shown
    # and `ask` goes on with it too, as it does with its own
    assert elsewise("ask", "fine", "--session", "where to?", *FAKE).code == 0
    assert said(elsewise, "1")[-1] == "fine"


def test_the_answers_are_those_of_ask_in_a_session(talk: Talk, elsewise: Elsewise) -> None:
    chat = talk("one", "two", options=(*FAKE, "--session", "A"))
    asked = [elsewise("ask", text, "--session", "B", *FAKE).out for text in ("one", "two")]
    assert chat.out == "".join(asked)


def test_a_message_may_have_several_lines(talk: Talk, elsewise: Elsewise, data: Path) -> None:
    talk("one \\", "two", '"""three', "", 'four"""', " /five")
    texts = [text for (text,) in rows(data / "sessions.db", "SELECT text FROM nodes WHERE role = 'user' ORDER BY id")]
    assert texts == ["one \ntwo", "three\n\nfour", " /five"]


def test_why_numbers_the_tokens_that_branch_leaves_the_answer_at(talk: Talk) -> None:
    done = talk("hello", "/why", "/why 3", "/branch at 3 2", "/why 1-3", "/branch", "/branch 2", "/why 3")
    assert done.code == 0
    tokens = [re.split(r" {2,}", line) for line in done.out.splitlines() if re.match(r"^\d+ +\S+ +[01]\.\d{3} +-", line)]
    before, alone, after, back = tokens[:6], tokens[6], tokens[7:10], tokens[10]
    assert [row[0] for row in before] == ["1", "2", "3", "4", "5", "6"]
    assert alone[:3] == before[2][:3]
    assert [row[:3] for row in after[:2]] == [row[:3] for row in before[:2]]
    assert after[2][1] != before[2][1]  # the second likeliest
    assert after[2][4] == "2"
    assert back[:3] == before[2][:3]  # the first branch again
    assert re.search(r"^1 +hello", done.out, re.MULTILINE)
    assert re.search(r"^3 +\* +", done.out, re.MULTILINE)


def test_a_message_can_be_said_in_other_words(talk: Talk, data: Path) -> None:
    done = talk("one", "two", "/branch turn", "/branch turn 1 uno", "/branch turn", "/branch")
    assert done.code == 0
    assert re.search(r"^1  one\n2  two\n", done.out, re.MULTILINE)
    assert re.search(r"^1  uno\n(?!2  )", done.out, re.MULTILINE)
    assert rows(data / "sessions.db", "SELECT count(*) FROM nodes WHERE role = 'user' AND parent_id = 1") == [(2,)]


def test_an_answer_is_made_again_and_gone_on_with(talk: Talk, data: Path) -> None:
    done = talk("/set temperature 0", "one", "/regenerate", "/continue", "/branch")
    assert done.code == 0
    assert len(re.findall("reached the length limit", done.err)) == 3
    assert rows(data / "sessions.db", "SELECT count(*) FROM nodes WHERE role = 'assistant'") == [(3,)]


def test_what_is_set_holds_from_the_next_answer_on_before_the_command_line(talk: Talk, data: Path) -> None:
    done = talk("one", "/set max_tokens 3", "/set temperature 0.25", "two", "/set")
    assert "6 tokens, reached" in done.err
    assert "3 tokens, reached" in done.err
    assert re.search(r"^max_tokens +3 +session", done.out, re.MULTILINE)
    assert re.search(r"^temperature +0\.25 +session", done.out, re.MULTILINE)


def test_a_system_prompt_begins_anew(talk: Talk, data: Path) -> None:
    own = (*FAKE, "--session", "A", "--system", "Be kind.")
    done = talk("/system", "one", "/system Be brief.", "/system", "two", options=own)
    assert done.out.splitlines()[0] == "Be kind."
    assert "Be brief.\n" in done.out
    assert "a new branch starts with this system prompt; the one before is kept (/branch)" in done.err
    roots = rows(data / "sessions.db", "SELECT text FROM nodes WHERE role = 'system' ORDER BY id")
    assert [text for (text,) in roots] == ["Be kind.", "Be brief."]
    refused = talk("three", options=(*FAKE, "--session", "A", "--system", "Be loud."))
    assert (refused.code, refused.out) == (2, "")
    assert "has another system prompt" in refused.err


def test_what_is_set_holds_before_other_libraries_names_too(talk: Talk) -> None:
    named = ("--option", "max_new_tokens=6", "--option", "do_sample=false", "--option", 'order=["top_k", "temperature"]')
    options = ("--backend", "fake", "--seed", "1", *named)
    done = talk("one", "/set max_tokens 3", "/set temperature 0.25", "two", "/set", options=options)
    assert "6 tokens, reached" in done.err
    assert "3 tokens, reached" in done.err
    assert re.search(r"^max_tokens +3 +session", done.out, re.MULTILINE)
    assert re.search(r"^temperature +0\.25 +session", done.out, re.MULTILINE)
    assert re.search(r"^order .* call", done.out, re.MULTILINE)


def test_a_new_session_has_the_system_prompt_of_the_command_line(talk: Talk) -> None:
    done = talk("one", "/new", "/system", options=(*FAKE, "--system", "Be kind."))
    assert done.out.splitlines()[-1] == "Be kind."


def test_a_system_prompt_that_was_there_goes_on_with_what_was_said_under_it(talk: Talk) -> None:
    done = talk("one", "/system Be brief.", "two", "/system none")
    assert done.err.count("a new branch starts with this system prompt") == 1
    assert "on the branch that has this system prompt (/branch lists all)" in done.err


def test_why_shows_the_tokens_of_the_model_that_runs(talk: Talk, data: Path) -> None:
    options = (*FAKE, "--session", "A")
    first = talk("hello", "/why", "/why 2", options=options)
    # given that another model was used last
    others = [b"?"] * 300
    store = SessionStore.open(data / "sessions.db")
    asyncio.run(store.save_vocabulary(vocabulary_digest(others), others))
    asyncio.run(store.set_setting(SETTING, vocabulary_digest(others)))
    store.close_sync()
    again = talk("/why", "/why 2", options=options)
    assert again.out
    assert first.out.endswith(again.out)


def test_tokens_named_by_what_they_say_are_those_of_the_model_that_runs(talk: Talk, tmp_path: Path) -> None:
    # given another model, with two tokens the other way round
    other = altered("llama", tmp_path / "other")
    file = Path(other) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["e"], vocab["f"] = vocab["f"], vocab["e"]
    file.write_text(json.dumps(tokenizer))
    done = talk("/set", f"/model {other}", "/set", options=(*TINY, "--option", 'banned_tokens=["e"]'))
    shown = re.findall(r"^banned_tokens +(\[.*?\]) +call", done.out, re.MULTILINE)
    assert [json.loads(each) for each in shown] == [[vocab["f"]], [vocab["e"]]]


def test_what_was_said_does_nothing_in_a_terminal(
    talk: Talk, elsewise: Elsewise, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a session with answers beside each other that would set the title of a terminal
    async def hostile(store: SessionStore) -> None:
        session = await store.create_session("A")
        for text in ("q\x1b]0;x\x07r", "s"):
            user = await store.add_node(NewNode(session, None, "user", text=text))
            answer = await store.add_node(NewNode(session, user, "assistant", text="a\x1b]0;x\x07b"))
            await store.set_current(session, answer)

    store = SessionStore.open(data / "sessions.db")
    asyncio.run(hostile(store))
    store.close_sync()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = talk("/branch", "/branch 1", "/branch turn", options=(*FAKE, "--session", "A"))
    listed = elsewise("sessions", "diff", "A").out + elsewise("sessions", "diff", "A", "1", "2").out
    assert "a]0;xb" in done.out
    assert "a]0;xb" in done.err
    assert "1  q]0;xr" in done.out
    assert "\x1b]" not in done.out + done.err + listed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nonsense", "there is no command /nonsense; /help lists the commands"),
        ("/why", "there is no answer yet"),
        ("/branch", "nothing was said yet"),
        ("/branch 7", "is no branch"),
        ("/set", ""),
        ("/set temperature", "needs a value"),
        ("/set temperature warm", "temperature"),
        ("/set heat 1", "there is no option 'heat'"),
        pytest.param("/set temperature " + "[" * 100_000, "temperature", id="deep JSON"),
        pytest.param("/branch " + "9" * 5_000, "is no branch", id="a long number"),
    ],
)
def test_what_a_command_cannot_do_is_said_and_the_conversation_goes_on(talk: Talk, line: str, words: str) -> None:
    done = talk(line, "hello")
    assert words in done.err
    assert done.code == (1 if words else 0)
    assert "6 tokens" in done.err


def test_commands_about_tokens_name_the_range(talk: Talk) -> None:
    done = talk(
        "hello", "/why 7", "/why 0-2", "/branch at 9", "/branch at 2 Paris", "/branch turn 4 x", "/branch turn 1", "/help"
    )
    assert done.err.count("give a number from 1 to 6") == 3
    assert "token 2 has no such alternative; /why 2 lists them" in done.err
    assert "give a number from 1 to 1" in done.err
    assert "/branch turn 1 TEXT" in done.err
    assert "/regenerate" in done.out


@pytest.mark.slow
def test_another_model_goes_on_with_the_conversation(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    # given two models with tokenizers of their own, and one that is not there
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    for name in ("llama", "qwen3"):
        ModelShelf().add(tiny_path(name), name)
    options = ("--model", "llama", "--backend", "hf", "--format", "plain", "--max-tokens", "4", "--seed", "1")
    done = talk("one", "/model", "/model nowhere", "two", "/model qwen3", "three", options=options)
    assert re.search(r"^\* +llama", done.out, re.MULTILINE)
    assert "no model is called 'nowhere' here" in done.err
    assert re.search(r"^qwen3 \(hf", done.err, re.MULTILINE)
    assert done.err.count("4 tokens, ") + done.err.count("tokens, eos") >= 3
    users = rows(data / "sessions.db", "SELECT DISTINCT text FROM nodes WHERE role = 'user' ORDER BY text")
    assert [text for (text,) in users] == ["one", "three", "two"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are loaded, in their order."""
    sources: list[str] = []

    def load(source: str, *args: Any, **options: Any) -> LanguageModel:
        sources.append(source)
        return runtime.load(source, *args, **options)

    monkeypatch.setattr("app.cli.options.load", load)
    return sources


def altered(name: str, folder: Path, **config: Any) -> str:
    """A copy of a tiny model with another configuration."""
    shutil.copytree(tiny_path(name), folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return str(folder)


TINY = ("--model", str(tiny_path("llama")), "--backend", "hf", "--max-tokens", "4", "--seed", "1")


def test_the_model_stays_where_the_next_one_cannot_be_loaded(talk: Talk, tmp_path: Path, loaded: list[str]) -> None:
    # given one that is not there, one whose weights are cut, and one that knows no roles
    cut = altered("qwen3", tmp_path / "cut")
    weights = next(Path(cut).glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    base = altered("llama", tmp_path / "base")
    for file in (Path(base) / "chat_template.jinja", Path(base) / "tokenizer_config.json"):
        if file.exists() and file.suffix == ".json":
            settings = json.loads(file.read_text())
            settings.pop("chat_template", None)
            file.write_text(json.dumps(settings))
        else:
            file.unlink(missing_ok=True)
    done = talk("one", "/model nowhere", f"/model {cut}", f"/model {base}", "two", options=TINY)
    assert "no model is called 'nowhere' here" in done.err
    assert "cut" in done.err
    assert f"{base} has no chat template" in done.err.replace("\n", "")
    assert loaded == [str(tiny_path("llama"))], "it is not even loaded anew"
    assert "back to" not in done.err
    assert done.err.count("4 tokens, ") == 2


@pytest.mark.slow
def test_the_model_is_back_after_a_load_that_failed(talk: Talk, tmp_path: Path, loaded: list[str]) -> None:
    wrong = altered("llama", tmp_path / "wrong", intermediate_size=24)  # which only the weights contradict
    done = talk("one", f"/model {wrong}", "two", options=TINY)
    assert loaded == [str(tiny_path("llama")), wrong, str(tiny_path("llama"))]
    assert "back to" in done.err
    assert done.err.count("4 tokens, ") == 2


def test_a_folder_in_use_and_options_of_ask_are_refused(talk: Talk, data: Path) -> None:
    lock = DataFolderLock(data, "window")
    assert lock.acquire()
    done = talk("hello")
    lock.release()
    assert (done.code, done.out) == (1, "")
    assert "is in use by window" in done.err
    for option in (("--raw",), ("--batch", "x"), ("--json",)):
        assert talk("hello", options=(*FAKE, *option)).code == 2
    assert "--format none has no roles" in talk("hello", options=(*FAKE, "--format", "none")).err


def test_leaving_without_a_word_leaves_no_session(talk: Talk, elsewise: Elsewise) -> None:
    assert talk("/help", "/quit", "never said").code == 0
    assert len(elsewise("sessions", "list").out.splitlines()) <= 1


# ---- in a terminal --------------------------------------------------------------------------------------------------


class Terminal:
    """A process in a terminal of 60 columns."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self._fd = fd
        self.process = process
        self.screen = ""  # all that was ever written there
        self._seen = 0

    def keys(self, typed: str) -> None:
        """Types."""
        os.write(self._fd, typed.encode())

    def until(self, pattern: str) -> str:
        """Waits for some text behind what was waited for before; what came up to its end."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.compile(pattern, re.DOTALL).search(self.screen, self._seen)) is None:
            ready, _, _ = select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))
            assert ready, self.screen[self._seen :]
            try:
                self.screen += os.read(self._fd, 65536).decode(errors="replace")
            except OSError:  # the process has left
                raise AssertionError(self.screen[self._seen :]) from None
        new = self.screen[self._seen : found.end()]
        self._seen = found.end()
        return new


@contextmanager
def in_a_terminal(*arguments: str) -> Iterator[Terminal]:
    above, below = pty.openpty()
    fcntl.ioctl(below, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
    environment = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm-256color", "COLUMNS": "", "NO_COLOR": ""}
    environment = {name: value for name, value in environment.items() if value}

    def control() -> None:
        os.setsid()
        fcntl.ioctl(below, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=below,
        stdout=below,
        stderr=below,
        preexec_fn=control,  # no threads here that it could meet
    )
    os.close(below)
    try:
        yield Terminal(above, process)
    finally:
        process.kill()
        process.wait()
        os.close(above)


def test_a_conversation_in_a_terminal(tmp_path: Path, elsewise: Elsewise) -> None:
    # given a terminal of 60 columns
    data = str(tmp_path / "data")
    with in_a_terminal("--data-dir", data, "chat", *FAKE, "--session", "T") as terminal:
        terminal.until("/help lists")
        terminal.until("> ")
        # when a message of two lines is typed, and the last one fetched back and sent again
        terminal.keys("first\x1b\rsecond\r")
        terminal.until("6 tokens, reached")
        terminal.until("> ")
        terminal.keys("\x1b[A\x1b[A")
        terminal.until("second")
        terminal.keys("\x1b[A!\r")
        terminal.until("6 tokens, reached")
        terminal.until("> ")
        # and a line is given up, and the conversation left
        terminal.keys("never\x03")
        terminal.until("Ctrl-D or /quit ends the chat")
        terminal.until("> ")
        terminal.keys("\x04")
        terminal.until("saved as 'T'")
        assert terminal.process.wait(PATIENCE_SECONDS) == 0
    texts = [
        text for (text,) in rows(tmp_path / "data" / "sessions.db", "SELECT text FROM nodes WHERE role = 'user' ORDER BY id")
    ]
    assert texts[0] == "first\nsecond"
    assert texts[1].replace("!", "") == texts[0]
    assert stat.S_IMODE((tmp_path / "data" / "chat_history").stat().st_mode) == 0o600


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_which_is_kept(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    endless = ("--max-tokens", "100000", "--seed", "1", "--option", "ignore_eos=true")
    with in_a_terminal("--data-dir", data, "chat", "--backend", "fake", *endless) as terminal:
        terminal.until("> ")
        terminal.keys("go\r")
        terminal.until("go.*?\n.{40}")
        terminal.keys("\x03")
        terminal.until(r"tokens, stopped \(/continue")
        terminal.until("> ")
        terminal.keys("/set max_tokens 5\r")
        terminal.until("from the next answer on")
        terminal.until("> ")
        terminal.keys("/continue\r")
        terminal.until("reached the length limit")
        terminal.until("> ")
        terminal.keys("\x04")
        terminal.until("saved as")
        assert terminal.process.wait(PATIENCE_SECONDS) == 0
    found = rows(
        tmp_path / "data" / "sessions.db", "SELECT status, finish_reason FROM nodes WHERE role = 'assistant' ORDER BY id"
    )
    assert found == [("partial", "cancelled"), ("partial", "length")]


# ---- line breaks ----------------------------------------------------------------------------------------------------


def wrapped(*pieces: str, width: int | None = 20) -> str:
    stream = io.StringIO()
    wrapper = Wrapper(stream, width)
    for piece in pieces:
        wrapper.write(piece)
    wrapper.end()
    return stream.getvalue().removesuffix("\n")


def test_words_are_not_cut() -> None:
    assert wrapped("The quick brown f", "ox jumps over the lazy", " dog.") == "The quick brown fox\njumps over the lazy\ndog."
    assert wrapped("- a list\n  - of two\n\nend") == "- a list\n  - of two\n\nend"
    assert wrapped("今天天气很好我们去公园散步吧") == "今天天气很好我们去公\n园散步吧"
    assert wrapped("long " + "x" * 50) == "long\n" + "x" * 50


def test_code_stays_as_it_is() -> None:
    code = "```python\nprint('a line longer than twenty columns')\n```"
    assert wrapped(f"{code}\nand then words that wrap") == f"{code}\nand then words that\nwrap"
    assert wrapped(code, width=None) == code


def test_what_a_terminal_would_obey_is_left_out() -> None:
    assert wrapped("a\x1b[2Jb\x07\x9bc\rd") == "a[2Jbcd"


@pytest.mark.slow
@given(st.lists(st.text(st.sampled_from("ab \n你🎉é"), max_size=12), max_size=12), st.integers(8, 30))
def test_nothing_is_lost_and_no_line_is_too_long(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    got = wrapped(*pieces, width=width)
    assert re.sub(r"\s", "", got) == re.sub(r"\s", "", text)
    assert wrapped(text, width=width) == got
    for line in got.split("\n"):
        words = re.findall(r"[你🎉][^\s你🎉]*|[^\s你🎉]+", line)  # a script without spaces breaks before any character
        indent = len(line) - len(line.lstrip())
        if words and max(indent + cell_len(words[0]), *map(cell_len, words)) <= width:  # what is longer the terminal breaks
            assert cell_len(line.rstrip()) <= width
