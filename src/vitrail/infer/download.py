"""Pictures from the web: within limits of bytes and of time, and nothing but http and https."""

import time
from functools import cache
from http.client import HTTPException
from urllib import request
from urllib.error import HTTPError

from vitrail.data.images import MOST_BYTES, BadImage, check_bytes

PATIENCE = 20.0  # seconds that a server may stay silent
MOST_SECONDS = 120.0  # for one picture, however steadily it trickles
CHUNK = 2**18  # bytes


def download(address: str) -> bytes:
    """What a server has under an address, within the decoder's limit of bytes and two minutes."""
    began = time.monotonic()
    try:
        with opener().open(address, timeout=PATIENCE) as answer:
            said = answer.headers.get("Content-Length", "")
            told = int(said) if said.isdecimal() else 0
            if told > MOST_BYTES:
                check_bytes(told, address)
            data = bytearray()
            while chunk := answer.read1(CHUNK):  # what has come: `read` waits until it is all
                data += chunk
                if len(data) > MOST_BYTES:
                    check_bytes(len(data), address)
                if time.monotonic() - began > MOST_SECONDS:
                    raise BadImage(address, f"took longer than {MOST_SECONDS:g} s")
            if len(data) < told:
                raise BadImage(address, f"cannot be fetched: {len(data)} of {told} bytes came")
            return bytes(data)
    except HTTPError as error:
        reason = f"the server says {error.code} {error.reason}".rstrip()
        error.close()
    except (OSError, HTTPException, ValueError) as error:
        inner = getattr(error, "reason", None) or error
        reason = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    raise BadImage(address, f"cannot be fetched: {reason}")


@cache
def opener() -> request.OpenerDirector:
    """Speaks http and https and nothing else, wherever a server sends it on to: no file:, no
    ftp:."""
    made = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPRedirectHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        made.add_handler(handler())
    made.addheaders = [("User-Agent", "vitrail")]
    return made
