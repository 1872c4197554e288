"""Faults as OpenAI-shaped errors with an HTTP status."""

from __future__ import annotations

from typing import Final

import msgspec

from app.serve.schemas import ErrorBody, ErrorDetail
from runtime import (
    AdapterError,
    ContextOverflowError,
    EngineDiedError,
    GrammarError,
    InvalidRequestError,
    MemoryBudgetError,
    ModelLoadError,
    OptionError,
    RuntimeFault,
    SessionClosedError,
    UnsupportedFeatureError,
)

TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ApiError(Exception):
    """A refusal that the client sees.

    Args:
        message: Text for the client's user.
        status: HTTP status.
        param: The request's field at fault.
        code: OpenAI's error code, if there is one.
        retry_after: Seconds, for the header of that name.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code, self.retry_after = message, status, param, code, retry_after

    def body(self) -> bytes:
        kind = TYPES.get(self.status, "invalid_request_error")
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.message, kind, self.param, self.code)))

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response that depend on the fault."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return headers | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def api_error(fault: BaseException) -> ApiError:
    """The error that a client sees for a fault; without details if the fault is unexpected."""
    match fault:
        case ApiError():
            return fault
        case ContextOverflowError():
            return ApiError(str(fault), code="context_length_exceeded")
        case OptionError():
            return ApiError(str(fault), param=fault.option or None)
        case MemoryBudgetError():
            return ApiError(str(fault), code="kv_budget_exceeded")
        case InvalidRequestError() | GrammarError() | AdapterError() | UnsupportedFeatureError():
            return ApiError(str(fault))
        case EngineDiedError() | SessionClosedError() | ModelLoadError():
            return ApiError(
                "the engine has stopped and is started again by the next request", 503, code="engine_stopped", retry_after=2
            )
        case RuntimeFault():
            return ApiError(str(fault), 500)
    return ApiError("internal error; the server's log names it", 500)
