# SPDX-License-Identifier: Apache-2.0
"""Assemble the application from settings: database, books, controller and routes."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import msgspec
from flask import Flask, Response

from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.policy import parse_rate
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.policy_watch import PolicyObjects
from slicekeeper.net import probes
from slicekeeper.net.tls import ClientCas
from timekeeper.api import metrics, openapi, parse, problems
from timekeeper.api.front_proxy import FrontProxy
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.handlers.openapi import DOCUMENT
from timekeeper.api.identity import Identity
from timekeeper.api.routes import PREFIX, ROUTES, Route
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger import rate
from timekeeper.ledger.books import Books
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

MAX_BODY_BYTES = 4 << 20


def make_app(settings: Settings, clock: Clock, clients: ClientCas | None = None) -> Flask:
    """Return the application with its controller started. Call it in the process that serves: it starts threads.

    `clients` are the CAs with which the server checks the certificate of its one such client, the API server.
    """
    mine = settings.timekeeper
    client = KubeClient(settings.kubernetes)
    identity = Identity(client, mine.audience, mine.operator_token_file)
    policy = PolicyFile(settings.policy)
    rates = rates_of(mine.rates)
    database = Database(make_engine(mine.database))
    books = Books(database, mine.cluster, carry=mine.debt == "carry")
    rate.follow_settings(books, rates, clock.now_ms())
    controller = Controller(settings, clock, client, books, policy, identity.forget)
    front_proxy = None if clients is None else FrontProxy(client, clients)
    context = HandlerContext(settings, clock, books, policy, controller, identity, front_proxy)
    app = routed(context)
    policy.start()
    if settings.policy.objects:
        PolicyObjects(client, policy).start()
    if front_proxy is not None:
        front_proxy.start()
    controller.start()
    if mine.metrics_bind:
        probes.serve_metrics(mine.metrics_bind, settings.serving, metrics.registry(context))
    return app


def routed(context: HandlerContext) -> Flask:
    """Return the application with its routes; nothing is started."""
    app = Flask("timekeeper", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.merge_slashes = False  # otherwise //x would be redirected, and our clients follow no redirects
    app.extensions[DOCUMENT] = msgspec.json.encode(openapi.document())
    problems.register(app)
    for route in ROUTES:
        rule = re.sub(r"{(\w+)}", r"<\1>", route.path)
        name = f"{route.method} {route.path}"
        app.add_url_rule(rule, name, _view(route, context), methods=[route.method], provide_automatic_options=False)
        if route.aggregated:
            rule = f"/apis/{names.API}{rule.removeprefix(PREFIX)}"
            app.add_url_rule(rule, name, methods=[route.method], provide_automatic_options=False)
    return app


def _view(route: Route, context: HandlerContext) -> Callable[..., Response]:
    """Return a route's handler, called with the context, and only with a query that the route knows."""

    def view(**path: str) -> Response:
        if not route.public:
            parse.known_query(route.query)
        return route.handler(context, **path)

    return view


def rates_of(rates: dict[str, str]) -> dict[str, Fraction]:
    """Return the rates by GPU model.

    Raises SettingsError if one is not a rate.
    """
    found = {}
    for model, text in rates.items():
        try:
            found[model] = parse_rate(text)
        except (ValueError, ArithmeticError) as error:
            raise SettingsError(f"timekeeper.rates.{model} is {text!r}: {error}; for example 3/2") from error
    return found
