"""Every error of a route as one JSON object, or as nothing where the client has left."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from vitrail.core.errors import UserError
from vitrail.serving.paths import hide_paths
from vitrail.serving.problems import Problem
from vitrail.serving.responses import problem_response

LEFT = 499  # of a client that reads no answer
BUG = "the service failed: its log says why"

logger = logging.getLogger(__name__)


class ClientLeft(Exception):  # noqa: N818 - nobody reads the answer
    """The client closed its connection before the answer."""


# what a route may raise on purpose; anything else is a bug
EXPECTED = (Problem, UserError, HTTPException, ClientLeft, ClientDisconnect)


def error_response(error: Exception) -> Response:
    """What the client is told."""
    match error:
        case Problem():
            return problem_response(error.status, str(error), error.headers)
        case UserError():
            return problem_response(422, hide_paths(str(error)))
        case HTTPException():
            return problem_response(error.status_code, str(error.detail), error.headers)
        case ClientLeft() | ClientDisconnect():
            return Response(status_code=LEFT)
    logger.error("a request failed", exc_info=error)
    return problem_response(500, BUG)
