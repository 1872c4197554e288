"""A hub on loopback that serves the routes of the real one, and misbehaves where a test asks for it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PATIENCE_SECONDS = 20
LARGE = 10_000  # files of this size or more are stored apart from git, under their SHA-256

Files = dict[str, bytes]
Reply = Callable[["Request"], bool]  # answers in place of the hub; False leaves the request to the hub


@dataclass
class Repository:
    """Commits by their SHA-1, and names for them."""

    commits: dict[str, Files] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    owner: str = ""  # the user whose token may read it; empty: public
    told: dict[str, Any] = field(default_factory=dict)  # what a search reports about it beside its files

    def commit(self, files: Files, *names: str) -> str:
        """A new commit, which branches or tags point to from now on."""
        told = json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())})
        sha = hashlib.sha1(told.encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.names |= dict.fromkeys(names or ("main",), sha)
        return sha


class LocalHub:
    """Repositories by id; `asked` lists the requests, `before` may answer one in place of the hub."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, range
        self.before: list[Reply] = []
        self.tokens: dict[str, str] = {}  # token -> user
        self.queries: list[dict[str, list[str]]] = []
        self.address = ""
        self.tags: Any = []  # of every repository

    def add(self, repository: str, files: Files) -> str:
        """A repository, or a new commit of its branch main; returns the commit."""
        return self.repositories.setdefault(repository, Repository()).commit(files)

    def fetched(self) -> list[str]:
        """The names of files whose content was requested, in order."""
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]

    def ranges(self, name: str) -> list[str | None]:
        """The ranges that were requested of a file."""
        return [asked for method, path, asked in self.asked if method == "GET" and path.endswith(f"/{name}")]


@dataclass
class Request:
    """One request and the means to answer it."""

    hub: LocalHub
    handler: BaseHTTPRequestHandler
    path: str
    data: bytes | None  # of the requested file

    @property
    def method(self) -> str:
        return self.handler.command

    @property
    def offset(self) -> int:
        """First byte of the requested range."""
        found = re.fullmatch(r"bytes=(\d+)-", self.handler.headers.get("Range", ""))
        return int(found[1]) if found else 0

    def answer(self, status: int, body: bytes = b"", **headers: str) -> bool:
        """Sends the whole answer at once; headers as keywords such as `Content_Length`."""
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        told.setdefault("Content-Length", str(len(body)))
        self.handler.send_response(status)
        for name, value in told.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        if self.method != "HEAD":
            self.handler.wfile.write(body)
        return True

    def json(self, status: int, value: Any, **headers: str) -> bool:
        return self.answer(status, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def hang_up(self) -> None:
        """Ends the connection, even before all promised bytes are sent."""
        self.handler.wfile.flush()
        self.handler.close_connection = True


def for_file(name: str, reply: Reply, *, times: int = 1_000_000) -> Reply:
    """Applies the reply to requests for the content of one file, at most `times` times."""
    left = times

    def answer(request: Request) -> bool:
        nonlocal left
        if request.method != "GET" or not request.path.endswith(f"/{name}") or left <= 0:
            return False
        left -= 1
        return reply(request)

    return answer


def stop_after(count: int) -> Reply:
    """Sends the given number of bytes of the requested content, then ends the connection."""

    def reply(request: Request) -> bool:
        assert request.data is not None
        rest = request.data[request.offset :]
        told = (
            {"Content_Range": f"bytes {request.offset}-{len(request.data) - 1}/{len(request.data)}"} if request.offset else {}
        )
        request.answer(206 if request.offset else 200, rest[:count], Content_Length=str(len(rest)), **told)
        request.hang_up()
        return True

    return reply


def once(ready: Callable[[], bool], reply: Reply) -> Reply:
    """Answers only once a condition holds: files are fetched in parallel."""

    def answer(request: Request) -> bool:
        until = time.monotonic() + PATIENCE_SECONDS
        while not ready():
            assert time.monotonic() < until
            time.sleep(0.01)
        return reply(request)

    return answer


def held(request: Request) -> bool:
    """Sends half of a file, and the rest only after the client has disconnected."""
    assert request.data is not None
    half = len(request.data) // 2
    request.answer(200, request.data[:half], Content_Length=str(len(request.data)))
    request.handler.wfile.flush()
    request.handler.rfile.read(1)
    request.hang_up()
    return True


def status(code: int, **headers: str) -> Reply:
    """Answers with an error status."""
    return lambda request: request.answer(code, b"no", **headers)


@contextmanager
def running() -> Iterator[LocalHub]:
    """A hub on a port of its own."""
    hub = LocalHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # sends an answer in one write
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            _serve(hub, self)

        def do_HEAD(self) -> None:
            _serve(hub, self)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that disconnected

    server = Server(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="local-hub")
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _serve(hub: LocalHub, handler: BaseHTTPRequestHandler) -> None:
    path = urlsplit(handler.path).path
    hub.asked.append((handler.command, path, handler.headers.get("Range")))
    resolved = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
    api = re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/([^/]+))?", path)
    files: Files = {}
    commit = ""
    if resolved or api:
        id_, revision = (resolved[1], resolved[2]) if resolved else (api[1], api[3] or "main") if api else ("", "")
        repository = hub.repositories.get(unquote(id_))
        if repository and repository.owner and repository.owner != _user(hub, handler):
            repository = None
        revision = unquote(revision)
        commit = repository.names.get(revision, revision) if repository else ""
        files = repository.commits.get(commit, {}) if repository else {}
    data = files.get(unquote(resolved[3])) if resolved else None
    request = Request(hub, handler, path, data)
    if any(reply(request) for reply in hub.before):
        return
    if path == "/api/whoami-v2":
        user = _user(hub, handler)
        request.json(200, {"type": "user", "name": user}) if user else request.json(401, {"error": "Invalid"})
    elif path == "/api/models":
        asked = parse_qs(urlsplit(handler.path).query)
        hub.queries.append(asked)
        request.json(200, list(_found(hub, asked, _user(hub, handler)))[: int(asked["limit"][0])])
    elif not files:
        known = bool(resolved or api) and commit
        code = "RevisionNotFound" if known else "RepoNotFound"
        request.answer(404 if known else 401, b"", X_Error_Code=code)
    elif api and api[2] == "tree":
        request.json(200, [_tree_entry(name, content) for name, content in files.items()])
    elif api:
        siblings = [_sibling(*pair) for pair in files.items()]
        request.json(200, {"id": api[1], "sha": commit, "siblings": siblings, "tags": hub.tags})
    elif data is None:
        request.answer(404, b"", X_Error_Code="EntryNotFound")
    else:
        _send(request, data, commit)


def _user(hub: LocalHub, handler: BaseHTTPRequestHandler) -> str:
    """The user of a request's token; empty without a known token."""
    return hub.tokens.get(handler.headers.get("Authorization", "").removeprefix("Bearer "), "")


def _found(hub: LocalHub, asked: dict[str, list[str]], user: str) -> Iterator[dict[str, Any]]:
    """The results of a search, the most downloaded first."""
    plain = {"downloads": 0, "likes": 0, "gated": False, "tags": []}
    for id_, repository in sorted(hub.repositories.items(), key=lambda pair: -pair[1].told.get("downloads", 0)):
        words = asked["search"][0].lower().split()
        if not all(word in id_.lower() for word in words) or repository.owner not in ("", user):
            continue
        files = repository.commits[repository.names["main"]]
        try:
            config = {"config": json.loads(files["config.json"])}
        except (KeyError, ValueError):
            config = {}
        siblings = [{"rfilename": name} for name in files]
        yield {"id": id_, "private": bool(repository.owner), "siblings": siblings, **plain, **config, **repository.told}


def _send(request: Request, data: bytes, commit: str) -> None:
    told = {"ETag": f'"{oid(data)}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
    if request.offset >= len(data) > 0:
        request.answer(416, b"", Content_Range=f"bytes */{len(data)}")
    elif request.offset:
        rest = data[request.offset :]
        request.answer(206, rest, Content_Range=f"bytes {request.offset}-{len(data) - 1}/{len(data)}", **told)
    else:
        request.answer(200, data, **told)


def oid(data: bytes) -> str:
    """The name of a content on the hub: git's SHA-1, or the SHA-256 of large files."""
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": oid(data)}
    if len(data) >= LARGE:
        pointer = hashlib.sha1(data).hexdigest()
        found |= {"blobId": pointer, "lfs": {"sha256": oid(data), "size": len(data), "pointerSize": 130}}
    return found


def _tree_entry(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": oid(data)}
    if len(data) >= LARGE:
        found["lfs"] = {"oid": oid(data), "size": len(data), "pointerSize": 130}
    return found
