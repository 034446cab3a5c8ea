"""Ask the hub patiently; errors say what failed and where."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rl_infonce.checks import import_extra

T = TypeVar("T")

_ADDRESS = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:\d{1,5})?(/[!-~]*)?")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds, if the hub does not say how long
_LONGEST_WAIT = 300.0  # seconds, the window in which the hub counts requests
_PASSING = (429, 500, 502, 503, 504)
_ADVICE = {
    401: "Log in with `hf auth login` or set HF_TOKEN. The hub also answers this for repositories "
    "that do not exist.",
    403: "The token may not do this: it needs write access to push, and access to gated models.",
    404: "There is no such repository, revision or file.",
    429: "Too many requests: try again in some minutes.",
}


class HubError(OSError):
    """The hub refused, failed or could not be reached; without an answer the status is None."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def library() -> Any:
    """Return the module huggingface_hub."""
    return import_extra("huggingface_hub", "hub")


def api() -> Any:
    """Return huggingface_hub's `HfApi`, which asks `HF_ENDPOINT` if that is set."""
    try:
        hub = library().HfApi(library_name="rl_infonce")
        endpoint = hub.endpoint
    except ValueError:  # its import reads the address, which may be none
        endpoint = os.environ.get("HF_ENDPOINT", "")
        if not endpoint or _ADDRESS.fullmatch(endpoint):
            raise
    if not _ADDRESS.fullmatch(endpoint):
        raise ValueError(
            f"Expected `HF_ENDPOINT` to be an address such as https://huggingface.co, got "
            f"{endpoint!r}. Correct it, or unset it."
        )
    return hub


def check_repo(repo: str) -> None:
    """Raise unless a text names a repository as owner/name."""
    if not _REPO.fullmatch(repo):
        raise ValueError(f"Expected `repo` as owner/name, of letters, digits, . _ -, got {repo!r}.")


def answered(url: str, ask: Callable[[], T]) -> T:
    """Return an answer that `patiently` asked for; one that cannot be read is a `HubError` also."""
    try:
        return patiently(url, ask)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise HubError(
            f"Expected an answer of the hub from {url}, got one that cannot be read: {error!r}. "
            "Is `HF_ENDPOINT` the hub's address?"
        ) from error


def patiently(url: str, ask: Callable[[], T]) -> T:
    """Return what the hub answers; while it is busy, wait and ask again, five times in all.

    The address is for errors that do not know theirs. Every other failure is a `HubError`.
    """
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    transport: Any = HfHubHTTPError.__bases__[0]  # from httpx or its successor, whichever is used
    for wait in (*_WAITS, None):
        try:
            return ask()
        except (transport, OfflineModeIsEnabled, RuntimeError, ConnectionError) as error:
            # A failure within an upload comes as the cause of a RuntimeError, or from hf_xet.
            response = getattr(error, "response", getattr(error.__cause__, "response", None))
            if wait is None or getattr(response, "status_code", None) not in _PASSING:
                raise _named(error, response, url) from error
            seconds = _seconds_asked_for(response, wait)
        _sleep(seconds)
    raise AssertionError("unreachable")


def _named(error: Exception, response: Any, url: str) -> HubError:
    if response is None:
        reason = (str(error) or type(error).__name__).rstrip(".")
        advice = "Is the network up, and `HTTPS_PROXY` set if it is needed? Then try again."
        return HubError(f"There was no complete answer from {url}: {reason}. {advice}")
    status, asked = int(response.status_code), str(response.url).partition("?")[0]
    advice = _ADVICE.get(status) or str(error).strip().splitlines()[0]
    return HubError(f"The hub answered {status} to {asked}. {advice}", status)


def _seconds_asked_for(response: Any, otherwise: float) -> float:
    """Return the seconds of `Retry-After`; its other form, a date, is ignored."""
    asked = str(response.headers.get("Retry-After", ""))
    return min(float(asked), _LONGEST_WAIT) if asked.isdecimal() else otherwise


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
