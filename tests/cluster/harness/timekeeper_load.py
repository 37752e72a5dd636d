# SPDX-License-Identifier: Apache-2.0
"""Send grants, transfers and reports without pause, from a GPU pod, until /tmp/stop exists; print what is acknowledged.

Runs in a pod of the cluster whose image has Slicekeeper's kernel: `timekeeper_load.py NAMESPACE OTHER POD POD_UID`. A
failed request is sent again under the same key until it succeeds; failures other than a lost connection are printed.
The last line of the output is the account, as JSON.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from slicekeeper.errors import ServiceError
from slicekeeper.net.json_client import JsonClient

URL = "https://timekeeper.slicekeeper-system.svc:8444"
SECRETS = "/var/run/secrets/hammer"
STOP = Path("/tmp/stop")
PAUSE = 0.03
REQUESTS_PER_CONNECTION = 25
"""A connection stays with one replica."""


class Hammer:
    """One thread's requests."""

    def __init__(self, account: dict[str, Any]) -> None:
        self._client = JsonClient(URL, ca_file=f"{SECRETS}/ca.crt", token_file=f"{SECRETS}/token")
        self._sent = 0
        self._account = account

    def send(self, path: str, body: dict[str, Any], key: str = "") -> Any:
        """Send until it is taken; return the answer."""
        self._sent += 1
        if self._sent % REQUESTS_PER_CONNECTION == 0:
            self._client.close()
        while True:
            try:
                return self._client.json("POST", path, body=body, headers={"Idempotency-Key": key} if key else {})
            except ServiceError as error:
                if error.status:
                    self._account["refused"].append(str(error))
                else:
                    self._account["lost"] += 1
                time.sleep(0.1)


def grant(account: dict[str, Any], namespace: str, key: str) -> None:
    """Book grants of 1, 2, 3 … ms; every third request is repeated."""
    hammer, n = Hammer(account), 0
    while not STOP.exists():
        n += 1
        for _ in range(1 + (n % 3 == 0)):
            hammer.send(f"/api/v1/budgets/{namespace}/grants", {"amountMs": n, "reason": "load"}, f"{key}-grant-{n}")
        account["grants"], account["granted_ms"] = n, account["granted_ms"] + n
        time.sleep(PAUSE)


def transfer(account: dict[str, Any], namespace: str, other: str, key: str) -> None:
    """Move 1, 2, 3 … ms to another namespace; every third request is repeated."""
    hammer, n = Hammer(account), 0
    while not STOP.exists():
        n += 1
        body = {"to": other, "amountMs": n, "reason": "load"}
        for _ in range(1 + (n % 3 == 0)):
            hammer.send(f"/api/v1/budgets/{namespace}/transfers", body, f"{key}-transfer-{n}")
        account["transfers"], account["moved_ms"] = n, account["moved_ms"] + n
        time.sleep(PAUSE)


def report(account: dict[str, Any], pod: dict[str, str]) -> None:
    """Report 1, 2, 3 … ms of use of this pod's container `train`; every third report is repeated."""
    hammer, n, epoch = Hammer(account), 0, time.time_ns() // 1_000_000
    while not STOP.exists():
        n += 1
        one = {**pod, "container": "train", "epoch": epoch, "seq": n, "usedMs": n, "monotonicNs": time.monotonic_ns()}
        for _ in range(1 + (n % 3 == 0)):
            while True:
                (outcome,) = hammer.send("/api/v1/reports", {"reports": [one]})["outcomes"]
                if outcome.get("reason") != "unknown-pod":
                    break
                time.sleep(PAUSE)  # the ledger has not seen this pod yet
            account[outcome["outcome"]] += 1
        account["used_ms"] = n
        time.sleep(PAUSE)


def main() -> None:
    """Run the three until /tmp/stop is there, and print the account."""
    namespace, other, name, uid = sys.argv[1:]
    account: dict[str, Any] = dict.fromkeys(
        ("grants", "granted_ms", "transfers", "moved_ms", "used_ms", "accepted", "duplicate", "lost"), 0
    )
    account["refused"] = []
    work = [
        threading.Thread(target=grant, args=(account, namespace, name)),
        threading.Thread(target=transfer, args=(account, namespace, other, name)),
        threading.Thread(
            target=report, args=(account, {"namespace": namespace, "podName": name, "podUid": uid}), daemon=True
        ),
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    print(json.dumps(account), flush=True)


if __name__ == "__main__":
    main()
