# SPDX-License-Identifier: Apache-2.0
"""What a pod costs that becomes known a month late, in a namespace that had many pods since.

    .venv/bin/python benchmarks/timekeeper/late.py [PODS]

CPU seconds of the transaction; on SQLite nothing else writes meanwhile. The first row is what everything since costs if
it is settled again. `verify` must find no difference afterwards.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ledger import made, opening, table
from load import uid
from statement import NAMESPACE, NOW, POLICY, START, fill

from slicekeeper.units import MS_PER_HOUR, Instant
from timekeeper.ledger import workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.settlement import settle_in
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

LATE = 5 * 10**8


def main() -> None:
    """Measure and print."""
    pods = int(sys.argv[1]) if len(sys.argv) > 1 else 90_000
    rows = []
    with tempfile.TemporaryDirectory(prefix="slicekeeper-bench-") as folder, made("SQLite", Path(folder)) as it:
        fill(it, pods)
        books = Books(Database(make_engine(it.url)), "default", carry=False)

        def measure(what: str, work: Callable[[], object]) -> None:
            begun = time.process_time()
            work()
            rows.append((what, time.process_time() - begun))

        def apply(pod: int, end: int | None) -> None:
            opened = [opening(pod, START + MS_PER_HOUR, NAMESPACE)]
            closed = [] if end is None else [Closing(uid(pod), Instant(end), "finished")]
            workload.apply(books, opened, closed, POLICY, Instant(NOW))

        settled = lambda session: settle_in(books, session, 1, Instant(START), Instant(NOW))  # noqa: E731
        measure("everything again, which also makes the checkpoints", lambda: books.database.write(settled))
        measure("a pod of an hour becomes known", lambda: apply(LATE, START + 2 * MS_PER_HOUR))
        measure("a pod becomes known that still runs", lambda: apply(LATE + 1, None))
        measure("its end becomes known, a month late", lambda: apply(LATE + 1, START + 3 * MS_PER_HOUR))
        assert not verify(books.database.engine, carry=False).differences
        books.database.close()
    table(f"SQLite: a month late, {pods:,} pods since", ("", "CPU s"), rows)


if __name__ == "__main__":
    main()
