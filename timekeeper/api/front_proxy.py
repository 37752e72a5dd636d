# SPDX-License-Identifier: Apache-2.0
"""Identify users whose requests come from the API server, which offers our routes as its own (an APIService).

The API server authenticates a user by any means that the cluster has, and names the user in headers. They are trusted
only on a connection with the API server's own certificate, which must be signed by the CA and have one of the names in
`kube-system/extension-apiserver-authentication`. Such headers from any other client are ignored.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from slicekeeper import threads
from slicekeeper.errors import NotFound, ServiceError
from slicekeeper.kube.client import CONFIG_MAPS, KubeClient
from slicekeeper.net.tls import ClientCas, ClientCertificate, certificates_in
from slicekeeper.untyped_json import as_map
from timekeeper.api.problems import Problem
from timekeeper.core.caller import Caller

log = logging.getLogger(__name__)

NAMESPACE: Final = "kube-system"
NAME: Final = "extension-apiserver-authentication"
LOOK_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 5.0
_PREFIX: Final = "requestheader-"

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Trust:
    """The certificates that are trusted, and the names of the headers that identify a user."""

    bundle: str
    names: frozenset[str]
    """The certificate's allowed names; empty: any."""
    user: tuple[str, ...]
    groups: tuple[str, ...]
    uid: tuple[str, ...]
    extra: tuple[str, ...]
    """Prefixes of the headers for all other attributes."""


def read(data: Mapping[str, object]) -> Trust:
    """Return the trust that the API server publishes for its front proxy.

    Raises ValueError if it does not identify the front proxy safely.
    """
    bundle = str(data.get(f"{_PREFIX}client-ca-file") or "").strip()
    if not bundle:
        raise ValueError("the API server has no front proxy (--requestheader-client-ca-file)")
    names = frozenset(_texts(data, "allowed-names"))
    if not names and certificates_in(bundle) & certificates_in(str(data.get("client-ca-file") or "")):
        raise ValueError(
            "--requestheader-allowed-names is empty and the CA is users': any user could impersonate any other"
        )
    user = _texts(data, "username-headers")
    if not user:
        raise ValueError("the API server names no header for users")
    return Trust(
        bundle,
        names,
        user,
        _texts(data, "group-headers"),
        _texts(data, "uid-headers"),
        _texts(data, "extra-headers-prefix"),
    )


def _texts(data: Mapping[str, object], key: str) -> tuple[str, ...]:
    found = json.loads(str(data.get(_PREFIX + key) or "[]"))
    if not isinstance(found, list):
        raise ValueError(f"{_PREFIX}{key} is not a list")
    return tuple(str(one) if key == "allowed-names" else str(one).lower() for one in found)


class FrontProxy:
    """Keeps the trusted certificates up to date, and reads the user from a request."""

    def __init__(self, client: KubeClient, clients: ClientCas) -> None:
        """Follow the trust of an API server; `clients` are our server's client CAs, which are kept up to date."""
        self._client = client
        self._clients = clients
        self._trust: Trust | None = None
        self._stop = threading.Event()
        self._logged = ""

    def start(self) -> None:
        """Begin to follow, in a daemon thread."""
        threads.keep("front-proxy", self._follow, self._stop.is_set)

    def stop(self) -> None:
        """Stop following."""
        self._stop.set()

    def look(self) -> bool:
        """Read the trust once; return whether that succeeded. If it cannot be read, nothing changes."""
        try:
            data = as_map(self._client.get(CONFIG_MAPS, NAME, NAMESPACE).get("data"))
            trust = read(data)
            self._clients.trust(trust.bundle)
            self._trust, wrong = trust, ""
        except (ServiceError, ValueError) as error:
            wrong = str(error)
            if wrong != self._logged:
                level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
                log.log(level, "users of the API server cannot be identified: %s/%s: %s", NAMESPACE, NAME, wrong)
        self._logged = wrong
        return not wrong

    def caller(self, certificate: ClientCertificate, headers: Headers) -> Caller:
        """Return the user that the API server names.

        A user of the API server is never a reporting pod, whose token only its sidecar has. Raises Problem (401) if the
        certificate is not the API server's, or if it names no user.
        """
        trust = self._trust
        if trust is None or not certificate.cas <= self._clients.trusted:
            raise _refused("the CA that signed the certificate of this connection is not the API server's any more")
        if certificate.not_after <= time.time():
            raise _refused("the certificate of this connection has expired")
        if trust.names and (len(certificate.common_names) != 1 or certificate.common_names[0] not in trust.names):
            raise _refused("the certificate of this connection is not the API server's")
        users = _values(headers, trust.user)
        if not users:
            raise _refused("the API server names no user")
        uids = _values(headers, trust.uid)
        return Caller(
            name=users[0],
            groups=tuple(_values(headers, trust.groups)),
            uid=uids[0] if uids else "",
            extra=_extra(headers, trust.extra),
        )

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(LOOK_SECONDS if self.look() else RETRY_SECONDS)


def _values(headers: Headers, names: Iterable[str]) -> list[str]:
    """Return the values of headers with exactly these names, in the names' order."""
    wanted = [name.encode() for name in names]
    return [text for name in wanted for key, value in headers if key.lower() == name and (text := _text(value))]


def _extra(headers: Headers, prefixes: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for key, value in headers:
        name = key.decode("latin-1").lower()
        for prefix in prefixes:
            if name.startswith(prefix) and len(name) > len(prefix):
                found.setdefault(unquote(name.removeprefix(prefix)), []).append(_text(value))
    return tuple((key, tuple(values)) for key, values in sorted(found.items()))


def _text(value: bytes) -> str:
    try:
        return value.decode().strip()
    except UnicodeDecodeError as error:
        raise _refused("a header of the API server is not UTF-8") from error


def _refused(why: str) -> Problem:
    return Problem(401, "unauthenticated", why)
