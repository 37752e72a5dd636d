# SPDX-License-Identifier: Apache-2.0
"""Whether the API server reaches the webhook and the timekeeper."""

from __future__ import annotations

import json

from support.checked_cluster import TIMEKEEPERS_API, Server, check, problems


def test_a_webhook_that_the_api_server_does_not_reach_is_told_in_its_words(server: Server) -> None:
    server.install()
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    why = 'failed calling webhook "pods.validate.slicekeeper.io": tls: failed to verify certificate: x509: expired'
    server.errors[path] = (500, f"Internal error occurred: {why}")
    [found] = json.loads(check(server, "-o", "json").stdout)
    assert found["problem"].endswith(why)
    assert "x509 or tls: kubectl logs -n slicekeeper-system deployment/certificates" in found["remedy"]
    for refusal in (
        (422, "tencent.com/vcuda-core: refused"),
        (403, "exceeded quota"),
        (403, "may not create pods"),
        (500, 'Internal error occurred: failed calling webhook "images.example.com": connection refused'),
    ):
        server.errors[path] = refusal
        assert problems(check(server, "-o", "json")) == [], "it was asked, or nobody came as far"


def test_the_webhook_is_asked_by_a_pod_that_is_never_made(server: Server) -> None:
    server.install()
    check(server)
    [(path, pod)] = server.created
    assert path == "/api/v1/namespaces/default/pods?dryRun=All"
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"tencent.com/vcuda-core": "100"}}


def test_a_timekeeper_that_the_api_server_does_not_reach_is_told_in_its_words(server: Server) -> None:
    server.install()
    server.errors[TIMEKEEPERS_API] = (
        503,
        "error trying to reach service: x509: certificate signed by unknown authority",
    )
    [found] = json.loads(check(server, "-o", "json").stdout)
    assert "the API server gets no answer from the timekeeper" in found["problem"]
    assert "unknown authority" in found["problem"]
    assert "let the control plane reach port 8444" in found["remedy"]
    server.errors[TIMEKEEPERS_API] = (503, "service unavailable")
    assert problems(check(server, "-o", "json")) == [], "its APIService tells why"
