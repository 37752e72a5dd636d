# SPDX-License-Identifier: Apache-2.0
"""The library loads everywhere and does nothing without CUDA."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

from check import Skip, case, check, patiently
from harness import BUILD, ROOT, Node, Seat

sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT.parent / "tests" / "support"))

import debian
import headers

LIBRARY = BUILD / "libvcuda.so"
PLAIN = BUILD / "fake" / "plain"


@case("load: no symbol newer than glibc 2.17")
def symbols() -> str:
    table = subprocess.run(["objdump", "-T", str(LIBRARY)], capture_output=True, text=True, check=True)
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", table.stdout)}
    check(versions and max(versions) <= (2, 17), f"{sorted(versions)[-1]}")
    return f"newest: {'.'.join(map(str, max(versions)))}"


@case("load: only hooks are exported")
def exports() -> None:
    table = subprocess.run(
        ["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in table.splitlines()]
    strange = [n for n in names if not re.match(r"cu[A-Z]|nvmlDevice|dlv?sym$", n)]
    check(names and not strange, str(strange))


def rows(what: str) -> dict[str, int]:
    """Read the layer of each file, 0 for the highest, from the table of the architecture page."""
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    lines = page.partition(f"| {what} | contents |")[2].splitlines()[2:]
    table = takewhile(lambda line: line.startswith("|"), lines)
    return {name: n for n, line in enumerate(table) for name in re.findall(r"`(\w+)`", line.split("|")[1])}


@case("load: the files of the limiter and of the arbiter form layers")
def layers() -> None:
    """None needs one that needs it, or one of a higher row of the page's table.

    Only a connection starts the others by `vc_life`, a table of the topmost.
    """
    for what, objects, sources in (("the limiter", "limiter", "src"), ("the arbiter", "obj", "src/arbiter")):
        owner, wants, row = {}, {}, rows(what)
        for source in (ROOT / sources).glob("*.c"):
            table = subprocess.run(
                ["nm", BUILD / objects / f"{source.stem}.o"], capture_output=True, text=True, check=True
            ).stdout
            owner |= dict.fromkeys(re.findall(r" [A-TV-Z] (\w+)$", table, re.M), source.stem)
            wants[source.stem] = set(re.findall(r" U (\w+)$", table, re.M)) - {"vc_life"}
        check(row.keys() == wants.keys(), f"docs/architecture.md and {sources}: {sorted(row.keys() ^ wants.keys())}")
        needs = {name: {owner[symbol] for symbol in wanted if symbol in owner} for name, wanted in wants.items()}
        upwards = [f"{name} needs {need}" for name, needed in needs.items() for need in needed if row[need] < row[name]]
        check(not upwards, f"docs/architecture.md, {what}: {upwards}")
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            raise AssertionError(f"{sources}: {' needs '.join(reversed(error.args[1]))}") from None


def run(program: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program,
        env={**os.environ, "LD_PRELOAD": str(LIBRARY), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@case("load: programs without CUDA run as without it")
def plain() -> None:
    bare = subprocess.run([PLAIN], capture_output=True, text=True, check=True)
    with_it = run([str(PLAIN)])
    check((with_it.stdout, with_it.stderr) == (bare.stdout, ""), f"{with_it}")
    for program in (["sh", "-c", "echo $((6*7))"], ["python3", "-c", "import threading; print(42)"]):
        got = run(program)
        check((got.stdout, got.stderr, got.returncode) == ("42\n", "", 0), f"{program}: {got}")


@case("load: nothing of the limiter's calls exit, a signal handler or umask")
def never() -> None:
    table = subprocess.run(["objdump", "-T", str(LIBRARY)], capture_output=True, text=True, check=True)
    wanted = set(re.findall(r"\*UND\*.* (\w+)$", table.stdout, re.M))
    banned = {"exit", "_exit", "abort", "sigaction", "signal", "umask", "system", "fork", "setenv", "putenv"}
    check(not wanted & banned, str(wanted & banned))
    text = "".join(p.read_text() for p in (ROOT / "src").rglob("*.[ch]"))
    check("/tmp" not in text, "a fixed path in /tmp")


def compiled(name: str, *command: str) -> Path:
    """Compile a program aside and rename it: another case may compile or run it at the same time."""
    program = BUILD / name
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        part = Path(scratch) / name
        subprocess.run([*command, "-o", str(part)], check=True)
        part.rename(program)
    return program


def static_program() -> Path:
    return compiled("static", "gcc", "-static", str(ROOT / "test/run/plain.c"))


def musl_program() -> Path:
    if not shutil.which("musl-gcc"):
        debian.install("musl-tools")
    compiler = shutil.which("musl-gcc")
    if not compiler:
        raise Skip("Debian's musl-tools is not installed")
    return compiled("musl-plain", compiler, str(ROOT / "test/run/plain.c"))


def old_program() -> Path:
    """Build a program that requires nothing newer than glibc 2.2.5, libpthread and libdl by name."""
    gcc = ("gcc", "-O2", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-nostartfiles", "-Wl,--no-as-needed")
    program = compiled("old", *gcc, str(ROOT / "test/run/old.c"), "-l:libpthread.so.0", "-l:libdl.so.2")
    table = subprocess.run(["objdump", "-T", str(program)], capture_output=True, text=True, check=True).stdout
    check(set(re.findall(r"GLIBC_([\d.]+)", table)) == {"2.2.5"}, table)
    return program


@case("load: static programs are unharmed")
def static() -> None:
    check(run([str(static_program())]).returncode == 0, "a static program failed")


@case("load: programs that require only old glibc symbols are unharmed")
def old_glibc() -> None:
    got = run([str(old_program())])
    check((got.returncode, got.stdout, got.stderr) == (0, "old 0\n", ""), f"{got}")


@case("load: musl programs are unharmed")
def musl() -> str:
    got = run([str(musl_program())])
    check(got.returncode == 0 and got.stdout.startswith("plain") and not got.stderr, f"{got}")
    source = BUILD / "musl-dl.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\nint main(void) {\n"
        'return !(dlsym(RTLD_DEFAULT, "printf") == (void *)printf); }\n'
    )
    program = compiled("musl-dl", shutil.which("musl-gcc") or "", str(source))
    check(run([str(program)]).returncode == 0, "dlsym is broken on musl")
    return "musl-gcc"


# A namespace with an /etc of its own: the machine's ld.so.preload is never touched. The programs lie
# where everybody may read them, and setuid counts.
NAMESPACE = """
set -e
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/etc /mnt/bin
cp -a /etc/. /mnt/etc
cp {library} /mnt/libvcuda.so
for p in {programs}; do
  cp $p /mnt/bin/
  cp $p /mnt/bin/setuid-$(basename $p)
  chmod 4755 /mnt/bin/setuid-$(basename $p)
done
mount --bind /mnt/etc /etc
{how}
for p in {programs}; do
  for q in $(basename $p) setuid-$(basename $p); do
    echo "$q: $(setpriv --reuid 65534 --regid 65534 --clear-groups /mnt/bin/$q maps 2>&1)"
    setpriv --reuid 65534 --regid 65534 --clear-groups /mnt/bin/$q >/dev/null
  done
done
su -s /bin/sh nobody -c 'mount >/dev/null'
"""


def in_namespace(programs: list[Path], how: str) -> dict[str, str]:
    """Each program's words, run as nobody, plain and setuid root."""
    if os.geteuid() != 0:
        raise Skip("needs root, for a namespace of its own")
    if subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    ).returncode:
        raise Skip("no mount namespace here")
    script = NAMESPACE.format(library=LIBRARY, programs=" ".join(map(str, programs)), how=how)
    got = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=240
    )
    check(got.returncode == 0 and not got.stderr, f"{got.returncode}: {got.stdout}{got.stderr}")
    return dict(line.split(": ", 1) for line in got.stdout.splitlines())


def everywhere() -> list[Path]:
    return [PLAIN, static_program(), musl_program(), old_program()]


PRELOAD_FILE = "echo /mnt/libvcuda.so > /etc/ld.so.preload"


@case("load: ld.so.preload beside glibc, static, musl and old programs, setuid ones too")
def preload_file() -> str:
    before = Path("/etc/ld.so.preload").exists()
    said = in_namespace(everywhere(), PRELOAD_FILE)
    check(said["plain"] == "user 65534, effective 65534, with", str(said))
    check(said["setuid-plain"] == "user 65534, effective 0, with", str(said))
    for name in ("static", "musl-plain"):
        check(said[name] == "user 65534, effective 65534, without", str(said))
        check(said[f"setuid-{name}"] == "user 65534, effective 0, without", str(said))
    check(said["old"] == said["setuid-old"] == "old 0", str(said))
    check(Path("/etc/ld.so.preload").exists() == before, "the machine's own file was touched")
    return f"{len(said)} programs as nobody"


@case("load: LD_PRELOAD beside setuid programs")
def preload_variable() -> str:
    said = in_namespace(everywhere(), "export LD_PRELOAD=/mnt/libvcuda.so")
    check(said["plain"] == "user 65534, effective 65534, with", str(said))
    # The loader itself ignores a path in LD_PRELOAD if the rights were raised.
    check(said["setuid-plain"] == "user 65534, effective 0, without", str(said))
    check(said["setuid-musl-plain"] == said["setuid-static"] == "user 65534, effective 0, without", str(said))
    check(said["old"] == said["setuid-old"] == "old 0", str(said))
    return f"{len(said)} programs as nobody"


@case("load: what it costs at the start of a program")
@patiently
def cost() -> str:
    """Least of many, in turn: the machine's other work is not the library's."""

    def once(env: dict[str, str]) -> float:
        start = time.perf_counter()
        subprocess.run([str(PLAIN), "x"], env=env, check=True)
        return (time.perf_counter() - start) * 1e3

    without, preloaded = dict(os.environ), {**os.environ, "LD_PRELOAD": str(LIBRARY)}
    took = [(once(without), once(preloaded)) for _ in range(60)]
    bare, loaded = (min(each) for each in zip(*took, strict=True))
    check(loaded - bare < 1.0, f"{loaded - bare:.2f} ms")
    return f"{loaded - bare:.2f} ms more than {bare:.2f} ms"


@case("load: compiled against cuda.h 12 as well")
def older_headers() -> None:
    folder = headers.fetch("12")
    subprocess.run(
        ["make", "-s", "-C", str(ROOT), "B=build/cuda12", f"H13={folder}", "build/cuda12/libvcuda.so"],
        check=True,
        capture_output=True,
    )


@case("load: unmodified numba-cuda compiles and launches on the fake GPU, in a seat")
def numba() -> str:
    python = numba_python()
    program = (ROOT / "test/run/numba_program.py").resolve()
    with Node(virtual=False) as node:
        p = node.run(Seat(50, program=[str(python), str(program)], name="numba"))
        out, err = p.communicate(timeout=150)
    check(p.returncode == 0 and "numba: fine" in out, f"{out}{err}"[-600:])
    return out.strip().splitlines()[-1]


def numba_python() -> Path:
    """numba-cuda in a virtual environment of its own, kept beside the headers."""
    home = headers.cache_root() / "numba-cuda"
    python = home / "bin" / "python"
    home.parent.mkdir(parents=True, exist_ok=True)
    with debian.turn(home.with_suffix(".lock")):
        if not (home / "ready").exists():
            made = subprocess.run(["python3", "-m", "venv", str(home)], capture_output=True, check=False)
            # numba-cuda 0.30 calls numpy.row_stack, which NumPy 2.5 no longer has.
            pip = [str(python), "-m", "pip", "install", "-q", "numba-cuda[cu13]", "numpy<2.5"]
            if made.returncode or subprocess.run(pip, capture_output=True, check=False).returncode:
                raise Skip("numba-cuda cannot be had here")
            (home / "ready").touch()
    return python


def unit(program: Path) -> str:
    """Run a unit test: what it says is shown if it fails, else the last line of its output."""
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    check(done.returncode == 0, f"exit status {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout.strip().rpartition("\n")[2]


for name in sorted(path.stem for path in (ROOT / "test" / "unit").glob("*.c")):
    for build in (".", "asan"):
        case(
            f"unit: {name}{' under sanitizers' if build != '.' else ''}",
            lambda name=name, build=build: unit(BUILD / build / "unit" / name),
        )
