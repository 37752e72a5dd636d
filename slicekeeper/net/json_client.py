# SPDX-License-Identifier: Apache-2.0
"""A small JSON client for one server: pooled connections, and a bearer token that is read again when it rotates.

Errors are `slicekeeper.errors.ServiceError`s with the server's message (from a Kubernetes Status or an RFC 9457
problem). There are no redirects and no retries: callers know what is safe to repeat.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict, Unpack
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection

from slicekeeper.errors import ServiceError, SettingsError, Unavailable, service_error


class TokenFile:
    """A bearer token in a file, which kubelet rewrites before it expires."""

    def __init__(self, file: str) -> None:
        self._file = Path(file) if file else None
        self._stamp = 0
        self._token = ""

    def header(self) -> dict[str, str]:
        """Return the Authorization header; empty if there is no token."""
        if self._file is None:
            return {}
        try:
            stamp = self._file.stat().st_mtime_ns
            if stamp != self._stamp:
                self._token, self._stamp = self._file.read_text("ascii").strip(), stamp
        except (OSError, UnicodeDecodeError):
            pass  # the last token may still be good; the server says so if it is not
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}


class Sent(TypedDict, total=False):
    """What a request carries beside its path; by default nothing. `body` is sent as JSON, of type `content_type`."""

    query: Mapping[str, str] | None
    body: Any
    content_type: str
    headers: Mapping[str, str] | None


class JsonClient:
    """Speaks JSON to the server at `url`."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: str = "",
        token_file: str = "",
        timeout: float = 10.0,
        pool: urllib3.PoolManager | None = None,
        authorization: Callable[[], Mapping[str, str]] | None = None,
        delivery_seconds: float = 0.0,
    ) -> None:
        """Connect by `pool`, by default without a proxy; `authorization` returns the headers that identify the sender.

        With `delivery_seconds`, a request that the server has not acknowledged by then never reaches it. Otherwise the
        system keeps sending while the network is cut, for minutes after the caller has given up.
        """
        _check_url(url)
        self._url = url.rstrip("/")
        self._authorization = authorization or TokenFile(token_file).header
        self._timeout = urllib3.Timeout(connect=min(timeout, delivery_seconds or 5.0, 5.0), read=timeout)
        self._pool = pool or urllib3.PoolManager(
            maxsize=16,
            ca_certs=ca_file or None,
            cert_reqs="CERT_REQUIRED",
            socket_options=[*HTTPConnection.default_socket_options, *_delivered_within(delivery_seconds)],
        )

    def request(self, method: str, path: str, **sent: Unpack[Sent]) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request; return status, headers and body of an answer below 400.

        Raises Unavailable if there is no answer, the ServiceError of the status for one of 400 or above, and
        SettingsError if a header cannot be sent.
        """
        response = self._send(method, path, sent)
        if response.status >= 400:
            raise _refusal(response.status, response.data, f"{method} {path}")
        return response.status, response.headers, response.data

    def json(self, method: str, path: str, **sent: Unpack[Sent]) -> Any:
        """Send one request; return the answer's JSON."""
        _, _, data = self.request(method, path, **sent)
        try:
            return msgspec.json.decode(data) if data else None
        except msgspec.DecodeError as error:
            raise Unavailable(f"{method} {path}: the answer is not JSON") from error

    @contextmanager
    def stream(self, path: str, *, query: Mapping[str, str], read_timeout: float) -> Iterator[Iterator[bytes]]:
        """Open a GET whose answer is a stream of lines; yield an iterator over them."""
        timeout = urllib3.Timeout(connect=5.0, read=read_timeout)
        response = self._send("GET", path, {"query": query}, preload=False, timeout=timeout)
        try:
            if response.status >= 400:
                raise _refusal(response.status, response.read(), f"GET {path}")
            yield _lines(response, path)
        finally:
            response.close()
            response.release_conn()

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def _send(
        self, method: str, path: str, sent: Sent, *, preload: bool = True, timeout: urllib3.Timeout | None = None
    ) -> urllib3.BaseHTTPResponse:
        query, body = sent.get("query"), sent.get("body")
        url = self._url + path + (f"?{urlencode(query)}" if query else "")
        headers = urllib3.HTTPHeaderDict({"Accept": "application/json"})
        headers.extend(self._authorization())  # in which a header may be several times
        headers.update(sent.get("headers") or {})
        if body is not None:
            headers["Content-Type"] = sent.get("content_type", "application/json")
        try:
            return self._pool.request(
                method,
                url,
                body=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=timeout or self._timeout,
                preload_content=preload,
                redirect=False,
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"{method} {path}: no answer from {self._url} ({_why(error)})") from error
        except ValueError:  # its message has the header, and that may be a secret
            raise SettingsError(
                f"{method} {path}: not sent: the bearer token or the idempotency key is not one line of Latin letters"
            ) from None


def _check_url(url: str) -> None:
    """Raise SettingsError for a URL to which no request can be sent."""
    with suppress(urllib3.exceptions.LocationParseError):
        parts = urllib3.util.parse_url(url)
        if parts.scheme in ("http", "https") and parts.host:
            return
    raise SettingsError(f"server URL is {url!r}: use one such as http://127.0.0.1:8444")


def _delivered_within(seconds: float) -> list[tuple[int, int, int]]:
    """Return the socket option that ends a connection if nothing is acknowledged for `seconds`, if there is one."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
    return [(socket.IPPROTO_TCP, option, round(seconds * 1000))] if option is not None and seconds else []


def path(*parts: str) -> str:
    """Return a URL path of the parts, each escaped."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _lines(response: urllib3.BaseHTTPResponse, path: str) -> Iterator[bytes]:
    rest = b""
    try:
        while chunk := response.read1():
            rest += chunk
            *lines, rest = rest.split(b"\n")
            yield from (line for line in lines if line)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Unavailable(f"GET {path}: the stream broke ({_why(error)})") from error


def _why(error: BaseException) -> str:
    """Return the innermost cause of an error in the system's words, for example `Connection refused`."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return getattr(error, "verify_message", "") or getattr(error, "strerror", "") or type(error).__name__


def _refusal(status: int, data: bytes, what: str) -> ServiceError:
    """Return the error for an answer of 400 or above, with the server's own message."""
    try:
        answer = msgspec.json.decode(data)
    except msgspec.DecodeError:  # the API server's proxy answers in plain text, whose first line says what is wrong
        answer = {"message": data[:500].decode("utf-8", "replace").partition("\n")[0].strip()}
    if not isinstance(answer, dict):
        answer = {}
    message = str(answer.get("message") or answer.get("detail") or answer.get("title") or f"HTTP {status}")
    reason = str(answer.get("reason") or answer.get("code") or "")
    return service_error(status, f"{what}: {message}", reason)
