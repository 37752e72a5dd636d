# SPDX-License-Identifier: Apache-2.0
"""The webhook is down, hangs or has a bad certificate: GPU pods are refused or wait, and no other pods are affected."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cluster.harness.admissions import Reporter, admissions
from cluster.harness.cluster import Cluster
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Refused, wait_for
from cluster.harness.patience import KINDS, patience, webhooks
from cluster.harness.site import Site, deployment, gpu_container, plain_container, pod

from certificates.authority import KeyPair, sign_server, split
from slicekeeper import names

WEBHOOK = "deployment/webhook"
HOST = f"webhook.{NAMESPACE}.svc"


def _others_never_notice(site: Site, team: str) -> None:
    before = _calls(site)
    site.kubectl.create(pod("plain", plain_container(script="true")), namespace=team)
    system = pod("system", plain_container(script="true"))
    site.kubectl.create(system, namespace="kube-system")
    assert _calls(site) == before, "a pod that wants no GPU waited for the webhook"
    site.kubectl("delete", "pod", "plain", "-n", team, "--wait=false")
    site.kubectl("delete", "pod", "system", "-n", "kube-system", "--wait=false")


def _calls(site: Site) -> list[str]:
    """Return what the API server has counted of its calls of the webhook for pods that were created."""
    lines = site.kubectl("get", "--raw", "/metrics").splitlines()
    ours = [line for line in lines if line.startswith("apiserver_admission_webhook_") and 'name="pods.' in line]
    return sorted(line for line in ours if 'operation="CREATE"' in line)


def test_away_gpu_pods_are_refused_and_a_deployment_waits(site: Site) -> None:
    team = site.namespace()
    site.rollout(WEBHOOK, 0)
    try:
        wait_for(lambda: not site.pods(NAMESPACE, "app.kubernetes.io/name=webhook"), "end of the webhook's pods")
        with pytest.raises(Refused, match="failed calling webhook"):
            site.kubectl.create(pod("one", gpu_container(core=5)), namespace=team)
        _others_never_notice(site, team)
        site.kubectl.create(deployment("serve", gpu_container(core=5)), namespace=team)
        wait_for(lambda: site.events(team, "FailedCreate"), "refusal told by an event")
    finally:
        site.rollout(WEBHOOK, 1)
    site.kubectl.rollout("deployment/serve", team)


def test_hanging_gpu_pods_are_refused_in_time(site: Site, cluster: Cluster) -> None:
    team = site.namespace()
    cluster.run("pkill", "-STOP", "-f", "slicekeeper webhook serve")
    try:
        with pytest.raises(Refused, match=r"failed calling webhook .*\?timeout=5s"):
            site.kubectl.create(pod("one", gpu_container(core=5)), namespace=team)
        assert _calls(site), "nothing would be compared"
        assert {one["timeoutSeconds"] for one in webhooks(site, KINDS[0])} == {3}, "before the 5 s of the refusal"
        _others_never_notice(site, team)
    finally:
        cluster.run("pkill", "-CONT", "-f", "slicekeeper webhook serve")
    wait_for(lambda: _admits(site, team), "webhook that answers")


def test_an_expired_certificate_is_refused_and_healed(site: Site) -> None:
    team = site.namespace()
    secret = site.kubectl.get("secret", "slicekeeper-ca", NAMESPACE)
    kept = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    newest = KeyPair(split(kept["ca.crt"])[0], kept["ca.key"])
    expired = sign_server(newest, (HOST,), datetime.now(UTC) - timedelta(minutes=30), timedelta(minutes=10))
    data = {"tls.crt": _encoded(expired.certificate), "tls.key": _encoded(expired.key)}
    site.rollout("deployment/certificates", 0)
    try:
        wait_for(lambda: not site.pods(NAMESPACE, "app.kubernetes.io/name=certificates"), "end of the keeper")
        site.kubectl.patch("secret", "webhook-tls", {"data": data}, NAMESPACE)
        site.rollout(WEBHOOK)  # connections that are open stay good; new ones see what the Secret has
        wait_for(lambda: _refused_for(site, team, "certificate has expired"), "refusal", pause=1)
        _others_never_notice(site, team)
    finally:
        site.rollout("deployment/certificates", 1)
    wait_for(lambda: _admits(site, team), "certificate that is good again", seconds=120, pause=1)


def test_rotation_under_load_fails_no_admission_and_loses_no_report(site: Site) -> None:
    team = site.namespace()
    reporter = Reporter(site, team)
    before = site.kubectl.get("secret", "webhook-tls", NAMESPACE)["data"]["tls.crt"]
    trusted = site.kubectl.get("secret", "slicekeeper-ca", NAMESPACE)["data"]["ca.crt"]
    with patience(site), admissions(site, team) as load:
        # A tenant who accepts no new CA does not affect others.
        stubborn = site.namespace()
        wait_for(lambda: names.CA_CONFIG_MAP in str(site.kubectl.list("configmaps", stubborn)), "CA")
        site.kubectl.patch("configmap", names.CA_CONFIG_MAP, {"data": {"ca.crt": "mine"}, "immutable": True}, stubborn)
        # A CA that is lost can sign no more: a new one is made, the old one stays trusted.
        site.kubectl("delete", "secret", "slicekeeper-ca", "-n", NAMESPACE)
        after = wait_for(lambda: next(_changed(site, before), None), "new certificate")
        bundle = base64.b64decode(site.kubectl.get("secret", "slicekeeper-ca", NAMESPACE)["data"]["ca.crt"])
        assert base64.b64decode(trusted) in bundle
        assert bundle.count(b"BEGIN CERTIFICATE") == base64.b64decode(trusted).count(b"BEGIN CERTIFICATE") + 1
        wait_for(lambda: site.shown_by_webhook() == base64.b64decode(after), "webhook that has it", 120, 2)
        load.wait_for_more()
    assert load.failed == []
    assert load.done > 20
    reporter.goes_on()


def _changed(site: Site, before: str) -> Iterator[str]:
    now = site.kubectl.get("secret", "webhook-tls", NAMESPACE)["data"]["tls.crt"]
    if now != before:
        yield now


def _admits(site: Site, team: str) -> bool:
    return not _refused_for(site, team, "")


def _refused_for(site: Site, team: str, reason: str) -> bool:
    try:
        site.kubectl.create(pod("probe", gpu_container(core=5)), namespace=team, dry_run=True)
    except Refused as error:
        return reason in str(error)
    return False


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
