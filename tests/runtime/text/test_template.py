from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from runtime.errors import InvalidRequestError
from runtime.text import template as templates
from runtime.text.template import ChatTemplate, TemplateLimits
from tests.runtime.text.template_texts import ALL, CHATML
from tests.tiny_models import tiny_tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": HELLO,
    "long": [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": " What's <b>this</b> & that? \u2028 日本 😀 "},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nThat."},
        {"role": "user", "content": "{{ 7 * 7 }} {% raw %}"},
    ],
    "reasoning": [*HELLO, {"role": "assistant", "content": "Yes", "reasoning": "because"}, {"role": "user", "content": "So?"}],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Wetter für <Ort>", "parameters": {"type": "object"}}}
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture
def chatml() -> Iterator[ChatTemplate]:
    template = ChatTemplate(CHATML, SPECIAL)
    yield template
    template.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", ALL)
def test_the_rendered_text_equals_transformers(name: str, chat: str) -> None:
    # given
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), **SPECIAL)
    ours = ChatTemplate(ALL[name], SPECIAL)
    for tools in (None, TOOLS):
        for prompt in (True, False):
            # when
            text = ours.render(CHATS[chat], tools=tools, add_generation_prompt=prompt)
            # then
            assert text == theirs.apply_chat_template(
                CHATS[chat], tools=tools, chat_template=ALL[name], add_generation_prompt=prompt, tokenize=False
            )
    ours.close()


def test_the_child_starts_at_the_first_render_and_is_reused(chatml: ChatTemplate) -> None:
    # given
    assert chatml.child_pid is None
    # when
    chatml.render(HELLO)
    first = chatml.child_pid
    chatml.render(HELLO)
    # then
    assert first is not None
    assert chatml.child_pid == first


def test_the_message_of_a_template_that_refuses_is_quoted() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequestError, match="the chat template refused: TemplateError: roles must alternate"):
        template.render(HELLO)
    template.close()


def test_a_template_that_does_not_parse_is_refused_each_time() -> None:
    template = ChatTemplate("{% for %}")
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="TemplateSyntaxError"):
            template.render(HELLO)
        assert template.child_pid is None


@pytest.mark.slow
def test_a_looping_template_is_stopped_and_its_child_restarted() -> None:
    # given
    forever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    loop = "{% if messages[0].content == 'loop' %}" + forever + "{% endif %}ok"
    assert TemplateLimits().seconds == 2  # the default
    template = ChatTemplate(loop, limits=TemplateLimits(seconds=60))
    assert template.render(HELLO) == "ok"
    pid = template.child_pid
    # when
    template.limits = TemplateLimits(seconds=0.5)
    with pytest.raises(InvalidRequestError, match=r"ran longer than 0\.5 s and was stopped"):
        template.render([{"role": "user", "content": "loop"}])
    # then
    assert pid is not None
    assert not psutil.pid_exists(pid)
    template.limits = TemplateLimits(seconds=60)
    assert template.render(HELLO) == "ok"
    template.close()


GREEDY = [
    "{{ 'a' * 9999999999 }}",  # evaluated when the template is compiled
    "{% set ns = namespace(t='x' * 1000) %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not enforce RLIMIT_AS")
@pytest.mark.parametrize("source", GREEDY)
def test_a_template_that_exhausts_memory_is_refused(source: str) -> None:
    template = ChatTemplate(source, limits=TemplateLimits(seconds=60))  # memory ends it, not time
    with pytest.raises(InvalidRequestError, match=r"memory|MiB"):
        template.render(HELLO)
    template.close()


@pytest.mark.slow
@pytest.mark.parametrize("source", GREEDY)
def test_a_child_without_an_enforced_memory_limit_is_watched(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: the way of macOS, where RLIMIT_AS has no effect
    monkeypatch.setattr(templates, "MEMORY_ENFORCED", False)
    template = ChatTemplate(source, limits=TemplateLimits(seconds=60, memory_bytes=200 << 20))  # memory ends it, not time
    # when, then: each time, and the child has ended
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="took more than 200 MiB of memory and was stopped"):
            template.render(HELLO)
        assert template.child_pid is None
    template.close()


def test_a_child_stopped_for_its_memory_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a template that is harmless except for some messages
    monkeypatch.setattr(templates, "MEMORY_ENFORCED", False)
    template = ChatTemplate("{{ 'ok' * messages[0].times }}", limits=TemplateLimits(seconds=60, memory_bytes=200 << 20))
    assert template.render([{"times": 1}]) == "ok"
    pid = template.child_pid
    # when
    with pytest.raises(InvalidRequestError, match="took more than 200 MiB"):
        template.render([{"times": 1 << 32}])
    # then
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert template.render([{"times": 2}]) == "okok"
    template.close()


def test_a_watched_child_within_its_memory_limit_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: many checks of its memory, which stays within the limit
    monkeypatch.setattr(templates, "MEMORY_ENFORCED", False)
    monkeypatch.setattr(templates, "WATCH_SECONDS", 1e-4)
    template = ChatTemplate("{% for i in range(200) %}{% for j in range(200) %}{% endfor %}{% endfor %}{{ 'x' * 5000000 }}")
    # when, then
    assert template.render(HELLO) == "x" * 5_000_000
    template.close()


@pytest.mark.slow
def test_a_watched_child_that_loops_is_stopped_and_a_killed_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MEMORY_ENFORCED", False)
    forever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate("{% if messages %}" + forever + "{% endif %}ok", limits=TemplateLimits(seconds=0.5))
    with pytest.raises(InvalidRequestError, match=r"ran longer than 0\.5 s"):
        template.render(HELLO)
    template.limits = TemplateLimits(seconds=60)
    assert template.render([]) == "ok"
    assert template.child_pid is not None
    os.kill(template.child_pid, signal.SIGKILL)
    assert template.render([]) == "ok"
    template.close()


def test_a_template_with_endless_recursion_is_refused() -> None:
    template = ChatTemplate("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")
    with pytest.raises(InvalidRequestError, match="calls itself without end"):
        template.render(HELLO)
    template.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ self.__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('%s' | attr('__class__')) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ (strftime_now | attr('__globals__')).os }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    template = ChatTemplate(source)
    try:
        text = template.render(HELLO)
    except InvalidRequestError:
        return
    finally:
        template.close()
    assert text == ""


def test_the_childs_environment_has_no_secrets(chatml: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setenv("HF_TOKEN", "secret")
    # when
    chatml.render(HELLO)
    # then
    assert set(psutil.Process(chatml.child_pid).environ()) <= {"PATH", "LD_LIBRARY_PATH", "TZ", "LC_CTYPE"}


def test_a_killed_child_is_replaced(chatml: ChatTemplate) -> None:
    # given
    before = chatml.render(HELLO)
    pid = chatml.child_pid
    assert pid is not None
    # when
    os.kill(pid, signal.SIGKILL)
    # then
    assert chatml.render(HELLO) == before
    assert chatml.child_pid != pid


def test_renders_of_many_threads_get_their_own_answers(chatml: ChatTemplate) -> None:
    # given
    wrong: list[str] = []

    def ask(number: int) -> None:
        for i in range(20):
            content = f"{number}/{i}" * 500
            if content not in chatml.render([{"role": "user", "content": content}]):
                wrong.append(content)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    # when
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # then
    assert wrong == []


def test_a_conversation_larger_than_a_pipe_buffer_is_rendered(chatml: ChatTemplate) -> None:
    content = "0123456789" * 300_000
    assert content in chatml.render([{"role": "user", "content": content}])


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}])
def test_messages_with_other_than_json_values_are_refused(value: object, chatml: ChatTemplate) -> None:
    with pytest.raises(InvalidRequestError, match="must be plain JSON values"):
        chatml.render([{"role": "user", "content": value}])


def test_closing_ends_the_child_and_can_be_repeated(chatml: ChatTemplate) -> None:
    # given
    chatml.render(HELLO)
    pid = chatml.child_pid
    # when
    chatml.close()
    chatml.close()
    # then
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with pytest.raises(InvalidRequestError, match="closed"):
        chatml.render(HELLO)


FORGETFUL = """
import sys
from runtime.text.template import ChatTemplate
template = ChatTemplate("hello")
template.render([])
print(template.child_pid, flush=True)
if sys.argv[1] == "killed":
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["forgotten", "killed"])
def test_the_child_does_not_outlive_its_parent(end: str) -> None:
    # given
    with subprocess.Popen([sys.executable, "-c", FORGETFUL, end], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        # when
        if end == "killed":
            parent.kill()
    # then
    with contextlib.suppress(psutil.NoSuchProcess):  # ended already
        psutil.Process(child).wait(timeout=30)
    assert not psutil.pid_exists(child)
