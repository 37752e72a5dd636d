# SPDX-License-Identifier: Apache-2.0
"""All settings with their defaults and documentation, as one frozen tree; `load` reads them.

`docs/settings.md` is generated from this file.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from slicekeeper import __version__, names
from slicekeeper.config.foreign_dialects import DialectName
from slicekeeper.config.resource_names import is_named

LONGEST: Final = 1e9
"""More than 30 years in seconds: a longer time is not a meaningful setting, and infinity is not one at all."""
Positive = Annotated[float, Meta(gt=0, le=LONGEST)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
PARTS = ("certificates", "nodeagent", "objects", "scheduler", "sidecar", "timekeeper", "webhook")
"""The parts that have an image."""
Rule = Literal["slicekeeper", "kubegpu", "gemini"]
RULES: tuple[Rule, ...] = get_args(Rule)
UNSET_REGISTRY = "slicekeeper.invalid"
"""No registry can have this name (RFC 6761), so no image can be offered under it."""
_REGISTRY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]/]*):([0-9]{1,5})")
MAX_PORT: Final = 65_535
SHARD = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_TAG = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,62})?")


def about(text: str) -> Meta:
    """Return the documentation of one setting."""
    return Meta(description=text)


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base of all sections: frozen, camelCase in YAML, unknown keys refused."""

    def __post_init__(self) -> None:
        """Refuse addresses on which nothing can listen."""
        for name, key in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if not name.endswith("bind") or not value:
                continue
            found = _ADDRESS.fullmatch(value)
            if found is None or int(found[1]) > MAX_PORT:
                raise ValueError(f"{key} is {value!r}, which is no address and port, such as 127.0.0.1:8443")


class ClockSettings(Section, frozen=True):
    """Time, the same for every part."""

    origin: Annotated[str, about("Real instant from which time is scaled (RFC 3339). Empty: time is not scaled.")] = ""
    speed: Annotated[Positive, about("Clock seconds per real second. Only local mode changes it.")] = 1.0


class LogSettings(Section, frozen=True):
    """Logging on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], about("Lowest level that is logged.")] = "info"
    style: Annotated[Literal["json", "text"], about("One line of JSON per event, or text for people.")] = "json"


class Resources(Section, frozen=True):
    """Names of the extended resources. The defaults are gpu-manager's, so its manifests work unchanged."""

    core: Annotated[Name, about("Compute, in percent of one GPU.")] = "tencent.com/vcuda-core"
    memory: Annotated[Name, about("Memory, in blocks of 256 MiB.")] = "tencent.com/vcuda-memory"
    seat: Annotated[Name, about("The device plugin's seat, one per GPU container and one per sidecar.")] = (
        "slicekeeper.io/seat"
    )
    device: Annotated[
        tuple[str, ...] | str,
        about("Resources of NVIDIA's own device plugin: one name or several; a trailing `*` matches any suffix."),
    ] = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*")
    foreign: Annotated[
        tuple[DialectName, ...],
        about(
            "Other GPU sharing systems whose pods are sent to the webhook; the policy says where they are converted."
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Refuse invalid names of resources, and one resource in two roles."""
        for name in (self.core, self.memory, self.seat, *self.devices):
            if not RESOURCE.fullmatch(f"{name[:-1]}x" if name.endswith("*") and name in self.devices else name):
                raise ValueError(
                    f"{name!r} is not an extended resource; use a name such as nvidia.com/gpu or nvidia.com/mig-*"
                )
        ours = (self.core, self.memory, self.seat)
        for name in ours:
            if ours.count(name) > 1 or is_named(name, self.devices):
                raise ValueError(f"{name!r} is named twice; core, memory, seat and device must be different resources")

    @property
    def devices(self) -> tuple[str, ...]:
        """The names and patterns of `device`."""
        return (self.device,) if isinstance(self.device, str) else self.device


class Images(Section, frozen=True):
    """Where all images come from, the sidecar's too."""

    registry: Annotated[
        Name,
        about(
            "Registry, with an optional path, such as registry.example/gpus. The default is a name that cannot exist."
        ),
    ] = UNSET_REGISTRY
    tag: Annotated[str, about("Tag of all images. Empty: this release's version.")] = ""
    digests: Annotated[
        dict[str, str], about("Digests (`sha256:…`) by part (webhook, sidecar and so on), used instead of the tag.")
    ] = {}

    def __post_init__(self) -> None:
        """Refuse invalid names of images, and a registry without a host, which would be a public one."""
        host = self.registry.partition("/")[0]
        if not _REGISTRY.fullmatch(self.registry) or not ("." in host or ":" in host or host == "localhost"):
            raise ValueError(
                f"registry {self.registry!r} must begin with a host, such as registry.example/gpus: without one it "
                "means a public registry, where anyone may take the name"
            )
        if self.tag and not _TAG.fullmatch(self.tag):
            raise ValueError(f"tag {self.tag!r} is not a tag; use one such as 0.1.0")
        for part, digest in self.digests.items():
            if part not in PARTS:
                raise ValueError(f"digests names {part!r}: it must be one of {', '.join(PARTS)}")
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"the digest of {part} is {digest!r}: it must be sha256: and 64 hexadecimal digits")

    def of(self, part: str) -> str:
        """Return the image of one part, for example `registry.example/gpus/webhook:0.1.0`."""
        digest = self.digests.get(part)
        return f"{self.registry}/{part}{f'@{digest}' if digest else f':{self.tag or __version__}'}"


class PriorityClassSettings(Section, frozen=True):
    """A PriorityClass as the cluster has it: name, exact value and preemption policy."""

    name: Annotated[Name, about("Name of the PriorityClass.")]
    value: Annotated[int, Meta(ge=-2147483648, le=1000000000), about("Its exact value.")]
    preemption_policy: Annotated[
        Literal["PreemptLowerPriority", "Never"], about("Whether its pods may preempt others.")
    ]


class Classes(Section, frozen=True):
    """The two PriorityClasses. Used until the webhook has seen the cluster's own."""

    in_budget: PriorityClassSettings = PriorityClassSettings(
        name="gpu-default-priority", value=0, preemption_policy="PreemptLowerPriority"
    )
    over_budget: PriorityClassSettings = PriorityClassSettings(
        name="gpu-lower-priority", value=-100, preemption_policy="Never"
    )


class KubernetesSettings(Section, frozen=True):
    """How the API server is reached. Without `server`: by the pod's service account; for commands, by a kubeconfig."""

    server: Annotated[str, about("URL of the API server, for example https://10.96.0.1:443.")] = ""
    ca_file: Annotated[str, about("CA bundle that signs the API server's certificate (PEM).")] = ""
    token_file: Annotated[str, about("File with the bearer token; read again when it changes.")] = ""
    timeout_seconds: Annotated[Positive, about("Timeout of one request, except for watches.")] = 10.0


class TimekeeperClientSettings(Section, frozen=True):
    """How the timekeeper is reached by the webhook, the sidecars and the command line."""

    url: Annotated[str, about("Base URL, for example https://timekeeper.slicekeeper-system.svc.")] = ""
    ca_file: Annotated[str, about("CA bundle that signs its certificate (PEM).")] = ""
    token_file: Annotated[str, about("File with the bearer token; read again when it changes.")] = ""
    timeout_seconds: Annotated[Positive, about("Timeout of one request.")] = 5.0


class PolicySettings(Section, frozen=True):
    """The namespaces' policy, in a file of its own (see docs/policy.md)."""

    file: Annotated[str, about("YAML file. Empty: every namespace has the defaults.")] = ""
    accepted_file: Annotated[
        str, about("The last version of the file without errors: a part that starts while the file is broken uses it.")
    ] = ""
    reload_seconds: Annotated[Positive, about("How often the file is checked for changes.")] = 2.0
    objects: Annotated[
        bool, about("Use GpuPolicies, which take precedence over the file. The component `objects` sets it.")
    ] = False
    exempt_namespaces: Annotated[
        tuple[str, ...], about("Namespaces that are never touched: exact names or patterns.")
    ] = ("kube-system", "kube-public", "kube-node-lease", "slicekeeper-system")


class TlsSettings(Section, frozen=True):
    """A server's certificate; both files empty: plain HTTP. Read again when they change."""

    certificate_file: Annotated[str, about("Certificate chain (PEM).")] = ""
    key_file: Annotated[str, about("Private key (PEM).")] = ""


class ServingSettings(Section, frozen=True):
    """Limits on clients of every part's server. The numbers apply to each process."""

    request_seconds: Annotated[
        Positive, about("Longest time that a client may take for handshake, head and body of a request together.")
    ] = 10.0
    connections: Annotated[
        int,
        Meta(ge=8, le=65536),
        about("Maximum number of connections. Another one replaces an idle one of the address that has the most."),
    ] = 512
    connections_per_address: Annotated[
        int,
        Meta(ge=4, le=65536),
        about(
            "Maximum from one address: an API server needs one per review in progress, a proxy has all its clients'."
        ),
    ] = 256


class WebhookSettings(Section, frozen=True):
    """The admission webhook."""

    bind: Annotated[str, about("Address and port to listen on.")] = "0.0.0.0:8443"
    workers: Annotated[int, Meta(ge=1, le=64), about("Worker processes.")] = 2
    tls: TlsSettings = TlsSettings()
    metrics_bind: Annotated[str, about("Address and port of /metrics, in plain HTTP. Empty: none.")] = ""
    injection: Annotated[
        Literal["meter", "seats", "limiter"], about("What is injected: only metering; seats too; the limiter too.")
    ] = "limiter"
    scheduler_name: Annotated[Name, about("schedulerName that GPU pods get.")] = "slicekeeper-scheduler"
    refresh_seconds: Annotated[Positive, about("Interval at which decisions are fetched from the timekeeper.")] = 2.0
    stale_seconds: Annotated[Positive, about("Age at which decisions are stale.")] = 60.0
    flip_grace_seconds: Annotated[
        Positive, about("How long /validate accepts the class of either state after a budget state has changed.")
    ] = 60.0
    report_seconds: Annotated[Positive, about("Interval at which the sidecar reports.")] = 10.0
    max_body_bytes: Annotated[int, Meta(ge=1 << 20), about("Maximum size of a review.")] = 16 << 20
    allow_privileged: Annotated[bool, about("Let privileged containers request GPUs.")] = False
    allow_host_pid: Annotated[bool, about("Let hostPID pods request GPUs.")] = False
    allow_host_ipc: Annotated[bool, about("Let hostIPC pods request GPUs.")] = False
    allow_proc_mount: Annotated[bool, about("Let containers of GPU pods have an unmasked /proc.")] = False
    allow_capabilities: Annotated[
        tuple[Name, ...], about("Capabilities that GPU pods may add although they give access to other pods' GPUs.")
    ] = ()
    allow_host_paths: Annotated[
        tuple[Name, ...], about("Host paths that GPU pods may mount although they give access to other pods' GPUs.")
    ] = ()
    allow_env_from: Annotated[
        bool, about("Let containers with GPUs of NVIDIA's plugin use envFrom, which may name other GPUs.")
    ] = False
    allow_node_name: Annotated[bool, about("Let users set nodeName on GPU pods.")] = False


class TimekeeperSettings(Section, frozen=True):
    """The timekeeper's server and controller."""

    bind: Annotated[str, about("Address and port to listen on.")] = "127.0.0.1:8444"
    threads: Annotated[int, Meta(ge=1, le=256), about("Threads of the one worker process.")] = 8
    forwarder_bind: Annotated[
        str, about("Address and port at which `forwarder` listens for the API server; see docs/timekeeper.md.")
    ] = "0.0.0.0:8448"
    tls: TlsSettings = TlsSettings()
    metrics_bind: Annotated[str, about("Address and port of /metrics, in plain HTTP. Empty: none.")] = ""
    database: Annotated[str, about("SQLAlchemy URL.")] = "sqlite:///timekeeper.sqlite"
    cluster: Annotated[Name, about("Name of this cluster in the ledger; never change it afterwards.")] = "default"
    weight: Annotated[
        Literal["max", "mean", "core", "quota"],
        about("How the fraction of a GPU that a pod is charged for is computed."),
    ] = "max"
    debt: Annotated[Literal["forgive", "carry"], about("Whether time over budget is deducted from the next grant.")] = (
        "forgive"
    )
    operator_token_file: Annotated[
        str, about("File with a token that has all rights, for local mode. Empty: none.")
    ] = ""
    audience: Annotated[Name, about("Audience that a sidecar's projected token must have.")] = "timekeeper"
    controller_seconds: Annotated[Positive, about("Longest interval between two checks of running pods' budgets.")] = (
        1.0
    )
    seal_after_hours: Annotated[
        Positive, about("How long after its end a period accepts late records; then it is sealed.")
    ] = 24.0
    reservation_margin_seconds: Annotated[
        Positive,
        about(
            "Time reserved beyond a pod's deadline and grace period, for rounding and for the delay until it starts."
        ),
    ] = 60.0
    raw_days: Annotated[
        int, Meta(ge=1), about("How long the counters of an ended pod are kept; its period must be sealed too.")
    ] = 14
    usage_days: Annotated[int, Meta(ge=1), about("How long hourly usage is kept.")] = 425
    rates: Annotated[dict[str, str], about("GPU-time rate by GPU model, as an integer or a ratio such as 3/2.")] = {}


class SidecarSettings(Section, frozen=True):
    """The reporting sidecar. The webhook sets these by environment variables."""

    namespace: Annotated[str, about("The pod's namespace.")] = ""
    pod_name: Annotated[str, about("The pod's name.")] = ""
    pod_uid: Annotated[str, about("The pod's UID.")] = ""
    containers: Annotated[tuple[str, ...], about("The GPU containers whose usage it reports.")] = ()
    report_seconds: Annotated[Positive, about("Interval between reports.")] = 10.0
    usage_file: Annotated[
        str, about("File with the pod's counters, written by the node agent; without it usage is unknown.")
    ] = "/run/slicekeeper/usage.json"
    spool_dir: Annotated[str, about("Folder in which reports wait while the timekeeper is down.")] = (
        "/var/spool/slicekeeper"
    )
    spool_bytes: Annotated[int, Meta(ge=4096), about("Maximum size of the spool.")] = 1 << 20


class SchedulerSettings(Section, frozen=True):
    """The scheduler extender and the reclaimer."""

    bind: Annotated[str, about("Address and port to listen on.")] = "127.0.0.1:8445"
    threads: Annotated[
        int, Meta(ge=1, le=256), about("Threads of the one worker process; binds have 32 of their own.")
    ] = 8
    metrics_bind: Annotated[str, about("Address and port of /metrics, in plain HTTP. Empty: none.")] = ""
    policy: Annotated[
        Literal["expected-fill", "fgd", "best-fit", "packing", "spread", "random"],
        about("How a place is chosen among all that fit."),
    ] = "expected-fill"
    assume_seconds: Annotated[
        Positive, about("How long a place is held for a pod between filter and the watch event that shows it bound.")
    ] = 30.0
    reclaim_seconds: Annotated[Positive, about("Interval between two runs of the reclaimer.")] = 1.0
    reclaim_after_seconds: Annotated[
        Positive, about("How long an in-budget pod waits before a place is reclaimed for it.")
    ] = 2.0
    lease_namespace: Annotated[
        Name, about("Namespace of the Leases that elect the extender that binds and the one that reclaims.")
    ] = "slicekeeper-system"
    lease_seconds: Annotated[
        float,
        Meta(ge=1.0, le=LONGEST),
        about("Real seconds after which another process takes over the lease of a dead one."),
    ] = 15.0
    shards: Annotated[
        tuple[str, ...],
        about(
            "Names of further schedulers. Each has the nodes whose label slicekeeper.io/shard is its name, and pods "
            "that name webhook.schedulerName-NAME."
        ),
    ] = ()
    shard: Annotated[
        str, about("The one of `shards` that this process is part of. Empty: the first scheduler. Set in its manifest.")
    ] = ""

    def __post_init__(self) -> None:
        """Refuse names that cannot be the suffix of an object's name, and a shard without nodes."""
        super().__post_init__()
        for name in self.shards:
            if not SHARD.fullmatch(name):
                raise ValueError(
                    f"shards has {name!r}; a name has at most 40 small letters, digits and hyphens, such as b or team-x"
                )
            if self.shards.count(name) > 1:
                raise ValueError(f"shards has {name!r} twice; name each shard once")
        if self.shard not in ("", *self.shards):
            raise ValueError(f"shard is {self.shard!r}, which is not among shards {list(self.shards)}; add it there")

    def node_selector(self, shard: str) -> str:
        """Return the label selector of a scheduler's nodes; those of no listed shard are the first one's."""
        if shard:
            return f"{names.SHARD}={shard}"
        return f"{names.SHARD} notin ({','.join(self.shards)})" if self.shards else ""


class NodeAgentSettings(Section, frozen=True):
    """The agent on each GPU node."""

    node_name: Annotated[str, about("Name of its Node.")] = ""
    fake_gpus: Annotated[
        str, about("GPUs that the fake driver simulates: N, N:MODEL, or N:MODEL:SLICES with MIG slices.")
    ] = ""
    gpus: Annotated[
        tuple[str, ...],
        about(
            "GPUs to offer, by UUID or index. On a node with none of these: all GPUs, or none if another device "
            "plugin allocates its GPUs."
        ),
    ] = ()
    programs_dir: Annotated[str, about("Folder of the arbiter, the limiter and the fake driver.")] = (
        "/usr/local/slicekeeper/lib"
    )
    rule: Annotated[
        Rule, about("Rule by which the arbiter shares idle time, on nodes without the label slicekeeper.io/rule.")
    ] = "slicekeeper"
    seats: Annotated[
        int,
        Meta(ge=1, le=1024),
        about("Number of seats: each GPU container needs one, and the sidecar of its pod another."),
    ] = 512
    reconcile_seconds: Annotated[Positive, about("Interval at which the node's published GPUs are checked.")] = 5.0
    plugin_dir: Annotated[str, about("kubelet's folder of device plugin sockets.")] = "/var/lib/kubelet/device-plugins"
    pod_resources_socket: Annotated[str, about("kubelet's PodResources socket.")] = (
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    cdi_dir: Annotated[str, about("Folder in which the container runtime looks for CDI specifications.")] = (
        "/var/run/cdi"
    )
    host_cdi_dirs: Annotated[
        tuple[str, ...], about("Folders of NVIDIA's own CDI specification; a later one takes precedence.")
    ] = ("/etc/cdi", "/var/run/cdi")
    driver_root: Annotated[
        str,
        about(
            "Where the node's file system is mounted, for nodes without NVIDIA's container toolkit: if no CDI "
            "specification has a GPU, the driver's files are taken from there. If it is missing, they are not."
        ),
    ] = "/host"
    state_dir: Annotated[str, about("Folder in which seats are saved; it must survive a reboot.")] = (
        "/var/lib/slicekeeper"
    )
    run_dir: Annotated[str, about("Parent of the folders, one per seat, that containers see at /run/slicekeeper.")] = (
        "/run/slicekeeper"
    )
    metrics_bind: Annotated[str, about("Address and port of /healthz, /readyz and /metrics. Empty: none.")] = (
        "0.0.0.0:8446"
    )
    pod_ip: Annotated[
        str, about("IP address at which the scheduler requests /readyz before it binds a pod. Empty: it does not.")
    ] = ""


class CertificateSettings(Section, frozen=True):
    """The self-managed CA, the servers' certificates that it signs, and the CAs that all namespaces trust."""

    namespace: Annotated[Name, about("Namespace of the Secrets and of the Services.")] = "slicekeeper-system"
    services: Annotated[
        tuple[Name, ...],
        about("Services that get a certificate, each in a Secret `<service>-tls`, which its pods mount."),
    ] = ("webhook", "timekeeper")
    configuration: Annotated[Name, about("Name of both webhook configurations, which must trust the CA.")] = (
        "slicekeeper"
    )
    ca_secret: Annotated[Name, about("Secret that holds the CA.")] = "slicekeeper-ca"  # noqa: S105 - a name
    ca_files: Annotated[
        tuple[str, ...],
        about("CAs (PEM) of another issuer, such as cert-manager, to trust; nothing is signed then. Empty: our own."),
    ] = ()
    ca_hours: Annotated[Positive, about("Lifetime of a CA; renewed after two thirds of it.")] = 8760.0
    server_hours: Annotated[Positive, about("Lifetime of a server's certificate; renewed after two thirds of it.")] = (
        720.0
    )
    overlap_seconds: Annotated[Positive, about("How long a new CA is trusted before it signs anything.")] = 600.0
    look_seconds: Annotated[Positive, about("Interval between two checks.")] = 5.0
    probes_bind: Annotated[str, about("Address and port of /healthz and /readyz. Empty: none.")] = ""


class ObjectSettings(Section, frozen=True):
    """The operators: the one that keeps budgets in step with their objects, and that of SharePods."""

    namespace: Annotated[Name, about("Namespace of the Lease that elects the active replica.")] = "slicekeeper-system"
    probes_bind: Annotated[str, about("Address and port of /healthz and /readyz. Empty: none.")] = "0.0.0.0:8448"


class Settings(Section, frozen=True):
    """All settings of all parts; a part reads its own section and the shared ones."""

    clock: ClockSettings = ClockSettings()
    log: LogSettings = LogSettings()
    resources: Resources = Resources()
    images: Images = Images()
    classes: Classes = Classes()
    kubernetes: KubernetesSettings = KubernetesSettings()
    timekeeper_client: TimekeeperClientSettings = TimekeeperClientSettings()
    policy: PolicySettings = PolicySettings()
    serving: ServingSettings = ServingSettings()
    webhook: WebhookSettings = WebhookSettings()
    timekeeper: TimekeeperSettings = TimekeeperSettings()
    sidecar: SidecarSettings = SidecarSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    node_agent: NodeAgentSettings = NodeAgentSettings()
    certificates: CertificateSettings = CertificateSettings()
    objects: ObjectSettings = ObjectSettings()

    def scheduler_name(self, shard: str) -> str:
        """Return the schedulerName of a shard's pods, or of the first scheduler's."""
        return f"{self.webhook.scheduler_name}-{shard}" if shard else self.webhook.scheduler_name

    @property
    def schedulers(self) -> dict[str, str]:
        """Every scheduler's shard by its name, the first one's with an empty shard."""
        return {self.scheduler_name(shard): shard for shard in ("", *self.scheduler.shards)}
