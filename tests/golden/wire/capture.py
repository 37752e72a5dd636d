# SPDX-License-Identifier: Apache-2.0
"""Records what goes over the sockets between kubelet's own code (`kubelet.go`) and the node agent's, one file a call.

    cd tests/golden/wire && go mod init wire && go get k8s.io/kubelet@v0.36.3 && go mod tidy && go build -o /tmp/wire .
    cd ../../.. && PYTHONPATH=tests/unit/nodeagent .venv/bin/python tests/golden/wire/capture.py /tmp/wire

then delete `go.mod` and `go.sum`. A file has two lines in hexadecimal: what the client sent, and what the server did.
`arbiter.txt` is a talk with the real arbiter on fake GPUs, a line asked and a line answered by turns.

A new record has the messages of the one before, byte for byte, but for the seat's name in `Allocate`, which is never
used twice. What HTTP/2 has around them differs: the sockets' paths, pings, windows, and how often each side said so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from nodeagent.device_plugin import SOCKET
from nodeagent.kubelet_protocol import REGISTER, VERSION, call, plugin
from nodeagent.pod_resources import PodResources

HERE = Path(__file__).parent
NVIDIA = ("nvidia.com/gpu",)


@contextmanager
def relay(at: Path, to: Path, name: str) -> Iterator[None]:
    """Pass the bytes of one connection on, and write them down."""
    listener = socket.socket(socket.AF_UNIX)
    at.unlink(missing_ok=True)
    listener.bind(str(at))
    listener.listen(1)
    said: dict[str, bytearray] = {"client": bytearray(), "server": bytearray()}

    def pump(who: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other side was faster to hang up
            while data := source.recv(65536):
                said[who] += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(to))
        threading.Thread(target=pump, args=("server", server, client), daemon=True).start()
        pump("client", client, server)

    threading.Thread(target=serve, daemon=True).start()
    yield
    time.sleep(0.5)
    (HERE / f"{name}.txt").write_text("".join(f"{who}: {data.hex()}\n" for who, data in said.items()))


def main(program: str) -> None:
    """Record every call."""
    spec = importlib.util.spec_from_file_location("bench", HERE.parents[1] / "unit/nodeagent/conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = Path(tempfile.mkdtemp(prefix="wire"))
    bench = module.Bench(folder)
    bench.pods.add("train-x7k2p", gpu=0)
    bench.kubelet.owners = {"seat-0003": [("team", "train-x7k2p", "train")]}
    at = folder / "relay.sock"
    for method in ("GetDevicePluginOptions", "ListAndWatch", "Allocate", "PreStartContainer"):
        with relay(at, folder / "plugins" / SOCKET, method):
            subprocess.run([program, "ask", str(at), method], check=True)
    bench.plugin.stop()
    bench.kubelet.stop()
    kubelet = subprocess.Popen([program, "serve", str(folder / "kubelet.sock")])
    time.sleep(1)
    with relay(at, folder / "kubelet.sock", "Register"), grpc.insecure_channel(f"unix://{at}") as channel:
        request = plugin.RegisterRequest(
            version=VERSION,
            endpoint=SOCKET,
            resource_name="slicekeeper.io/seat",
            options=plugin.DevicePluginOptions(pre_start_required=True),
        )
        call(channel, REGISTER, request, plugin.Empty)
    client = PodResources(at, "slicekeeper.io/seat")
    with relay(at, folder / "kubelet.sock", "List"):
        print(client.owners("seat-0003"))
    with relay(at, folder / "kubelet.sock", "GetAllocatableResources"):
        print(client.devices(NVIDIA))
    kubelet.kill()


if __name__ == "__main__":
    main(sys.argv[1])
