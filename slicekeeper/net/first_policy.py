# SPDX-License-Identifier: Apache-2.0
"""Wait for the first policy file without errors, on an installation that has had none yet.

A server that ended instead would be in a crash loop, and what is wrong only in the log of a container that is gone. One
that served with some default would decide about pods by rules that no administrator wrote. So it lives, is not ready,
answers every request with 503 and the error, and begins as soon as the file is corrected.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from slicekeeper.config.policy_file import read_first_book
from slicekeeper.config.settings import PolicySettings, ServingSettings, TlsSettings
from slicekeeper.errors import SettingsError
from slicekeeper.net.probes import THREADS
from slicekeeper.net.serving.background import BackgroundServer
from slicekeeper.net.serving.wsgi import WsgiBridge
from slicekeeper.net.tls import ReloadingContext

log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 1.0
_SAID_AGAIN_SECONDS: Final = 60.0


def wait_for_policy(policy: PolicySettings, bind: str, tls: TlsSettings, limits: ServingSettings) -> None:
    """Return as soon as there is a policy file without errors, or an accepted one; until then answer at `bind`.

    Raises SettingsError at once if the settings name no accepted file: then no cluster waits for this process.
    """
    wrong = _wrong(policy)
    if not wrong:
        return
    if not policy.accepted_file:
        raise SettingsError(wrong)
    waiting = _FirstPolicyAnswers(wrong)
    server = _FirstPolicyServer(bind, waiting.answer, tls, limits)
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        waited = 0.0
        while waiting.wrong:
            if waited % _SAID_AGAIN_SECONDS == 0.0:
                log.error("%s", waiting.told())
            if stop.wait(_EVERY_SECONDS):
                raise SystemExit(0)
            waited += _EVERY_SECONDS
            waiting.wrong = _wrong(policy)
    finally:
        server.close()
        signal.signal(signal.SIGTERM, before)
    log.info("policy file loaded: %s", policy.file)


def _wrong(policy: PolicySettings) -> str:
    """Return why no policy can be read; empty if one can."""
    try:
        read_first_book(policy)
    except SettingsError as error:
        return str(error)
    return ""


class _FirstPolicyAnswers:
    """The answers while there is no policy."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def told(self) -> str:
        """Return the whole error."""
        return (
            f"policy file refused, and there is no earlier one; nothing is served until it is corrected: {self.wrong}"
        )

    def answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request: only the liveness probe succeeds."""
        alive = environ.get("PATH_INFO") == "/healthz"
        body = (b"" if alive else self.told().encode()) + b"\n"
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        start_response("200 OK" if alive else "503 Service Unavailable", headers)
        return [body]


class _FirstPolicyServer(BackgroundServer):
    """The server in the place of the part's own, with its certificate."""

    def __init__(self, bind: str, app: Callable[..., Any], tls: TlsSettings, limits: ServingSettings) -> None:
        self.tls = ReloadingContext(tls).context if tls.certificate_file else None
        super().__init__(bind, WsgiBridge(app, threads=THREADS), limits, keepalive=0)
