"""Answers of routes: JSON, and errors as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

JSON = "application/json"


def json_response(values: Any, status: int = 200) -> Response:
    return Response(json.dumps(values, allow_nan=False), status, media_type=JSON)


def problem_body(sentence: str, status: int) -> bytes:
    """
    >>> problem_body("there is no such model", 404)
    b'{"error": "there is no such model", "code": 404}'
    """
    return json.dumps({"error": sentence, "code": status}).encode()


def problem_response(
    status: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(problem_body(sentence, status), status, headers=headers, media_type=JSON)
