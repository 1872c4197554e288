"""The OpenAPI document, made from the schemas that bodies are decoded and encoded with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from app.serve.schemas import ErrorBody
from runtime import __version__


@dataclass(frozen=True, slots=True)
class Operation:
    """One path for the document."""

    path: str  # its path
    summary: str  # what it does, in a sentence
    body: type[msgspec.Struct] | None  # the struct of its request; None: it is read with GET
    answer: type[msgspec.Struct] | None  # the struct of its answer; None: plain text or an object without a schema
    streams: bool  # whether ``stream: true`` makes its answer server-sent events


def document(operations: Iterable[Operation]) -> bytes:
    """The document as JSON."""
    listed = list(operations)
    types: list[Any] = [each for one in listed for each in (one.body, one.answer) if each is not None]
    schemas, components = msgspec.json.schema_components([*types, ErrorBody], ref_template="#/components/schemas/{name}")
    by_type = dict(zip([*types, ErrorBody], schemas, strict=True))
    refused = {"description": "refused", "content": {"application/json": {"schema": by_type[ErrorBody]}}}
    paths: dict[str, Any] = {}
    for one in listed:
        content: dict[str, Any] = {}
        if one.answer is not None:
            content["application/json"] = {"schema": by_type[one.answer]}
        if one.streams:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        operation: dict[str, Any] = {
            "summary": one.summary,
            "responses": {"200": {"description": "done", "content": content}, "default": refused},
        }
        if one.body is not None:
            body = {"application/json": {"schema": by_type[one.body]}}
            operation["requestBody"] = {"required": True, "content": body}
        paths[one.path] = {"get" if one.body is None else "post": operation}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Elsewise", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{}, {"key": []}],
        }
    )
