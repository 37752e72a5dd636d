# SPDX-License-Identifier: Apache-2.0
"""The images go to a real registry, and are there under the digests that were printed when they were built."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from click.testing import CliRunner, Result
from support import debian
from support.ports import free_port
from support.waiting import wait_for

from images.oci import Image, digests, write_archive, write_layer
from images.programs import BEHIND, ENTRYPOINT
from slicekeeper import __version__
from slicekeeper.cli.main import cli
from slicekeeper.config.settings import Images
from slicekeeper.config.yaml_file import convert

ROOT = Path(__file__).parents[2]
PLAIN = ("--", "--dest-tls-verify=false")


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run Debian's registry; yield its host and port."""
    debian.install("docker-registry", "skopeo")
    program = shutil.which("docker-registry")
    if program is None or shutil.which("skopeo") is None:
        pytest.skip("there is no registry to push to: apt-get install docker-registry skopeo")
    where = f"127.0.0.1:{free_port()}"
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "kept")}},
        "http": {"addr": where},
    }
    (folder / "registry.yml").write_text(yaml.safe_dump(config))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "registry.yml")], stdout=log, stderr=log)

    def listens() -> bool:
        assert process.poll() is None, (folder / "registry.log").read_text()
        host, port = where.split(":")
        with suppress(OSError), closing(socket.create_connection((host, int(port)), 5)):
            return True
        return False

    try:
        wait_for(listens, "its port")
        yield where
    finally:
        process.terminate()
        process.wait(60)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["images", *map(str, words)])


@pytest.fixture
def compiler() -> None:
    """Ensure that there is one for the sidecar's first process."""
    debian.install("gcc", "libc6-dev")
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build the first process of the sidecar with")


def test_the_sidecars_image_starts_by_its_first_process(tmp_path: Path, compiler: None) -> None:
    file, root = tmp_path / "images.tar", tmp_path / "root"
    assert run("build", "--out", file, "sidecar").exit_code == 0
    with tarfile.open(file) as archive:
        manifest, config = _manifest_and_config(archive)
        assert config["config"]["Entrypoint"] == [f"/{ENTRYPOINT}"]
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=archive.extractfile(_blob(layer))) as tar:
                tar.extractall(root, filter="fully_trusted")
    assert (root / ENTRYPOINT).read_bytes()[:4] == b"\x7fELF"
    assert (root / BEHIND).read_text().startswith("#!/usr/local/bin/python3")
    if os.geteuid() == 0:
        done = subprocess.run(
            ["chroot", root, f"/{ENTRYPOINT}", "--version"], check=True, capture_output=True, text=True, timeout=60
        )
        assert __version__ in done.stdout


def _manifest_and_config(archive: tarfile.TarFile) -> tuple[Any, Any]:
    """Return those of the only image of an archive."""
    [only] = _json(archive, "index.json")["manifests"]
    manifest = _json(archive, _blob(only))
    return manifest, _json(archive, _blob(manifest["config"]))


def _blob(descriptor: dict[str, str]) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def _json(archive: tarfile.TarFile, name: str) -> Any:
    content = archive.extractfile(name)
    assert content is not None
    return json.load(content)


def test_joined_archives_are_pushed_as_a_list_with_an_image_for_each_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(tmp_path) as where:
        name = f"{where}/gpus/webhook:1"
        for machine in ("x86_64", "aarch64"):
            (tmp_path / f"tree-{machine}").mkdir()
            (tmp_path / f"tree-{machine}/file").write_text(machine)
            write_layer(tmp_path / f"{machine}.layer", tmp_path / f"tree-{machine}")
            monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
            write_archive(tmp_path / f"{machine}.tar", [Image(name, (tmp_path / f"{machine}.layer",), ("x",))])
        joined = run("join", "--out", tmp_path / "all.tar", tmp_path / "x86_64.tar", tmp_path / "aarch64.tar")
        assert joined.exit_code == 0, joined.output
        images = convert(yaml.safe_load(joined.stdout)["images"], Images, "images")
        pushed = run("push", tmp_path / "all.tar", *PLAIN)
        assert pushed.exit_code == 0, pushed.output
        assert pushed.stdout.split() == [images.of("webhook")]
        for architecture, machine in (("amd64", "x86_64"), ("arm64", "aarch64")):
            command = ["skopeo", f"--override-arch={architecture}", "inspect", "--tls-verify=false"]
            done = subprocess.run(
                [*command, f"docker://{images.of('webhook')}"], check=True, capture_output=True, text=True, timeout=60
            )
            told = json.loads(done.stdout)
            assert (told["Architecture"], told["Layers"]) == (
                architecture,
                ["sha256:" + hashlib.sha256((tmp_path / f"{machine}.layer").read_bytes()).hexdigest()],
            )


def test_what_is_pushed_has_the_digests_that_the_build_has_printed(tmp_path: Path, compiler: None) -> None:
    with registry(tmp_path) as where:
        file, named = tmp_path / "images.tar", f"{where}/gpus"
        built = run("build", "--registry", named, "--out", file, "webhook", "sidecar")
        assert built.exit_code == 0, built.output
        images = convert(yaml.safe_load(built.stdout)["images"], Images, "images")
        expected = [images.of(part) for part in ("webhook", "sidecar")]
        assert all(image.startswith(f"{named}/") and "@sha256:" in image for image in expected)
        for _ in range(2):  # what is there already is no mistake
            pushed = run("push", file, *PLAIN)
            assert pushed.exit_code == 0, pushed.output
            assert pushed.stdout.split() == expected
        for image in expected:
            command = ["skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", f"docker://{image}"]
            told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
            assert image.endswith(told.strip())
        assert run("build", "--registry", named, "--out", file, "webhook", "sidecar").stdout == built.stdout
    gone = run("push", file, *PLAIN)
    assert (gone.exit_code, f"{named}/webhook:" in gone.output) == (1, True), gone.output


def test_a_signature_is_beside_each_image_and_openssl_finds_it_good(tmp_path: Path) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    _openssl("ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", key)
    _openssl("ec", "-in", key, "-pubout", "-out", public)
    (tmp_path / "tree").mkdir()
    write_layer(tmp_path / "layer.tar", tmp_path / "tree")
    with registry(tmp_path) as where:
        file = tmp_path / "images.tar"
        images = [
            Image(f"{where}/gpus/{part}:1", (tmp_path / "layer.tar",), (part,)) for part in ("webhook", "sidecar")
        ]
        write_archive(file, images)
        pushed = run("push", file, "--key", key, *PLAIN)
        assert pushed.exit_code == 0, pushed.output
        for name, digest in digests(file).items():
            repository = name.rpartition(":")[0].partition("/")[2]
            url = f"http://{where}/v2/{repository}"
            accepted = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
            manifest = urllib3.request(
                "GET", f"{url}/manifests/{digest.replace(':', '-')}.sig", headers=accepted
            ).json()
            [layer] = manifest["layers"]
            assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
            payload = urllib3.request("GET", f"{url}/blobs/{layer['digest']}").data
            critical = json.loads(payload)["critical"]
            assert critical["image"] == {"docker-manifest-digest": digest}
            assert critical["identity"] == {"docker-reference": f"{where}/{repository}"}
            (tmp_path / "payload").write_bytes(payload)
            signature = layer["annotations"]["dev.cosignproject.cosign/signature"]
            (tmp_path / "signature").write_bytes(base64.b64decode(signature))
            _openssl("dgst", "-sha256", "-verify", public, "-signature", tmp_path / "signature", tmp_path / "payload")


def _openssl(*words: str | Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a key with, and to verify by")
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)


def test_what_is_no_key_to_sign_with_is_named_before_anything_is_pushed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    write_layer(tmp_path / "layer.tar", tmp_path / "tree")
    write_archive(tmp_path / "images.tar", [Image("registry.invalid/a:1", (tmp_path / "layer.tar",), ("a",))])
    (tmp_path / "text.pem").write_text("text")
    _openssl("genrsa", "-out", tmp_path / "rsa.pem", "2048")
    for name, said in (("text.pem", "no private key is there"), ("rsa.pem", "not one on the curve P-256")):
        refused = run("push", tmp_path / "images.tar", "--key", tmp_path / name)
        assert refused.exit_code == 1
        assert said in refused.output or "skopeo is missing" in refused.output


def test_a_list_names_what_is_in_an_image_in_the_versions_that_are_pinned(tmp_path: Path, compiler: None) -> None:
    file = tmp_path / "images.tar"
    assert run("build", "--out", file, "--sbom", tmp_path / "lists", "sidecar").exit_code == 0
    [listed] = (tmp_path / "lists").iterdir()
    told = json.loads(listed.read_text())
    [digest] = digests(file).values()
    assert (listed.name, told["bomFormat"], told["metadata"]["component"]["version"]) == (
        "sidecar.cdx.json",
        "CycloneDX",
        digest,
    )
    found = {one["purl"].partition("?")[0] for one in told["components"]}
    packages = {url.removeprefix("pkg:pypi/") for url in found if url.startswith("pkg:pypi/")}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        name.replace("_", "-").lower() + "@" + version for name, _, version in (line.partition("==") for line in lines)
    }
    assert packages - pinned == {f"slicekeeper@{__version__}"}
    assert {one.partition("@")[0] for one in packages} >= {"click", "msgspec", "urllib3"}
    assert not any("flask" in one for one in packages), "what other parts need is not in it"
    assert f"pkg:generic/python@{platform.python_version()}" in found
    if shutil.which("dpkg-query"):
        assert any(url.startswith("pkg:deb/debian/libc6@") for url in found)


def test_what_is_no_archive_or_no_registry_is_named(tmp_path: Path) -> None:
    file = tmp_path / "images.tar"
    file.write_text("text")
    refused = run("push", file)
    assert refused.exit_code != 0
    assert "is no archive of images" in refused.output or "skopeo is missing" in refused.output
    unnamed = run("build", "--registry", "gpus", "--out", tmp_path / "out.tar")
    assert unnamed.exit_code != 0
    assert "must begin with a host" in unnamed.output + str(unnamed.exception)
