# SPDX-License-Identifier: Apache-2.0
"""CDI's edits are applied to a container's OCI configuration as a container runtime applies them."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks/gpu"))
from container_node import oci_config


def test_a_device_file_keeps_its_numbers_and_is_allowed_alone():
    there = Path("/dev/null").stat().st_rdev
    made = oci_config({"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]}, {}, ["a"])
    [device] = made["linux"]["devices"]
    numbers = {"type": "c", "major": os.major(there), "minor": os.minor(there)}
    assert device == {"path": "/dev/nvidia0", "fileMode": 0o666, **numbers}
    assert made["linux"]["resources"]["devices"] == [
        {"allow": False, "access": "rwm"},
        {"allow": True, "access": "rwm", **numbers},
    ]


def test_variables_of_the_edits_come_before_the_containers_own():
    made = oci_config({"env": ["A=1=2", "B=3"]}, {"A": "own", "C": "own"}, ["a"])
    assert sorted(made["process"]["env"]) == ["A=1=2", "B=3", "C=own"]


@pytest.mark.parametrize(("given", "options"), [(["ro", "bind"], ["ro", "bind"]), (["ro"], ["ro", "rbind"])])
def test_a_mount_is_a_bind_mount_with_its_options(given, options):
    made = oci_config({"mounts": [{"hostPath": "/a", "containerPath": "/b", "options": given}]}, {}, ["a"])
    assert made["mounts"][-1] == {"destination": "/b", "type": "bind", "source": "/a", "options": options}


def test_hooks_are_run_when_the_edits_say():
    hook = {"hookName": "createContainer", "path": "/h", "args": ["h", "x"], "other": 1}
    made = oci_config({"hooks": [hook]}, {}, ["a"])
    assert made["hooks"] == {"createContainer": [{"path": "/h", "args": ["h", "x"]}]}
