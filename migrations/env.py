# SPDX-License-Identifier: Apache-2.0
"""What Alembic runs: one transaction for all steps, so that a broken migration leaves the database as it was.

`timekeeper.store.db.migrate` hands in the connection. The plain `alembic` command, for writing new migrations, makes
its own from `-x url=…`.
"""

from alembic import context
from sqlalchemy import Connection

from timekeeper.store.db.engine import WRITES, make_engine
from timekeeper.store.db.models import Base


def _walk(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _walk(given)
else:
    url = context.get_x_argument(as_dictionary=True)["url"]
    with make_engine(url).execution_options(**{WRITES: True}).begin() as own:
        _walk(own)
