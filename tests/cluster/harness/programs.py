# SPDX-License-Identifier: Apache-2.0
"""Command lines and configuration of every program of a cluster; nothing is started here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cluster.harness import control_groups
from cluster.harness.binaries import NEWEST, Binaries
from cluster.harness.namespaces import API_SERVICE_IP, NODE_IP, POD_CIDR, SERVICE_CIDR
from cluster.harness.pki import Authority, service_account_key

NODE = "node-1"
API = f"https://{NODE_IP}:6443"
ISSUER = "https://kubernetes.default.svc"
PAUSE_IMAGE = "slicekeeper.test/pause:1"
MAX_PODS = 250


@dataclass(frozen=True)
class Program:
    """One program of a cluster."""

    name: str
    command: tuple[str, ...]
    health: str
    """URL or socket file that says it is up; empty: nothing to wait for."""


class Programs:
    """Writes all configuration below `folder` and knows how each program is started."""

    def __init__(self, folder: Path, binaries: Binaries) -> None:
        self._folder = folder
        self._binaries = binaries
        self.pki = Authority(folder / "pki")
        self._signing = service_account_key(folder / "pki")
        hosts = (NODE_IP, API_SERVICE_IP, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc")
        self.pki.issue("apiserver", user="kube-apiserver", groups=("system:masters",), hosts=hosts)
        self.pki.issue("admin", user="admin", groups=("system:masters",))
        self.pki.issue("controller-manager", user="system:kube-controller-manager")
        self.pki.issue("scheduler", user="system:kube-scheduler")
        self.pki.issue("kube-proxy", user="system:kube-proxy")
        self.pki.issue("kubelet", user=f"system:node:{NODE}", groups=("system:nodes",), hosts=(NODE_IP, NODE))
        # As kubeadm does: a CA of its own, by which other servers know the API server when it passes requests on.
        self.front_proxy = Authority(folder / "pki/front-proxy")
        self.front_proxy.issue("client", user="front-proxy-client")
        for client in ("admin", "controller-manager", "scheduler", "kube-proxy", "kubelet"):
            self.pki.write_kubeconfig(client, API, folder / f"{client}.kubeconfig")

    def control_plane(self) -> list[Program]:
        """Start etcd and the API server, then the programs that need them."""
        return [self._etcd(), self._apiserver(), self._controller_manager(), self._scheduler()]

    def node(self) -> list[Program]:
        """The container runtime, kubelet, and what gives pods services and names."""
        return [self._containerd(), self._kubelet(), self._kube_proxy(), self._coredns()]

    def _etcd(self) -> Program:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return Program(
            "etcd",
            (
                str(self._binaries.etcd), "--data-dir", str(self._folder / "etcd"),
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
            ),
            f"{client}/health",
        )  # fmt: skip

    def _apiserver(self) -> Program:
        pki = self.pki.folder
        return Program(
            "kube-apiserver",
            (
                str(self._binaries.kubernetes / "kube-apiserver"),
                "--etcd-servers=http://127.0.0.1:2379",
                f"--advertise-address={NODE_IP}", "--bind-address=0.0.0.0", "--secure-port=6443",
                f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
                f"--client-ca-file={pki}/ca.crt", "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
                f"--service-account-issuer={ISSUER}", f"--service-account-key-file={self._signing}",
                f"--service-account-signing-key-file={self._signing}",
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                f"--kubelet-client-certificate={pki}/apiserver.crt", f"--kubelet-client-key={pki}/apiserver.key",
                "--kubelet-preferred-address-types=InternalIP",
                f"--requestheader-client-ca-file={self.front_proxy.ca_file}",
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={pki}/front-proxy/client.crt",
                f"--proxy-client-key-file={pki}/front-proxy/client.key",
                "--profiling=false",
            ),
            "https://127.0.0.1:6443/readyz",
        )  # fmt: skip

    def _controller_manager(self) -> Program:
        return Program(
            "kube-controller-manager",
            (
                str(self._binaries.kubernetes / "kube-controller-manager"),
                f"--kubeconfig={self._folder}/controller-manager.kubeconfig",
                f"--root-ca-file={self.pki.ca_file}",
                f"--service-account-private-key-file={self._signing}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--profiling=false",
            ),
            "https://127.0.0.1:10257/healthz",
        )

    def _scheduler(self) -> Program:
        return Program(
            "kube-scheduler",
            (
                str(self._binaries.kubernetes / "kube-scheduler"),
                f"--kubeconfig={self._folder}/scheduler.kubeconfig",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--profiling=false",
            ),
            "https://127.0.0.1:10259/healthz",
        )

    def _containerd(self) -> Program:
        socket = "/run/containerd/containerd.sock"
        network = self._folder / "cni"
        network.mkdir(exist_ok=True)
        # Point to point: pods on a bridge would answer each other past the service's address translation.
        plugin = {
            "type": "ptp",
            "mtu": 1500,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_CIDR}]],
                "dataDir": "/run/cni",
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        conflist = {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}
        (network / "10-pods.conflist").write_text(json.dumps(conflist))
        config = self._folder / "containerd.toml"
        config.write_text(f"""version = 3
root = "{self._folder}/containerd"
state = "/run/containerd"
[grpc]
address = "{socket}"
[plugins.'io.containerd.cri.v1.images']
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
cdi_spec_dirs = ["/var/run/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{network}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
""")
        return Program("containerd", (str(self._binaries.containerd / "containerd"), "--config", str(config)), socket)

    def _kubelet(self) -> Program:
        config: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_IP,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.pki.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{self.pki.folder}/kubelet.crt",
            "tlsPrivateKeyFile": f"{self.pki.folder}/kubelet.key",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{control_groups.name(self._folder)}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [NODE_IP],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "resolvConf": "",
            "makeIPTablesUtilChains": False,
            "maxPods": MAX_PODS,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "5s",
            "nodeLeaseDurationSeconds": 20,
            "serializeImagePulls": False,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "registerWithTaints": [],
        }
        if self._binaries.kubernetes == NEWEST.bin:  # 1.30 has no such field; its longest pause is five minutes
            config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "5s"}
        file = self._folder / "kubelet.yaml"
        file.write_text(yaml.safe_dump(config))
        return Program(
            "kubelet",
            (
                str(self._binaries.kubernetes / "kubelet"),
                f"--config={file}",
                f"--kubeconfig={self._folder}/kubelet.kubeconfig",
                f"--hostname-override={NODE}",
                f"--node-ip={NODE_IP}",
            ),
            "http://127.0.0.1:10248/healthz",
        )

    def _kube_proxy(self) -> Program:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": f"{self._folder}/kube-proxy.kubeconfig"},
            "clusterCIDR": POD_CIDR,
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }
        file = self._folder / "kube-proxy.yaml"
        file.write_text(yaml.safe_dump(config))
        return Program(
            "kube-proxy",
            (str(self._binaries.kubernetes / "kube-proxy"), f"--config={file}", f"--hostname-override={NODE}"),
            "",
        )

    def _coredns(self) -> Program:
        file = self._folder / "Corefile"
        file.write_text(f""".:53 {{
    bind {NODE_IP}
    ready 127.0.0.1:8181
    errors
    kubernetes cluster.local {{
        kubeconfig "{self._folder}/admin.kubeconfig"
    }}
}}
""")
        return Program(
            "coredns",
            (str(self._binaries.coredns / "coredns"), "-conf", str(file)),
            "http://127.0.0.1:8181/ready",
        )
