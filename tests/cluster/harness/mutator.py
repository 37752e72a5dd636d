# SPDX-License-Identifier: Apache-2.0
"""Another project's mutating webhook, as a mesh has one: adds a sidecar of its own to every pod, first or last.

Runs in a pod of the cluster with nothing but Python; the path says what it adds: `/first/NAME` or `/last/NAME`.
"""

import base64
import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Mutator(BaseHTTPRequestHandler):
    """Answers AdmissionReviews."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, place, name = self.path.split("?")[0].split("/")
        spec = review["request"]["object"]["spec"]
        there = spec.get("initContainers") or []
        patch = []
        if all(container["name"] != name for container in there):
            ours = {
                "name": name,
                "image": "slicekeeper.test/shell:1",
                "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 1; done"],
                "restartPolicy": "Always",
            }
            containers = [ours, *there] if place == "first" else [*there, ours]
            patch.append({"op": "add", "path": "/spec/initContainers", "value": containers})
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }
        review = {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve with the certificate in the folder that is named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{sys.argv[1]}/tls.crt", f"{sys.argv[1]}/tls.key")
    server = ThreadingHTTPServer(("0.0.0.0", 8443), Mutator)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
