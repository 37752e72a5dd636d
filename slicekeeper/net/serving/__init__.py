# SPDX-License-Identifier: Apache-2.0
"""How every part serves HTTP: one event loop per process, which no client can block.

`process` runs a part's application under gunicorn; `background` runs probes and metrics beside a part's other work;
`gunicorn_options` has what both set, such as how gunicorn logs.
Both accept connections through `connection_limits`, which limits their number, and serve each with `connection`, which
limits how long a client may take. `bodies` limits the memory of unfinished requests, and `wsgi` calls Flask from the
loop.
Certificates are reloaded by `slicekeeper.net.tls`. An application gets a request only when it has arrived completely.
"""
