# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper images`: build the images, and push them to a registry. A checkout has it, and no installation."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import click
import yaml

from images import archive
from images.oci import digests, join_archives, write_archive
from images.recipes import RECIPES
from slicekeeper.config.settings import Images
from slicekeeper.config.yaml_file import convert

FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def images() -> None:
    """Build Slicekeeper's images, and push them to your registry."""


@images.command()
@click.option("--registry", default=Images().registry, show_default=True, help="Registry of the images' names.")
@click.option("--out", type=FILE, required=True, help="OCI archive to write.")
@click.option(
    "--sbom", type=click.Path(path_type=Path, file_okay=False), help="Folder for the lists of contents (CycloneDX)."
)
@click.argument("parts", nargs=-1, type=click.Choice(list(RECIPES)), metavar="[PART]...")
def build(registry: str, out: Path, sbom: Path | None, parts: tuple[str, ...]) -> None:
    """Write the images of all parts, or of some, into an archive.

    The settings that name the images are printed.

    `ctr -n k8s.io images import FILE` imports it on a node; `push` pushes it to a registry. With --sbom, PART.cdx.json
    lists what is in an image (CycloneDX).
    """
    named = convert({"registry": registry}, Images, "--registry")
    with tempfile.TemporaryDirectory() as folder:
        made = archive.images(archive.build_wheel(Path(folder)), list(parts or RECIPES), named)
        write_archive(out, made)
    found = digests(out)
    if sbom is not None:
        from images.sbom import describe  # noqa: PLC0415 - half a second, and a checkout's alone

        sbom.mkdir(parents=True, exist_ok=True)
        for image in made:
            (sbom / f"{_part_of(image.name)}.cdx.json").write_text(describe(image, found[image.name]), "utf-8")
    click.echo(_settings(registry, found), nl=False)


@images.command()
@click.option("--out", type=FILE, required=True, help="OCI archive to write.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def join(out: Path, files: tuple[Path, ...]) -> None:
    """Join archives of the same images for several architectures.

    The settings that name the result are printed. Run `build` on a machine of each architecture first. A node takes the
    image of its own architecture.
    """
    try:
        join_archives(out, files)
        found = digests(out)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(_settings(next(iter(found)).rpartition("/")[0], found), nl=False)


@images.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--key", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Private key to sign with.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTION...]")
def push(file: Path, key: Path | None, options: tuple[str, ...]) -> None:
    """Push the images in FILE to the registry in their names.

    `skopeo copy` does it, with its logins, and takes the OPTIONs, for example `--sign-by FINGERPRINT`. The digests are
    those that `build` has printed. With --key (PEM, on the curve P-256) each gets a signature in cosign's format.
    """
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        raise click.ClickException("skopeo is missing; on Debian or Ubuntu: apt-get install skopeo")
    copy = [skopeo, "copy", "--quiet", "--all", "--preserve-digests", *options]  # of all architectures
    try:
        found = digests(file)
        with tempfile.TemporaryDirectory() as folder:
            signatures = Path(folder) / "signatures.tar"
            if key is not None:
                from images.signatures import read_key, write_signatures  # noqa: PLC0415 - who signs has cryptography

                write_signatures(signatures, found, read_key(key))
            for name, digest in found.items():
                _copy(copy, file, name)
                click.echo(f"{name.rpartition(':')[0]}@{digest}")
            for name in digests(signatures) if key is not None else ():
                _copy(copy, signatures, name)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _copy(command: list[str], file: Path, name: str) -> None:
    words = [*command, f"oci-archive:{file}:{name}", f"docker://{name}"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{name} was not pushed: {done.stderr.strip()}")


def _settings(registry: str, found: dict[str, str]) -> str:
    """Return the section for the settings file, or for the chart's values."""
    by_part = {_part_of(name): digest for name, digest in found.items()}
    return yaml.safe_dump({"images": {"registry": registry, "digests": by_part}}, sort_keys=False)


def _part_of(image: str) -> str:
    return image.rpartition("/")[2].partition(":")[0]
