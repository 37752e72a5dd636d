# SPDX-License-Identifier: Apache-2.0
"""The certificates of a real cert-manager: to it, with it, and back; `make cluster-test-cert-manager` runs it alone."""

from __future__ import annotations

import base64
import os

import pytest
from cluster.harness import certmanager, install
from cluster.harness.admissions import Reporter, admissions
from cluster.harness.charges import charge_of
from cluster.harness.cluster import Cluster
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Refused, wait_for
from cluster.harness.site import Site, gpu_container, job

from slicekeeper import names

pytestmark = pytest.mark.skipif(
    os.environ.get("SLICEKEEPER_CLUSTER_CERT_MANAGER") != "1",
    reason="`make cluster-test-cert-manager` runs it, which builds cert-manager first",
)

VALUES = install.suite(certManager=True)
ISSUED = ("ca", "webhook", "timekeeper")


@pytest.fixture(scope="module", autouse=True)
def _cert_manager(site: Site) -> None:
    """A cluster with cert-manager, in which Slicekeeper's CA is still its own."""
    if site.cluster is None:
        pytest.skip("cert-manager is installed only into a cluster of our own")
    certmanager.install(site.cluster, site.kubectl)


def test_switching_to_it(site: Site) -> None:
    team = site.namespace()
    reporter = Reporter(site, team)
    with admissions(site, team) as load:
        site.kubectl("delete", "deployment/certificates", "-n", NAMESPACE, "--cascade=foreground")
        rights = ("role/certificate-authority", "rolebinding/certificate-authority")
        site.kubectl("delete", "secret/slicekeeper-ca", *rights, "-n", NAMESPACE)
        install.install(site.kubectl, VALUES)
        _wait_ready(site)
        _wait_shown(site)
        # Its first certificates come with its CA: until here kubelet may be quicker with them than we are with trust.
        settled = len(load.failed)
        load.wait_for_more()
    assert len(load.failed) == settled
    reporter.goes_on()


def test_it_works(site: Site) -> None:
    _works(site)


def test_renewal_and_rotation_under_load_fail_no_admission_and_lose_no_report(site: Site) -> None:
    team = site.namespace()
    reporter = Reporter(site, team)
    with admissions(site, team) as load:
        # The CA keeps its key.
        before = _secret(site, "slicekeeper-ca")
        certmanager.renew(site.kubectl, "ca", NAMESPACE)
        after = wait_for(lambda: _changed(site, "slicekeeper-ca", before), "new CA")
        assert after["tls.key"] == before["tls.key"]
        before = _secret(site, "webhook-tls")
        site.kubectl("delete", "secret", "webhook-tls", "-n", NAMESPACE)
        certmanager.renew(site.kubectl, "timekeeper", NAMESPACE)
        after = wait_for(lambda: _changed(site, "webhook-tls", before), "new certificate")
        assert after["tls.key"] != before["tls.key"]
        _wait_ready(site)
        _wait_shown(site)
        load.wait_for_more()
    assert load.failed == []
    reporter.goes_on()


def test_a_lost_ca_is_replaced_under_load(site: Site) -> None:
    team = site.namespace()
    reporter = Reporter(site, team)
    with admissions(site, team) as load:
        before = _secret(site, "slicekeeper-ca")
        site.kubectl("delete", "secret", "slicekeeper-ca", "-n", NAMESPACE)
        after = wait_for(lambda: _changed(site, "slicekeeper-ca", before), "new CA")
        assert after["tls.key"] != before["tls.key"]
        # It signs only days later, when all clients know it.
        wait_for(lambda: {before["tls.crt"], after["tls.crt"]} <= _trusted(site), "trust in both", 180, 2)
        for name in ("webhook", "timekeeper"):
            certmanager.renew(site.kubectl, name, NAMESPACE)
        wait_for(lambda: _secret(site, "webhook-tls")["ca.crt"] == after["tls.crt"], "new certificate")
        _wait_ready(site)
        _wait_shown(site)
        load.wait_for_more()
    assert load.failed == []
    reporter.goes_on()


def test_switching_back(site: Site) -> None:
    team = site.namespace()
    reporter = Reporter(site, team)
    with admissions(site, team) as load:
        site.kubectl("delete", "certificates.cert-manager.io,issuers.cert-manager.io", "--all", "-n", NAMESPACE)
        site.kubectl("delete", "secret/slicekeeper-ca", "-n", NAMESPACE)
        before = _secret(site, "webhook-tls")
        install.install(site.kubectl)
        wait_for(lambda: _changed(site, "webhook-tls", before), "new certificate")
        _wait_shown(site)
        load.wait_for_more()
    assert load.failed == []
    reporter.goes_on()


def test_installed_from_nothing_and_uninstalled(site: Site, cluster: Cluster) -> None:
    install.uninstall(site.kubectl)
    cluster.run("sh", "-c", "rm -rf /var/lib/slicekeeper/volume-1/*")
    site.kubectl.patch("persistentvolume", "volume-1", {"spec": {"claimRef": None}})
    install.install(site.kubectl, VALUES)
    _works(site)
    install.uninstall(site.kubectl, VALUES)
    code, told = site.check("--repair")
    assert code == 0, told
    wait_for(lambda: not site.leftovers(), "end of what the garbage collector takes", pause=2)


def _works(site: Site) -> None:
    """Check that every part is ready, that all trust the CA, and that a Job runs on its slice and is charged."""
    _wait_ready(site)
    wait_for(lambda: site.check() == (0, "nothing is missing, nothing is unmetered\n"), "whole installation", 60, 1)
    team = site.namespace()
    published = wait_for(lambda: site.kubectl.list("configmaps", team), "CA")
    [bundle] = [c["data"][names.CA_KEY] for c in published if c["metadata"]["name"] == names.CA_CONFIG_MAP]
    assert _secret(site, "slicekeeper-ca")["tls.crt"].decode() in bundle
    site.kubectl.create(job("train", gpu_container(script="sleep 2", core=25)), namespace=team)
    site.kubectl.wait("Complete", "job/train", team)
    [done] = site.pods(team)
    closed = wait_for(lambda: [w for w in site.workloads(team).values() if w.state == "closed"], "charge")
    assert closed[0].charged_ms == charge_of(done)
    # It signs no more.
    account = f"--as=system:serviceaccount:{NAMESPACE}:certificates"
    with pytest.raises(Refused, match="forbidden"):
        site.kubectl.acting(account).get("secret", "slicekeeper-ca", NAMESPACE)


def _wait_ready(site: Site) -> None:
    """Wait until cert-manager has nothing more to issue."""
    for name in ISSUED:
        ready = ("--for=condition=Ready", f"certificate.cert-manager.io/{name}", "--timeout=180s")
        site.kubectl("wait", *ready, "-n", NAMESPACE, timeout=190)


def _wait_shown(site: Site) -> None:
    """Wait until the webhook has the newest certificate that is made for it."""
    wait_for(lambda: site.shown_by_webhook() == _secret(site, "webhook-tls")["tls.crt"], "webhook that has it", 180, 2)


def _secret(site: Site, name: str) -> dict[str, bytes]:
    data = site.kubectl.get("secret", name, NAMESPACE)["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def _changed(site: Site, name: str, before: dict[str, bytes]) -> dict[str, bytes]:
    """Return what a Secret holds once it has another certificate."""
    listed = {s["metadata"]["name"] for s in site.kubectl.list("secrets", NAMESPACE)}
    now = _secret(site, name) if name in listed else before
    return now if now["tls.crt"] != before["tls.crt"] else {}


def _trusted(site: Site) -> set[bytes]:
    """Return the CAs that the API server trusts for the webhook."""
    hook = site.kubectl.get("validatingwebhookconfiguration", "slicekeeper")["webhooks"][0]
    bundle = base64.b64decode(hook["clientConfig"]["caBundle"])
    end = b"-----END CERTIFICATE-----\n"
    return {part + end for part in bundle.split(end) if part}
