# SPDX-License-Identifier: Apache-2.0
"""A Job's status says how many of its pods have succeeded, whether or not they are still there."""

from support.gang_world import pod
from support.manual_clock import ManualClock

from scheduler.job_progress import PAUSE_SECONDS, READS_PER_ROUND, JobProgress
from scheduler.pods import read_pod
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Unavailable
from slicekeeper.kube.client import JOBS


class Server:
    """Jobs by name; `asked` are the requests."""

    def __init__(self, **jobs):
        self.jobs, self.asked = jobs, []

    def find(self, resource, name, namespace):
        assert resource is JOBS
        self.asked.append(f"{namespace}/{name}")
        found = self.jobs.get(name)
        if isinstance(found, Exception):
            raise found
        return found


def job(uid, **status):
    return {"metadata": {"uid": uid}, "status": status}


def read(obj):
    return read_pod(obj, Resources())


WAITS = read(pod("p", gang="job:j"))


def test_pods_that_the_jobs_controller_has_yet_to_count_are_counted():
    server = Server(train=job("j", succeeded=3, uncountedTerminatedPods={"succeeded": ["a", "b"], "failed": ["c"]}))
    assert JobProgress(server, ManualClock()).succeeded([WAITS, WAITS]) == {"j": 5}
    assert server.asked == ["team-a/train"]


def test_a_new_job_of_the_same_name_says_nothing_of_the_old_one():
    assert JobProgress(Server(train=job("other", succeeded=3)), ManualClock()).succeeded([WAITS]) == {}


def test_without_an_answer_nothing_is_known():
    assert JobProgress(Server(), ManualClock()).succeeded([WAITS]) == {}
    assert JobProgress(Server(train=Unavailable("away")), ManualClock()).succeeded([WAITS]) == {}
    assert JobProgress(Server(train=job("j")), ManualClock()).succeeded([WAITS]) == {"j": 0}


def test_a_job_is_read_again_after_a_pause():
    server, clock = Server(train=job("j", succeeded=1)), ManualClock()
    progress = JobProgress(server, clock)
    assert progress.succeeded([WAITS]) == {"j": 1}
    clock.advance(2_000)
    assert progress.succeeded([WAITS]) == {}
    clock.advance(int(PAUSE_SECONDS * 1000))
    assert progress.succeeded([WAITS]) == {"j": 1}


def test_pods_of_other_controllers_ask_for_nothing():
    other = pod("p", gang="job:j")
    other["metadata"]["ownerReferences"][0]["kind"] = "PyTorchJob"
    server = Server()
    assert JobProgress(server, ManualClock()).succeeded([read(other), read(pod("q"))]) == {}
    assert not server.asked


def of_job(namespace, number):
    made = pod(f"{namespace}-{number}", gang="job:j", namespace=namespace)
    owner = made["metadata"]["ownerReferences"][0]
    owner["name"], owner["uid"] = f"train-{number}", f"{namespace}-{number}"
    return read(made)


def test_a_namespace_with_a_thousand_jobs_delays_no_other_one():
    crowd = [of_job("crowd", number) for number in range(1_000)]
    few = [of_job(f"few-{number}", 0) for number in range(30)]
    server, clock = Server(), ManualClock()
    progress = JobProgress(server, clock)
    for _ in range(4):
        before = len(server.asked)
        progress.succeeded([*crowd, *few])
        progress.succeeded([*crowd, *few])
        assert len(server.asked) == before + READS_PER_ROUND, "once a second, however many rounds the gangs have"
        clock.advance(1_000)
    assert {f"few-{number}/train-0" for number in range(30)} <= set(server.asked)
    assert len(set(server.asked)) == 4 * READS_PER_ROUND


def test_every_namespace_has_its_turn_among_many_with_many_jobs():
    pods = [of_job(f"n-{namespace}", number) for namespace in range(50) for number in range(50)]
    server, clock = Server(), ManualClock()
    progress = JobProgress(server, clock)
    for _ in range(5):
        progress.succeeded(pods)
        clock.advance(1_000)
    read_of = [name.partition("/")[0] for name in server.asked]
    assert {read_of.count(f"n-{namespace}") for namespace in range(50)} == {2}


def test_a_round_ends_when_the_api_server_does_not_answer():
    server, clock = Server(**{f"train-{number}": Unavailable("away") for number in range(9)}), ManualClock()
    JobProgress(server, clock).succeeded([of_job("n", number) for number in range(9)])
    assert len(server.asked) == 1
