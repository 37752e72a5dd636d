# SPDX-License-Identifier: Apache-2.0
"""List the contents of an image in CycloneDX format: Python, its packages, and the libraries of this machine in it.

It lists what the layers contain, not what was requested. The same image gives the same list, except for the libraries:
their packages and versions are those of this machine now.
"""

from __future__ import annotations

import platform
import re
import subprocess
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from images.oci import Image

_LIBRARY: Final = re.compile(r"lib(64)?/(.+/)?(?!libpython)[^/]+\.so[.\d]*")


def describe(image: Image, digest: str) -> str:
    """Return the list of an image's components as CycloneDX 1.6 JSON."""
    version = platform.python_version()  # the interpreter of this machine is in the image
    python = _component("python", version, PackageURL("generic", None, "python", version))
    parts = {python, *_distributions(image.layers), *_debian(image.layers)}
    whole = Component(name=image.name, version=digest, type=ComponentType.CONTAINER, bom_ref=image.name)
    bom = Bom(components=parts, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{image.name}@{digest}"))
    bom.metadata.component = whole
    bom.dependencies.add(Dependency(whole.bom_ref, [Dependency(part.bom_ref) for part in parts]))
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _distributions(layers: Iterable[Path]) -> Iterator[Component]:
    """Yield the Python packages in layers."""
    for layer in layers:
        with tarfile.open(layer) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name.endswith(".dist-info/METADATA") else None
                if content is None:
                    continue
                headers = HeaderParser().parsestr(content.read().decode("utf-8", "replace"))
                name, version = str(headers["Name"]), str(headers["Version"])
                licence = headers["License-Expression"] or headers["License"]
                # Some have the whole text of their licence there.
                named = [LicenseFactory().make_from_string(licence)] if licence and "\n" not in licence else []
                url = PackageURL("pypi", None, re.sub(r"[-_.]+", "-", name).lower(), version)
                yield _component(name, version, url, named)


def _debian(layers: Iterable[Path]) -> Iterator[Component]:
    """Yield the Debian packages of the libraries in layers; nothing on another system."""
    names: set[str] = set()
    for layer in layers:
        with tarfile.open(layer) as tar:
            names |= {f"/{name}" for name in tar.getnames() if _LIBRARY.fullmatch(name)}
    owners = {line.partition(": ")[0] for line in _dpkg("-S", *names, *(f"/usr{name}" for name in names))}
    packages = {owner for line in owners for owner in line.split(", ") if not owner.startswith("diversion ")}
    for line in _dpkg("-W", "-f", "${Package} ${Version} ${Architecture}\n", *packages) if packages else ():
        name, version, architecture = line.split()
        yield _component(name, version, PackageURL("deb", "debian", name, version, {"arch": architecture}))


def _component(name: str, version: str, url: PackageURL, licences: Iterable[License] = ()) -> Component:
    return Component(name=name, version=version, purl=url, bom_ref=str(url), licenses=licences)


def _dpkg(*arguments: str) -> list[str]:
    try:
        done = subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return done.stdout.splitlines()
