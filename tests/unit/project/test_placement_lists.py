# SPDX-License-Identifier: Apache-2.0
"""The placement benchmark's lists: a bad one is refused by file, line, column and remedy, before anything is run."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "benchmarks/placement/run.py"
SPEC = importlib.util.spec_from_file_location("placement_run", FILE)
run = importlib.util.module_from_spec(SPEC)
sys.modules["placement_run"] = run
SPEC.loader.exec_module(run)

NODES = "sn,cpu_milli,memory_mib,gpu,model"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time"


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        file = tmp_path / "list.csv"
        file.write_text("\n".join(lines) + "\n", encoding="latin-1")
        return file

    return write


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([NODES, "a,64000,1,1000000,T4"], "line 2: gpu is '1000000'; write a whole number from 0 to 1000"),
        ([NODES, "a,1e300,1,8,T4"], "line 2: cpu_milli is '1e300'; write a whole number from 0 to"),
        (["", ""], "column sn is missing; its first line must name it"),
        (["sn,cpu_milli,memory_mib,gpu", "a,1,1,1"], "column model is missing; its first line must name it"),
        ([NODES, "a,64000,1,8,T4", "b,many,1,8,T4"], "line 3: cpu_milli is 'many'; write a whole number from 0 to"),
        (["", NODES, "", "b,many,1,8,T4"], "line 4: cpu_milli is 'many'"),
        ([NODES, "a,64000,1,-8,T4"], "line 2: gpu is '-8'; write a whole number"),
        ([NODES, "a,64000,1"], "line 2: gpu is ''; write a whole number"),
        ([NODES, "a,64000,1,0,"], "no node has a GPU; column gpu must be above 0"),
        ([NODES, "a,64000,1,8,T4", "a,64000,1,8,T4"], "node a is there twice; column sn must be different"),
        ([NODES, "\xe9,64000,1,8,T4"], "cannot be read as CSV"),
    ],
)
def test_a_bad_list_of_nodes_is_refused(written, rows, said):
    file = written(*rows)
    with pytest.raises(SystemExit) as refused:
        run.read_nodes(file)
    assert str(refused.value).startswith(str(file))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("p,1000,1,1,1500,,", "line 2: gpu_milli is '1500'; write a whole number from 1 to 1000"),
        ("p,1000,1,0.5,500,,", "line 2: num_gpu is '0.5'; write a whole number"),
        ("p,1000,1,1,500,yesterday,", "line 2: creation_time is 'yesterday'; write seconds, or nothing"),
        ("p,1000,1,0,0,,", "no pod asks for a GPU; column num_gpu must be above 0"),
    ],
)
def test_a_bad_list_of_pods_is_refused(written, row, said):
    with pytest.raises(SystemExit) as refused:
        run.read_pods(written(PODS, row))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffsn,cpu_milli,memory_mib,gpu,model\na,1,2,3,T4\n",
        "sn,cpu_milli,memory_mib,gpu,model\r\na,1,2,3,T4\r\n",
        "\n\nsn,cpu_milli,memory_mib,gpu,model\n\na,1,2,3,T4\n\n",
        "sn, cpu_milli, memory_mib, gpu, model\na, 1, 2, 3, T4\n",
        "more,model,gpu,memory_mib,cpu_milli,sn\n,T4,3,2,1,a\n",
    ],
    ids=["byte order mark", "CRLF", "blank lines", "spaces", "other order"],
)
def test_a_list_may_be_written_in_several_ways(tmp_path, text):
    file = tmp_path / "list.csv"
    file.write_bytes(text.encode())
    assert run.read_nodes(file) == [run.Node("a", 1, 2, 3, "T4")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--seeds", "0"], "argument --seeds: '0' is no number from 1"),
        (["--load", "nan"], "argument --load: 'nan' is no percentage"),
        (["--shards", "2"], "--shards is 2, but only 1 nodes have GPUs"),
    ],
)
def test_a_bad_argument_is_refused(tmp_path, monkeypatch, capsys, given, said):
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(f"{NODES}\na,64000,262144,8,T4\n")
    pods.write_text(f"{PODS}\np,1000,1024,1,500,,\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--nodes", str(nodes), "--pods", str(pods), *given])
    with pytest.raises(SystemExit):
        run.main()
    assert said in capsys.readouterr().err


def test_a_missing_list_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="none.csv: cannot be read as CSV: .*No such file"):
        run.read_pods(tmp_path / "none.csv")


def test_a_good_list_is_read(written):
    nodes = run.read_nodes(written(NODES, "a,64000,262144,8,T4", "b,64000,262144,0,"))
    pods = run.read_pods(written(PODS, "p,1000,1024,1,500,0,60", "q,2000,1024,2,1000,,", "r,1000,1024,0,0,,"))
    assert [(node.name, node.gpus) for node in nodes] == [("a", 8)]
    assert [(pod.gpus, pod.core, pod.life) for pod in pods] == [(1, 50, 60.0), (2, 100, 1.0), (0, 0, 1.0)]


@pytest.mark.parametrize(
    "given", [["--policy", "fgd", "--cpu-pods", "kube", "--prior"], ["--load", "80", "--arrivals", "20"]]
)
def test_a_good_list_is_run(tmp_path, monkeypatch, capsys, given):
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(f"{NODES}\na,64000,262144,2,T4\n")
    pods.write_text(f"{PODS}\np,1000,1024,1,500,0,60\nq,1000,1024,0,0,0,60\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--nodes", str(nodes), "--pods", str(pods), "--seeds", "1", *given])
    run.main()
    assert "allocation" in capsys.readouterr().out
