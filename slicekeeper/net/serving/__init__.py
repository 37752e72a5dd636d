# SPDX-License-Identifier: Apache-2.0
"""The one way in which every part serves HTTP: one event loop per process, which no client can hold up.

`process` runs a part's application under gunicorn; `background` runs probes and metrics beside a part's other work.
Both accept connections through `door`, which bounds how many there are, and serve each by `connection`, which bounds
how long a client may take. `bodies` bounds what unfinished requests hold in memory, `wsgi` calls Flask from the loop,
and `tls` follows certificates that change. An application sees a request only once all of it has come.
"""
