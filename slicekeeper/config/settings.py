# SPDX-License-Identifier: Apache-2.0
"""Settings: one frozen tree, read once from a YAML file and the environment, every key documented here.

`docs/settings.md` is made from this file. An unknown key is refused by name, with the nearest known one; a
value out of range with its key and what is allowed. `SLICEKEEPER_WEBHOOK_BIND` overrides `webhook.bind`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from slicekeeper import __version__, names
from slicekeeper.config.dialects import DialectName
from slicekeeper.config.resource_names import is_named
from slicekeeper.errors import SettingsError

T = TypeVar("T", bound=msgspec.Struct)
Positive = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
PARTS = ("certificates", "nodeagent", "objects", "scheduler", "sidecar", "timekeeper", "webhook")
"""What has an image."""
Rule = Literal["slicekeeper", "kubegpu", "gemini"]
RULES: tuple[Rule, ...] = get_args(Rule)
UNSET_REGISTRY = "slicekeeper.invalid"
"""No registry can have this name (RFC 6761), so no image can be offered under it."""
_REGISTRY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_REQUIREMENT = re.compile(r"!?[-\w./]+|[-\w./]+ *(==?|!=) *[-\w.]*|[-\w./]+ +(not)?in +\([-\w., ]*\)")
_TAG = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,62})?")


def about(text: str) -> Meta:
    """Return the documentation of one setting."""
    return Meta(description=text)


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base of all sections: frozen, camelCase in YAML, unknown keys refused."""


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
        """Refuse what is no resource's name, and one resource in two roles."""
        for name in (self.core, self.memory, self.seat, *self.devices):
            if not _RESOURCE.fullmatch(f"{name[:-1]}x" if name.endswith("*") and name in self.devices else name):
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
    """Where all images come from, the sidecar's too. `slicekeeper config manifests` writes it into the manifests."""

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
        """Refuse what no image can be called, and a registry without a host: that would be a public one's."""
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
    """A PriorityClass as the API server has it: name, exact value and preemption policy."""

    name: Annotated[Name, about("Name of the PriorityClass.")]
    value: Annotated[int, Meta(ge=-2147483648, le=1000000000), about("Its exact value.")]
    preemption_policy: Annotated[
        Literal["PreemptLowerPriority", "Never"], about("Whether its pods may preempt others.")
    ]


class Classes(Section, frozen=True):
    """The two PriorityClasses. Used until the webhook has seen the cluster's own, and to make manifests."""

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
    """How every part's server bounds its clients. The numbers hold for each process."""

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
        Literal["meter", "seats", "limiter"],
        about("What is injected: only metering; seats too; the limiter too."),
    ] = "limiter"
    scheduler_name: Annotated[Name, about("schedulerName that GPU pods get.")] = "slicekeeper-scheduler"
    other_schedulers: Annotated[
        tuple[Name, ...],
        about("Further schedulers of Slicekeeper's, each with nodes of its own, that a GPU pod may name."),
    ] = ()
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
        Positive,
        about("How long a place is held for a pod between filter and the watch event that shows it bound."),
    ] = 30.0
    reclaim_seconds: Annotated[Positive, about("Interval between two runs of the reclaimer.")] = 1.0
    reclaim_after_seconds: Annotated[
        Positive, about("How long an in-budget pod waits before a place is reclaimed for it.")
    ] = 2.0
    lease_namespace: Annotated[
        Name, about("Namespace of the Leases that elect the extender that binds and the one that reclaims.")
    ] = "slicekeeper-system"
    lease_seconds: Annotated[
        float, Meta(ge=1.0), about("Real seconds after which another process takes over the lease of a dead one.")
    ] = 15.0
    node_selector: Annotated[
        str,
        about(
            "Label selector of this scheduler's nodes. Empty: all. Each of several schedulers has a leaseNamespace and "
            "a webhook.schedulerName of its own."
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Refuse what the API server would not take for a label selector."""
        requirements = re.split(r",(?![^(]*\))", self.node_selector) if self.node_selector else []
        if wrong := [each for each in requirements if not _REQUIREMENT.fullmatch(each.strip())]:
            raise ValueError(
                f"node_selector has {wrong[0]!r}, which is no label selector; use one such as pool=a, pool!=a, "
                "pool in (a, b) or !pool"
            )


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
        Rule,
        about("Rule by which the arbiter shares idle time, on nodes without the label slicekeeper.io/rule."),
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


@dataclass(frozen=True)
class Key:
    """One setting: its dotted path in YAML, its variable, documentation, type and default."""

    path: tuple[str, ...]
    kind: str
    default: Any
    text: str

    @property
    def dotted(self) -> str:
        """The path as it is written in messages."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return names.ENV_PREFIX + "_".join(re.sub("(?<=[a-z])(?=[A-Z])", "_", part) for part in self.path).upper()


def keys(section: Section | None = None, path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield every setting with its default, in the order of the documentation."""
    section = section or Settings()
    hints = get_type_hints(type(section), include_extras=True)
    for item in msgspec.structs.fields(section):
        value = getattr(section, item.name)
        here = (*path, item.encode_name)
        if isinstance(value, Section):
            yield from keys(value, here)
            continue
        hint = hints[item.name]
        texts = [m.description for m in getattr(hint, "__metadata__", ()) if m.description]
        yield Key(here, _kind(hint), value, texts[0] if texts else "")


def _kind(hint: Any) -> str:
    base = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    if getattr(base, "__origin__", None) is Literal:
        return " | ".join(base.__args__)
    return str(base).replace("typing.", "") if hasattr(base, "__args__") else str(base.__name__)


@dataclass(frozen=True)
class Loaded:
    """Settings in force, and where each that is not a default came from."""

    settings: Settings
    origin: Mapping[str, str]


def load(file: Path | None, environ: Mapping[str, str]) -> Loaded:
    """Read settings from a YAML file (None: none) and the environment.

    Raises SettingsError that names the key, its value, and the remedy.
    """
    tree: dict[str, Any] = {}
    origin: dict[str, str] = {}
    known = {key.path: key for key in keys()}
    if file is not None:
        tree = read_yaml(file).tree
        check_keys(tree, Settings, str(file))
        for path in known:
            if _lookup(tree, path) is not None:
                origin[".".join(path)] = str(file)
    variables = {key.variable: key for key in known.values()}
    for variable, text in environ.items():
        key = variables.get(variable)
        if key is None:
            _check_variable(variable, variables)
            continue
        value: Any = text.split(",") if key.kind.startswith("tuple") else text
        if key.kind.startswith("tuple") and not text:
            value = []
        elif key.kind.startswith("dict"):
            value = dict(pair.partition("=")[::2] for pair in text.split(",") if pair)
        _insert(tree, key.path, value)
        origin[key.dotted] = f"${variable}"
    return Loaded(convert(tree, Settings, "settings"), origin)


_OTHER_VARIABLES = (names.ENV_PREFIX + "CONFIG", names.ENV_PREFIX + "HOME", names.ENV_PREFIX + "CACHE")
_IN_CONTAINERS = re.compile(names.ENV_PREFIX + "(SEAT|FAKE_.*)")
"""What a container with a slice has in its environment: the limiter's seat, the fake driver's variables."""
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)")


def _check_variable(variable: str, known: Mapping[str, Key]) -> None:
    """Refuse a variable with our prefix that is no setting; Kubernetes' own service links are none of ours."""
    if not variable.startswith(names.ENV_PREFIX) or variable in _OTHER_VARIABLES:
        return
    if _IN_CONTAINERS.fullmatch(variable) or _SERVICE_LINK.fullmatch(variable):
        return
    near = difflib.get_close_matches(variable, known, 1, 0.5)
    remedy = f"did you mean {near[0]}?" if near else "see `slicekeeper config show`"
    raise SettingsError(f"environment: unknown variable {variable}; {remedy}")


class Document(NamedTuple):
    """A YAML file's mapping, and the line of each part of it."""

    tree: dict[str, Any]
    root: yaml.Node | None

    def line(self, *path: str | int) -> int:
        """Return the line, from 1, of the deepest part of a path that is there."""
        node, line = self.root, 1
        for part in path:
            found = _below(node, part)
            if found is None:
                break
            line, node = found
        return line


def _below(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return _line(node.value[part]), node.value[part]
    if isinstance(node, yaml.MappingNode):
        return next(((_line(key), value) for key, value in node.value if key.value == part), None)
    return None


def _key_that_stands_twice(root: yaml.Node | None) -> str:
    """Return which mapping has a key twice, of which one would be ignored without a word; empty if none has."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
            continue
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    return f"line {_line(key)}: key {key.value} is in line {lines[key.value]} already"
                lines[key.value] = _line(key)
        waiting += [value for _, value in reversed(node.value)]
    return ""


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def read_yaml(file: Path) -> Document:
    """Return a YAML file's mapping, empty for an empty file.

    Raises SettingsError if it cannot be read, has a key twice or is no mapping.
    """
    try:
        loader = yaml.SafeLoader(file.read_text("utf-8"))
        try:
            root = loader.get_single_node()
            twice = _key_that_stands_twice(root)
            tree = None if root is None or twice else loader.construct_document(root)
        finally:
            loader.dispose()
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror}); name a readable file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no text, number or date
        raise SettingsError(f"{file}: not valid YAML: {error}") from error
    if twice:
        raise SettingsError(f"{file}: {twice}; keep one of the two")
    if tree is None:
        return Document({}, None)
    if not isinstance(tree, dict):
        raise SettingsError(f"{file}: the file must contain a mapping, not a {type(tree).__name__}")
    return Document(tree, root)


Where = str | Callable[[tuple[str, ...]], str]
"""The place to name in a message: the same for all of a tree, or one for each path below."""


def _at(where: Where, path: tuple[str, ...]) -> str:
    return where if isinstance(where, str) else where(path)


def convert(tree: Mapping[str, Any], kind: type[T], where: Where) -> T:
    """Return `tree` as `kind`; SettingsError names the place and what is allowed there."""
    try:
        return msgspec.convert(tree, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        path = place.strip("`").removeprefix("$.") or "top level"
        value = _lookup(tree, tuple(path.split("."))) if place else None
        shown = f" (is {value!r})" if value is not None else ""
        allowed = next((key.kind for key in keys() if key.dotted == path), "") if kind is Settings else ""
        at = _at(where, tuple(path.split(".")))
        raise SettingsError(f"{at}: {path}{shown}: {message}{allowed and f' ({allowed})'}") from error


def check_keys(tree: Any, kind: type[msgspec.Struct], where: Where, path: str = "") -> None:
    """Refuse a key that `kind` does not know, naming the nearest that it does."""
    if not isinstance(tree, dict):
        return
    fields = {item.encode_name: item for item in msgspec.structs.fields(kind)}
    for key, value in tree.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1, 0.5)
            remedy = f"did you mean {path}{near[0]}?" if near else f"known here: {', '.join(fields)}"
            at = _at(where, (*path.split(".")[:-1], str(key)))
            raise SettingsError(f"{at}: unknown key {path}{key}; {remedy}")
        below = fields[key].type
        if isinstance(below, type) and issubclass(below, msgspec.Struct):
            check_keys(value, below, where, f"{path}{key}.")


def _lookup(tree: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[part]
    return tree


def _insert(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        below = tree.get(part)
        if not isinstance(below, dict):
            below = tree[part] = {}
        tree = below
    tree[path[-1]] = value
