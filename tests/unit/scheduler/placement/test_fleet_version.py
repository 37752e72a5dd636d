# SPDX-License-Identifier: Apache-2.0
"""Versions of the fleet: what was published stays as it was, whatever is written afterwards."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.placement.demand import Demand, Piece
from scheduler.placement.fleet import Fleet, GpuRow
from scheduler.placement.fleet_version import BLOCK

SHARE = Demand((Piece(("c",), 30, 0, whole=False),), affinity="ns/x", anti_affinity="ns/y", exclusion="ns/z")
LABELS = st.sampled_from([frozenset(), frozenset({"ns/x"}), frozenset({"ns/y"})])
GPUS = st.lists(
    st.builds(
        GpuRow,
        st.sampled_from(["u0", "u1", "u2"]),
        st.sampled_from(["T4", "A100"]),
        st.just(1024),
        core=st.integers(0, 100),
        idle=st.booleans(),
        healthy=st.booleans(),
        affinity=LABELS,
        anti_affinity=LABELS,
        exclusion=st.sampled_from(["", "ns/z"]),
    ),
    max_size=4,
)
NAMES = st.sampled_from([f"n{i}" for i in range(3)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), NAMES, GPUS),
        st.tuples(st.just("cpu_memory"), NAMES, st.integers(0, 64)),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("publish")),
        st.tuples(st.just("branch"), NAMES, GPUS),
    ),
    max_size=25,
)


def seen(version):
    rows = np.arange(len(version.names))
    view = version.view_rows(rows, SHARE)
    arrays = [value.tolist() for value in vars(view).values() if isinstance(value, np.ndarray)]
    uuids = {name: version.uuids(name) for name in version.row_of}
    return arrays, uuids, list(version.names), dict(version.row_of), view.has_friends, version.changed_since(0).tolist()


@given(steps=STEPS)
def test_a_version_never_changes_and_a_fleet_that_goes_its_own_way_changes_no_other(steps):
    fleet = Fleet()
    before = []
    for kind, *what in steps:
        if kind == "set":
            fleet.set(*what)
        elif kind == "cpu_memory" and what[0] in fleet:
            fleet.set_cpu_memory(*what, 7.0)
        elif kind == "remove":
            fleet.remove(*what)
        elif kind == "branch":
            now = seen(fleet.publish())
            other = Fleet(fleet.publish())
            other.set(*what)
            other.remove("n0")
            other.idle().set("new", [])
            assert seen(fleet.publish()) == now
        elif kind == "publish":
            before.append((fleet.publish(), seen(fleet.publish())))
    assert [seen(version) for version, _ in before] == [what for _, what in before]


@given(steps=STEPS)
def test_a_fleet_written_to_with_and_without_publishing_is_the_same(steps):
    quiet, loud = Fleet(), Fleet()
    for kind, *what in steps:
        for fleet in (quiet, loud):
            if kind == "set":
                fleet.set(*what)
            elif kind == "cpu_memory" and what[0] in fleet:
                fleet.set_cpu_memory(*what, 7.0)
            elif kind == "remove":
                fleet.remove(*what)
        loud.publish()
    assert seen(quiet.publish()) == seen(loud.publish())


def test_versions_share_what_has_not_changed():
    fleet = Fleet()
    for n in range(3 * BLOCK):
        fleet.set(f"n{n}", [GpuRow(f"u{n}", "T4", 1024)])
    first = fleet.publish()
    assert fleet.publish() is first
    fleet.set(f"n{BLOCK}", [GpuRow("new", "T4", 1024, core=10)])
    second = fleet.publish()
    assert [one is other for one, other in zip(first.blocks, second.blocks, strict=True)] == [True, False, True]
    assert second.names is first.names
    assert second.changed_since(first.version).tolist() == [BLOCK]
