# SPDX-License-Identifier: Apache-2.0
"""Answer kubelet's probes, which need no identity."""

from __future__ import annotations

from flask import Response
from sqlalchemy.exc import SQLAlchemyError

from slicekeeper import threads
from slicekeeper.errors import SettingsError
from timekeeper.api import answers
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.schemas.health import Health
from timekeeper.store.db import migrate


def live(context: HandlerContext) -> Response:
    """Return whether the server does its work; a restart may help if it does not."""
    reason = (
        threads.trouble()
        or context.controller.trouble()
        or ("" if context.books.database.alive else "the ledger's writer has stopped")
    )
    return _answer(reason)


def ready(context: HandlerContext) -> Response:
    """Return whether the server is ready for requests."""
    try:
        migrate.check(context.books.database.engine)
        reason = ""
    except SettingsError as error:
        reason = str(error)
    except SQLAlchemyError:
        reason = "the database does not answer"
    if not context.policy.complete.is_set():
        reason = reason or "GpuPolicies have not been listed yet"
    return _answer(reason or ("" if context.controller.synced else "the cluster's pods have not been listed yet"))


def _answer(reason: str) -> Response:
    if reason:
        return answers.json(Health("failing", reason), 503)
    return answers.json(Health("ok"))
