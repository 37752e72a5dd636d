# SPDX-License-Identifier: Apache-2.0
"""Budgets through the API server: users act with their identity in the cluster, and none can act as another."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import wait_for
from cluster.harness.role_bindings import role_binding, service_account
from cluster.harness.site import Site

from slicekeeper import names
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import KubeClient

API = f"/apis/{names.API}"
GRANT = {"amountMs": 1000, "reason": "mine"}
RULE = {"amountMs": 10**12, "period": "none", "timeZone": "UTC"}


def _available(site: Site) -> bool:
    conditions = site.kubectl.get("apiservice", names.API_SERVICE).get("status", {}).get("conditions", [])
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)


def _viewer(site: Site, team: str) -> tuple[Path, str]:
    """Create a user who may read a namespace's budget; return their kubeconfig and their token."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "jane"}}
    binding = role_binding("jane", "slicekeeper-budget-viewer", service_account("jane", team))
    site.kubectl.apply(account, binding, namespace=team)
    token = site.kubectl("create", "token", "jane", "-n", team).strip()
    config = yaml.safe_load(site.kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = site.folder / f"{team}.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
    return file, token


def test_an_administrator_with_a_certificate_needs_neither_a_token_nor_a_forwarded_port(site: Site) -> None:
    wait_for(lambda: _available(site), "the API")
    team = site.namespace()
    code, told = site.slicekeeper("budget", "grant", team, "1h", "--reason", "by certificate", "-o", "json")
    assert (code, json.loads(told)["grantedMs"]) == (0, 3_600_000), told
    for command in (("budget", "list"), ("pods", "-n", team), ("budget", "statement", team)):
        code, told = site.slicekeeper(*command)
        assert code == 0, told
    told = site.kubectl("get", "--raw", f"{API}/audit?namespace={team}")
    assert [(e["action"], e["actor"]) for e in json.loads(told)["items"]][-1] == ("grant", "admin")


def test_kubectl_runs_and_completes_the_plugin_as_who_it_is_itself(site: Site) -> None:
    wait_for(lambda: _available(site), "the API")
    team = site.namespace()
    kubeconfig, _ = _viewer(site, team)
    config = yaml.safe_load(kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = team
    kubeconfig.write_text(yaml.safe_dump(config))
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": programs, "HOME": str(site.folder), "KUBECONFIG": str(kubeconfig)}

    def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(site.kubectl.program), *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=180)

    shown = kubectl("gpubudget", "get")
    assert (shown.returncode, [line.split()[0] for line in shown.stdout.splitlines()]) == (0, ["NAMESPACE", team])
    refused = kubectl("gpubudget", "grant", team, "1h")
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert f"may not create gpubudgets/grants in namespace {team}" in refused.stderr
    completed = kubectl("__complete", "gpubudget", "stat")
    assert [line.split("\t")[0] for line in completed.stdout.splitlines()] == ["statement", "status", ":4"]


def test_a_namespaces_user_reads_its_own_budget_and_gets_no_further(site: Site) -> None:
    wait_for(lambda: _available(site), "the API")
    mine, other = site.namespace(), site.namespace()
    kubeconfig, token = _viewer(site, mine)
    code, told = site.slicekeeper("budget", "get", mine, "--kubeconfig", str(kubeconfig), "-o", "json")
    assert (code, json.loads(told)["namespace"]) == (0, mine), told
    code, told = site.slicekeeper("budget", "get", other, "--kubeconfig", str(kubeconfig))
    assert code == 1
    assert f"system:serviceaccount:{mine}:jane may not get gpubudgets in namespace {other}" in told
    as_admin = {
        "X-Remote-User": "admin",
        "X-Remote-Group": "system:masters",
        "X_Remote_User": "admin",
        "X_Remote_Group": "system:masters",
    }
    impersonation = {"Impersonate-User": "admin"}
    client = site.client(token)
    refused: list[tuple[str, str, Any, dict[str, str]]] = [
        ("GET", f"budgets/{other}", None, {}),
        ("GET", f"budgets/{other}", None, as_admin),
        ("GET", f"budgets/{other}", None, impersonation),
        ("GET", f"budgets/{other}/statement", None, {}),
        ("GET", f"budgets/{other}/entries", None, {}),
        ("GET", f"budgets/{other}/grants", None, {}),
        ("GET", f"usage/{other}", None, {}),
        ("GET", "budgets", None, {}),
        ("GET", "budgets", None, as_admin),
        ("GET", "workloads", None, {}),
        ("GET", f"workloads?namespace={other}", None, {}),
        ("GET", "usage", None, {}),
        ("GET", "decisions", None, {}),
        ("GET", "parents", None, {}),
        ("GET", "rates", None, {}),
        ("GET", "audit", None, {}),
        ("GET", f"audit?namespace={mine}", None, as_admin),
        ("PUT", f"budgets/{mine}", RULE, {}),
        ("PATCH", f"budgets/{mine}", {"amountMs": 10**12}, as_admin),
        ("PUT", f"budgets/{mine}/status", {"status": "active", "reason": "r"}, {}),
        ("PUT", f"budgets/{mine}/parent", {"parent": None, "reason": "r"}, {}),
        ("POST", f"budgets/{mine}/grants", GRANT, {}),
        ("POST", f"budgets/{mine}/grants", GRANT, as_admin),
        ("POST", f"budgets/{mine}/adjustments", GRANT, {}),
        ("POST", f"budgets/{mine}/transfers", {**GRANT, "to": other}, {}),
        ("POST", f"budgets/{other}/transfers", {**GRANT, "to": mine}, {}),
        ("POST", "rates", {"model": "A100", "rate": "1/1000", "reason": "r"}, {}),
        ("PUT", "parents/mine", {**RULE, "kind": "team"}, {}),
        ("DELETE", f"budgets/{mine}/grants/1", None, {}),
        ("POST", "reports", {"reports": []}, {}),
    ]
    for method, path, body, headers in refused:
        assert _status(client, method, f"{API}/{path}", body, headers) in (403, 404), (method, path)
    assert _status(client, "GET", f"{API}/budgets/{mine}", None, as_admin) == 200
    audit = json.loads(site.kubectl("get", "--raw", f"{API}/audit?namespace={mine}"))["items"]
    assert not [entry for entry in audit if "jane" in entry["actor"]]


def test_a_lead_grants_to_the_teams_namespaces_alone_and_an_auditor_reads_all(site: Site) -> None:
    """The administrator plays both: the kubeconfig names the user to impersonate."""
    wait_for(lambda: _available(site), "the API")
    mine, other = site.namespace(), site.namespace()
    binding = role_binding("c21-lead", "slicekeeper-budget-manager", {"kind": "User", "name": "c21-lead"})
    site.kubectl.apply(binding, namespace=mine)
    auditor_of = {"kind": "User", "name": "c21-auditor"}
    everywhere = role_binding("c21-auditor", "slicekeeper-budget-auditor", auditor_of, everywhere=True)
    site.kubectl.apply(everywhere)
    try:
        lead, auditor = _acting(site, "c21-lead"), _acting(site, "c21-auditor")
        wait_for(lambda: site.slicekeeper("budget", "grant", mine, "1h", *lead)[0] == 0, "right to grant")
        wait_for(lambda: site.slicekeeper("budget", "get", "-A", *auditor)[0] == 0, "right to read")
        refused = [
            (lead, "grant", other, "1h"),
            (lead, "transfer", mine, "1m", other), (lead, "transfer", other, "1m", mine), (lead, "get", other),
            (lead, "get", "-A"), (lead, "audit"), (lead, "adjust", other, "1h"), (lead, "set", other, "1h"),
            (lead, "rates", "A100", "2"), (lead, "move", mine), (auditor, "grant", mine, "1h"),
            (auditor, "adjust", mine, "1h"), (auditor, "set", mine, "1h"), (auditor, "rates", "A100", "2"),
            (auditor, "status", mine, "suspended"), (auditor, "transfer", mine, "1m", other),
        ]  # fmt: skip
        for who, *words in refused:
            code, told = site.slicekeeper("budget", *words, *who)
            assert (code != 0, "Traceback" in told) == (True, False), (who, words, told)
        code, told = site.slicekeeper("budget", "audit", mine, *auditor, "-o", "json")
        assert {(e["action"], e["actor"]) for e in json.loads(told)} == {("grant", "c21-lead")}
    finally:
        site.kubectl("delete", "clusterrolebinding", "c21-auditor")


def _acting(site: Site, user: str) -> tuple[str, str]:
    config = yaml.safe_load(site.kubectl.kubeconfig.read_text())
    config["users"][0]["user"]["as"] = user
    file = site.folder / f"{user}.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
    return "--kubeconfig", str(file)


def _status(client: KubeClient, method: str, url: str, body: Any, headers: dict[str, str]) -> int:
    more = {**headers, "Idempotency-Key": "k"}
    try:
        return client._http.request(method, url, body=body, headers=more)[0]
    except ServiceError as error:
        return error.status


def test_past_the_api_server_its_headers_count_for_nothing(site: Site) -> None:
    team = site.namespace()
    headers = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
    admin = yaml.safe_load(site.kubectl.kubeconfig.read_text())["users"][0]["user"]
    pem = site.folder / "admin.pem"
    pem.touch(mode=0o600)
    with site.timekeeper_url() as url:
        ca = site.timekeeper_ca()
        for target in (f"/api/v1/budgets/{team}", f"{API}/budgets/{team}"):
            answer = urllib3.PoolManager(ca_certs=ca).request("GET", url + target, headers=headers, retries=False)
            assert (answer.status, answer.json()["code"]) == (401, "unauthenticated")
    if "client-certificate-data" not in admin:
        pytest.skip("the administrator has no certificate")
    pem.write_bytes(base64.b64decode(admin["client-certificate-data"]) + base64.b64decode(admin["client-key-data"]))
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(pem)
    with site.timekeeper_url() as url, pytest.raises(urllib3.exceptions.HTTPError):
        # Of the cluster's own CA, by which users are known, and not of the front proxy's.
        urllib3.PoolManager(ssl_context=context).request("GET", f"{url}/readyz", headers=headers, retries=False)


def test_namespaces_go_while_the_timekeeper_is_there(site: Site) -> None:
    """An API that does not answer would keep every namespace of the cluster from being deleted."""
    wait_for(lambda: _available(site), "the API")
    team = site.namespace()
    site.kubectl("delete", "namespace", team, "--timeout=180s", timeout=190)
    assert site.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name")
