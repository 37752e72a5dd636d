# SPDX-License-Identifier: Apache-2.0
"""The annotation by which a node's agent is asked: an IP and a port, and nothing that leads elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from slicekeeper import names
from slicekeeper.kube import agent_address


@pytest.mark.parametrize(("ip", "port", "value"), [
    ("10.1.2.3", 8446, "10.1.2.3:8446"), ("fd00::12", 80, "[fd00::12]:80"), ("203.0.113.9", 65535, "203.0.113.9:65535"),
])  # fmt: skip
def test_what_an_agent_writes_is_read_back(ip: str, port: int, value: str) -> None:
    assert agent_address.encode(ip, port) == value
    assert agent_address.decode(value) == (ip, port)


@pytest.mark.parametrize("value", [
    "", "10.1.2.3", ":8446", "10.1.2.3:", "10.1.2.3:0", "10.1.2.3:08", "10.1.2.3:65536", "10.1.2.3:84a", "node-1:8446",
    "localhost:80", "http://10.1.2.3:80", "10.1.2.3:80/x", "10.1.2.3:80\r\nHost: x", " 10.1.2.3:80", "10.1.2.3:80 ",
    "010.1.2.3:80", "10.1.2:80", "0x7f.1.1.1:80", "2130706433:80", "[10.1.2.3]:80", "fd00::12:80", "[fd00::12]",
    "[fd00::12%eth0]:80", "[fd00:::1]:80", "user@10.1.2.3:80", "169.254.169.254:80", "[fe80::1]:80", "0.0.0.0:80",
    "224.0.0.1:80", "[ff02::1]:80", "١٠.1.2.3:80", "stopping",
])  # fmt: skip
def test_everything_else_is_refused(value: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - ipaddress's own among them
        agent_address.decode(value)


@pytest.mark.parametrize(("metadata", "value"), [
    ({}, ""), ({"annotations": None}, ""), ({"annotations": {names.NODE_AGENT: 7}}, ""),
    ({"annotations": {names.NODE_AGENT: "10.1.2.3:80"}}, "10.1.2.3:80"),
])  # fmt: skip
def test_a_node_may_have_none(metadata: dict[str, Any], value: str) -> None:
    assert agent_address.of_node({"metadata": metadata}) == value
