# SPDX-License-Identifier: Apache-2.0
"""Reach a cluster as kubectl does: with kubeconfig files and contexts, exec plugins, client certificates and proxies.

The `kubernetes` library reads all of this and makes the connections; our own client sends plain JSON over them. Only
the command line needs it, so the library is imported when it is first used, and no image contains it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import urllib3
import yaml

from slicekeeper.errors import SettingsError
from slicekeeper.net.json_client import JsonClient

USUAL: Final = "~/.kube/config"


def named(environ: Mapping[str, str]) -> str:
    """Return the kubeconfig that kubectl would read: $KUBECONFIG, or the usual file if it exists; otherwise empty."""
    return environ.get("KUBECONFIG", "").strip(os.pathsep) or (USUAL if _exist(USUAL) else "")


def connect(files: str, context: str = "", *, timeout: float = 10.0) -> JsonClient:
    """Return a client for the cluster and user of a context, by default of the current one.

    `files` are one kubeconfig or several, separated as in $KUBECONFIG. Raises SettingsError if they do not name a
    server, or if an exec plugin returns no credentials.
    """
    try:
        from kubernetes.client import Configuration  # noqa: PLC0415 - takes half a second, and only some commands need it
        from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415
        from kubernetes.config import ConfigException, load_kube_config  # noqa: PLC0415
        from kubernetes.config.kube_config import KubeConfigMerger  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            f"kubeconfig is {files!r}: reading it needs {error.name}; install it by pip install 'slicekeeper[cli]'"
        ) from error
    _check_readable(files, context)
    configuration = Configuration()
    with _complaints() as complaints:
        try:
            load_kube_config(files, context or None, configuration, persist_config=False)
            impersonated = _impersonation(KubeConfigMerger(files).config, context)
        except (TypeError, AttributeError) as error:
            raise SettingsError(_wrong(files, context, "it has not the form of a kubeconfig")) from error
        except (ConfigException, yaml.YAMLError, OSError, LookupError, ValueError) as error:
            raise SettingsError(_wrong(files, context, str(error))) from error
        if complaints:
            raise SettingsError(_wrong(files, context, "; ".join(complaints)))
    if not str(configuration.host).startswith(("http://", "https://")):
        raise SettingsError(_wrong(files, context, f"the cluster's server is {configuration.host!r}, no URL"))
    try:
        pool = RESTClientObject(configuration).pool_manager
    except (OSError, ValueError) as error:
        raise SettingsError(_wrong(files, context, str(error))) from error

    def authorization() -> urllib3.HTTPHeaderDict:
        with _complaints():
            token = configuration.get_api_key_with_prefix("BearerToken")  # may call the exec plugin again
        headers = urllib3.HTTPHeaderDict(impersonated)
        if token:
            headers["Authorization"] = token
        return headers

    return JsonClient(configuration.host, timeout=timeout, pool=pool, authorization=authorization)


def namespace(files: str, context: str = "") -> str:
    """Return the namespace of a context, by default of the current one: `default` if it names none.

    Raises SettingsError if it cannot be read.
    """
    _check_readable(files, context)
    try:
        from kubernetes.config import ConfigException, list_kube_config_contexts  # noqa: PLC0415

        contexts, active = list_kube_config_contexts(files)
    except (ImportError, ConfigException, yaml.YAMLError, OSError, LookupError, TypeError, AttributeError) as error:
        raise SettingsError(_wrong(files, context, str(error))) from error
    found = next((one for one in contexts if one["name"] == context), None) if context else active
    if found is None:
        raise SettingsError(_wrong(files, context, "there is no such context"))
    return str(found["context"].get("namespace") or "default")


def _impersonation(config: Any, context: str) -> urllib3.HTTPHeaderDict:
    """Return the headers with which a context's user impersonates another: the library ignores these fields.

    `config` is a ConfigNode of the library. Raises ValueError if it names groups or extra fields, but no user.
    """
    chosen = config["contexts"].get_with_name(context or config["current-context"])["context"].value
    found = config["users"].get_with_name(chosen.get("user"), safe=True) if chosen.get("user") else None
    user = found.value.get("user") or {} if found is not None else {}
    said = [("User", user.get("as")), ("Uid", user.get("as-uid"))]
    said += [("Group", group) for group in user.get("as-groups") or []]
    extra = (user.get("as-user-extra") or {}).items()
    said += [(f"Extra-{quote(key.lower(), safe='')}", value) for key, values in extra for value in values]
    if not user.get("as") and any(value for _, value in said):
        raise ValueError(f"user {chosen['user']!r} has as-uid, as-groups or as-user-extra without as")
    headers = urllib3.HTTPHeaderDict()
    for name, value in said:
        if value:
            # http.client encodes headers as Latin-1: this puts UTF-8 on the wire, as kubectl does.
            headers.add(f"Impersonate-{name}", str(value).encode().decode("latin-1"))
    return headers


def _exist(file: str) -> bool:
    """Whether a file exists; one that we may not look for does, so that the error names it."""
    try:
        return _path(file).exists()
    except PermissionError:
        return True


def _path(file: str) -> Path:
    try:
        return Path(file).expanduser()
    except RuntimeError:  # this user has no home
        return Path(file)


def _check_readable(files: str, context: str) -> None:
    """Raise SettingsError unless there is a file, and all that there are can be read."""
    found = False
    for file in filter(None, files.split(os.pathsep)):
        try:
            with _path(file).open("rb"):
                found = True
        except FileNotFoundError:
            pass  # kubectl also ignores a missing file among several
        except OSError as error:
            raise SettingsError(_wrong(file, context, f"it cannot be read: {error.strerror}")) from error
    if not found:
        raise SettingsError(_wrong(files, context, "there is no such file"))


def _wrong(files: str, context: str, why: str) -> str:
    name = "$KUBECONFIG" if files == os.environ.get("KUBECONFIG") else "kubeconfig"
    chosen = f", context {context!r}" if context else ""
    return (
        f"{name} is {files!r}{chosen}: {' '.join(why.split())}; name another file or context by --kubeconfig and "
        "--context, or check it with: kubectl config view"
    )


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """Collect what the library only logs: if an exec plugin fails, it goes on without credentials.

    The library uses the root logger, whose handlers are replaced meanwhile, so that no line is printed as well.
    """
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    root = logging.getLogger()
    kept, root.handlers[:] = root.handlers[:], [Collector(logging.ERROR)]
    try:
        yield found
    finally:
        root.handlers[:] = kept
