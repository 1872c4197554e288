"""The process that renders chat templates: run in isolation, imports only jinja2 and the standard library.

Frames on standard input (a socket): four bytes little-endian length, then JSON. The first frame sets the template; each
later one has the variables of a render. Every frame is answered by ``{"text": ...}`` or ``{"error": ...}``. The environment
is that of transformers (`apply_chat_template`): immutable sandbox, block trimming, loop controls, `tojson`, `raise_exception`,
`strftime_now`, the `generation` tag.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, BinaryIO, NoReturn

import jinja2
import jinja2.ext
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's text for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012  # an instance variable in the base class

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_through"), [], [], body).set_lineno(line)

    def _through(self, caller: Callable[[], str]) -> str:
        return caller()


class _PlainNamespace(Namespace):
    """A namespace that refuses names with an underscore, through which a template could reach into CPython."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # lets a template write namespace(self=...)
        self, rest = args[0], args[1:]
        names = dict(*rest, **kwargs)
        for name in names:
            _refuse_underscore(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


class _PlainDict:
    """`dict` for templates, without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template may not set {name!r} on a namespace")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def compile_template(source: str) -> jinja2.Template:
    """Compiles a template in its sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _PlainDict(),
        "namespace": _PlainNamespace,
    }
    return environment.from_string(source)


def _answer(template: jinja2.Template, variables: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {"text": template.render(**variables)}
    except MemoryError:
        return {"error": "it needs more memory than a template may have"}
    except RecursionError:
        return {"error": "it calls itself without end"}
    except Exception as fault:  # noqa: BLE001  # the border of the sandbox: any exception of a template is its answer
        return {"error": f"{type(fault).__name__}: {fault}"[:2000]}


def _read(stream: BinaryIO) -> Any:
    head = stream.read(4)
    if len(head) < 4:
        sys.exit(0)  # the parent ended
    return json.loads(stream.read(int.from_bytes(head, "little")))


def _write(pipe: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    pipe.sendall(len(data).to_bytes(4, "little") + data)


def main() -> None:
    """Serves until the parent closes the socket."""
    with socket.socket(fileno=sys.stdin.fileno()) as pipe, pipe.makefile("rb") as stream:
        settings = _read(stream)
        if settings["memory_bytes"] is not None:  # None: the parent watches the memory
            resource.setrlimit(resource.RLIMIT_AS, (settings["memory_bytes"],) * 2)
        try:
            template = compile_template(settings["source"])
        except (jinja2.exceptions.TemplateError, MemoryError, RecursionError) as fault:
            _write(pipe, {"error": f"{type(fault).__name__}: {fault}"[:2000]})
            return
        _write(pipe, {"text": "ready"})
        while True:
            variables = _read(stream)
            signal.setitimer(signal.ITIMER_REAL, settings["seconds"] + 1)  # ends an endless render whose parent died
            answer = _answer(template, variables)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _write(pipe, answer)


if __name__ == "__main__":
    main()
