# SPDX-License-Identifier: Apache-2.0
"""How the cost of a review grows with the pod: CPU time for 1 to 100 containers that each hold a share.

    .venv/bin/python benchmarks/webhook/growth.py

Prints Markdown. The CPU time of this process is counted, so other load on the machine hardly matters.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import orjson
from reviews import pod, review

from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.settings import Settings
from webhook.admission import Admission
from webhook.admission_review import Reviewer
from webhook.json_patch import apply
from webhook.review_inputs import Case

SIZES = (1, 2, 5, 10, 20, 50, 100)


def microseconds(call: Callable[[], object]) -> float:
    """Median over batches of the CPU time of one call."""
    batches = []
    for _ in range(7):
        begin, count = time.process_time(), 0
        while time.process_time() - begin < 0.05:
            call()
            count += 1
        batches.append((time.process_time() - begin) / count * 1e6)
    return statistics.median(batches)


def main() -> None:
    settings, book = Settings(), PolicyBook()
    admission = Admission(settings)
    case = Case("research", book.default)
    reviewer = Reviewer(admission, lambda _namespace: case)
    print("| GPU containers | body KB | parse JSON µs | mutate µs | per container | validate µs | patch operations |")
    print("| ---: " * 7 + "|")
    for size in SIZES:
        body = review(pod(size))
        patch = admission.mutate(pod(size), case).patch
        after = review(apply(pod(size), patch))
        assert reviewer.validate(after).verdict.allowed
        parse = microseconds(lambda body=body: orjson.loads(body))
        mutate = microseconds(lambda body=body: reviewer.mutate(body))
        validate = microseconds(lambda after=after: reviewer.validate(after))
        cells = (size, f"{len(body) / 1024:.1f}", f"{parse:.0f}", f"{mutate:.0f}", f"{mutate / size:.1f}")
        print("| " + " | ".join(map(str, (*cells, f"{validate:.0f}", len(patch)))) + " |")


if __name__ == "__main__":
    main()
