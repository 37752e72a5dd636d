# SPDX-License-Identifier: Apache-2.0
"""The private interfaces of gunicorn that we use exist and take our arguments; a failure names the changed one."""

from __future__ import annotations

import inspect

import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.asgi.protocol import ASGIProtocol, BodyReceiver
from gunicorn.workers.gasgi import ASGIWorker

from slicekeeper.net.serving.gunicorn_private import LoopWorker, Protocol

METHODS = [
    (ASGIProtocol, "__init__", ["self", "worker"]),
    (ASGIProtocol, "_on_headers_complete", ["self"]),
    (ASGIProtocol, "_on_message_complete", ["self"]),
    (ASGIProtocol, "_build_http_scope", ["self", "request", "sockname", "peername"]),
    (ASGIProtocol, "_arm_keepalive_timer", ["self"]),
    (ASGIProtocol, "_keepalive_timeout", ["self"]),
    (ASGIProtocol, "_feed_callback_parser", ["self", "data"]),
    (ASGIProtocol, "_will_close", ["self", "request", "response_requires_close"]),
    (ASGIProtocol, "_is_websocket_upgrade", ["self", "request"]),
    (ASGIProtocol, "_close_transport", ["self"]),
    (ASGIProtocol, "_resume_reading", ["self"]),
    (ASGIProtocol, "_send_error_response", ["self", "status", "message"]),
    (BodyReceiver, "_wake_waiter", ["self"]),
    (ASGIWorker, "_serve", ["self"]),
    (ASGIWorker, "init_signals", ["self"]),
]
ATTRIBUTES = [
    *((ASGIProtocol, name) for name in (
        "_closed", "_body_receiver", "_callback_parser", "_current_request", "_request_ready", "_max_buffer_size",
    )),
    *((BodyReceiver, name) for name in ("_complete", "_chunks", "_body_wait_expired")),
    (Arbiter, "SIG_QUEUE"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "taken"), METHODS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_method_is_there_and_is_called_as_we_call_it(kind: type, name: str, taken: list[str]) -> None:
    assert hasattr(kind, name), f"gunicorn's {kind.__name__} has no {name} any more: see gunicorn_private.py"
    wanted = [
        parameter.name
        for parameter in inspect.signature(getattr(kind, name)).parameters.values()
        if parameter.default is inspect.Parameter.empty
    ]
    assert wanted == taken, f"gunicorn's {kind.__name__}.{name} takes {wanted} now: see gunicorn_private.py"


@pytest.mark.parametrize(("kind", "name"), ATTRIBUTES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_attribute_is_made_by_the_constructor(kind: type, name: str) -> None:
    made = kind.__init__.__code__.co_names  # type: ignore[misc]
    assert name in made, f"gunicorn's {kind.__name__} has no {name} any more: see gunicorn_private.py"


@pytest.mark.parametrize(
    ("ours", "theirs", "replaced"), [(Protocol, ASGIProtocol, set()), (LoopWorker, ASGIWorker, {"init_signals"})]
)
def test_no_name_of_ours_is_gunicorns_too(ours: type, theirs: type, replaced: set[str]) -> None:
    names = {name for name in vars(ours) if not name.startswith("_")}
    taken = {*dir(theirs), *theirs.__init__.__code__.co_names}  # type: ignore[misc]
    assert names & taken == replaced
