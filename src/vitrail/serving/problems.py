"""Why a request has no answer, and the status that says so."""

from vitrail.core.errors import printable


class Problem(Exception):  # noqa: N818 - what a client is told
    """One sentence for the client. `close`: what else the client sends is not read."""

    status = 500

    def __init__(self, sentence: str, *, close: bool = False) -> None:
        super().__init__(printable(sentence))
        self.close = close

    @property
    def headers(self) -> dict[str, str]:
        return {"connection": "close"} if self.close else {}


class BadRequest(Problem):
    status = 400


class Unauthorised(Problem):
    status = 401

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "www-authenticate": "Bearer"}


class Forbidden(Problem):
    status = 403


class NotFound(Problem):
    status = 404


class TooSlow(Problem):
    """The client took too long to send its request."""

    status = 408


class Conflict(Problem):
    status = 409


class TooLarge(Problem):
    status = 413


class WrongType(Problem):
    status = 415


class Invalid(Problem):
    """The request can be read, but not be done."""

    status = 422


class Overloaded(Problem):
    status = 429

    def __init__(self, sentence: str, *, retry_after: int = 1) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": str(self.retry_after)}


class Failed(Problem):
    status = 500


class Unavailable(Problem):
    status = 503

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "retry-after": "1"}


class OutOfTime(Problem):
    status = 504
