# SPDX-License-Identifier: Apache-2.0
"""A gang starts whole or not at all, with the real kube-scheduler and Job controller."""

from __future__ import annotations

from cluster.harness.kubectl import Object, wait_for
from cluster.harness.site import Site, gpu_container, job, pod

from slicekeeper import names


def _gang(name: str, *, core: int, blocks: int, count: int = 8) -> Object:
    made = job(name, gpu_container(core=core, blocks=blocks), count=count)
    made["spec"]["template"]["metadata"]["annotations"] = {names.GANG_SIZE: str(count)}
    return made


def _bound(site: Site, namespace: str, name: str) -> list[Object]:
    pods = site.pods(namespace, f"job-name={name}")
    return [p for p in pods if names.BOUND_AT in p["metadata"].get("annotations", {})]


def _told(site: Site, namespace: str, *words: str) -> bool:
    notes = [event.get("note") or event.get("message") or "" for event in site.events(namespace, "FailedScheduling")]
    return any(all(word in note for word in words) for note in notes)


def test_a_gang_of_eight_starts_whole_or_not(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("in-the-way", gpu_container(core=60, blocks=1)), namespace=team)
    wait_for(lambda: names.BOUND_AT in site.pod(team, "in-the-way")["metadata"]["annotations"], "it has its place")
    # Four GPUs: seven halves are free, and eight are asked for.
    site.kubectl.create(_gang("eight", core=50, blocks=1), namespace=team)
    wait_for(lambda: _told(site, team, "gang Job eight waits for room for all", "of 8 pods"), "word why they wait")
    assert _bound(site, team, "eight") == []
    site.kubectl("delete", "pod", "in-the-way", "-n", team, "--wait=false")
    wait_for(lambda: len(_bound(site, team, "eight")) == 8, "all eight bound", pause=0.1)
    pods = _bound(site, team, "eight")
    gpus = [p["metadata"]["annotations"][names.gpu_annotation("train")] for p in pods]
    assert sorted(map(gpus.count, set(gpus))) == [2, 2, 2, 2]


def test_unequal_pods_that_fill_the_free_gpus_exactly_start_together(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("in-the-way", gpu_container(core=20, blocks=1)), namespace=team)
    wait_for(lambda: names.BOUND_AT in site.pod(team, "in-the-way")["metadata"]["annotations"], "it has its place")
    # Four GPUs: 80 and three times 100 percent are free. One after the other, the last of them would find no place.
    sizes = (60, 60, 60, 55, 40, 40, 40, 25)
    gang = {names.GANG: "unequal", names.GANG_SIZE: str(len(sizes))}
    for index, core in enumerate(sizes):
        made = pod(f"p{index}", gpu_container(core=core, blocks=1), annotations=gang)
        site.kubectl.create(made, namespace=team)

    def have_places() -> bool:
        return all(names.BOUND_AT in p["metadata"].get("annotations", {}) for p in site.pods(team))

    wait_for(have_places, "all bound", pause=0.1)
    gpus = [p["metadata"]["annotations"][names.gpu_annotation("train")] for p in site.pods(team)]
    assert len(set(gpus)) == 4
