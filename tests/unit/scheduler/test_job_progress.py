# SPDX-License-Identifier: Apache-2.0
"""A Job's status says how many of its pods have succeeded, whether or not they are still there."""

from support.gang_world import pod
from support.manual_clock import ManualClock

from scheduler.job_progress import PAUSE_SECONDS, JobProgress
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
    assert progress.succeeded([WAITS]) == {}
    clock.advance(int(PAUSE_SECONDS * 1000))
    assert progress.succeeded([WAITS]) == {"j": 1}


def test_pods_of_other_controllers_ask_for_nothing():
    other = pod("p", gang="job:j")
    other["metadata"]["ownerReferences"][0]["kind"] = "PyTorchJob"
    server = Server()
    assert JobProgress(server, ManualClock()).succeeded([read(other), read(pod("q"))]) == {}
    assert not server.asked
