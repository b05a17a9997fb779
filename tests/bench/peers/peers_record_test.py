"""What is kept of a card: runs merged by peers_merge.py, and by peers.py --record, with stand-ins for torch and a peer.
Arguments: the program fa3-bench, the library."""

import contextlib
import csv
import io
import os
import pathlib
import sys
import tempfile
import unittest.mock

import peers
import peers_fwd
import peers_merge
from test_helpers import MadeUp, expect, made_up_torch, stand_ins

COLUMNS = "direction,dtype,head_dim,causal,batch,seqlen,heads,kv_heads,tflops,seqlen_k"
POINT = "fwd,bf16,{},0,4,512,2,2,{},512"  # head_dim, tflops


def merged(*arguments):
    """The exit status, and what is printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        return peers_merge.main([str(word) for word in arguments]), out.getvalue()


def test_merge(folder):
    def write(name, *lines):
        (folder / name).write_text("\n".join(lines) + "\n")
        return folder / name

    out = folder / "out.csv"
    lines = lambda: out.read_text().splitlines()
    first = write(
        "first.csv", f"{COLUMNS},fa4_tflops,fa4_ratio", POINT.format(64, 1) + ",5,5", POINT.format(128, 2) + ",,"
    )
    columns = f"{COLUMNS},v,head_dim_v,official_tflops,card"
    more = write("more.csv", columns, POINT.format(256, 3) + ",rows,256,7,a", POINT.format(128, 4) + ",rows,128,8,a")
    assert merged(out, first, more) == (0, f"{out}: 3 points\n")
    # The point of both is that of the last; what a file has no column for stays empty.
    assert lines() == [
        f"{COLUMNS},fa4_tflops,fa4_ratio,v,head_dim_v,official_tflops,card",
        POINT.format(64, 1) + ",5,5,,,,",
        POINT.format(128, 4) + ",,,rows,128,8,a",
        POINT.format(256, 3) + ",,,rows,256,7,a",
    ]
    assert sorted(os.listdir(folder)) == ["first.csv", "more.csv", "out.csv"]

    # No figure of a peer is lost; other forms of a point are other points.
    before = lines()
    fewer = write("fewer.csv", columns, POINT.format(64, 9) + ",tiles,64,7,a", POINT.format(128, 9) + ",rows,128,,a")
    status, text = merged(out, fewer)
    assert status == 1 and lines() == [*before, POINT.format(64, 9) + ",,,tiles,64,7,a"], lines()
    expect(text, "head_dim 128", "not replaced, as there is no new figure of official")

    # A line for each peer: a point's are replaced together.
    columns = "case,dtype,head_dim,causal,batch,seqlen_q,seqlen_k,heads,kv_heads,detail,peer,median_us"
    shape = "short,bf16,64,0,1,{},16,2,2,"
    by_peer = folder / "by_peer.csv"
    old = write("old.csv", columns, *(f"{shape.format(n)},{name},1" for n in (16, 4) for name in ("libfa3", "cudnn")))
    new = write("new.csv", columns, *(f"{shape.format(16)},{name},2" for name in ("libfa3", "cudnn", "official")))
    assert merged(by_peer, old, new)[0] == 0
    rows = [line.split(",") for line in by_peer.read_text().splitlines()[1:]]
    expected = [("16", name, "2") for name in ("libfa3", "cudnn", "official")]
    expected += [("4", name, "1") for name in ("libfa3", "cudnn")]
    assert [(row[5], *row[-2:]) for row in rows] == expected, rows
    status, text = merged(by_peer, old)
    assert status == 1, text
    expect(text, "seqlen_q 16", "no new figure of official")

    # What cannot be merged leaves the file as it was.
    before = lines()
    for name, content, *words in (
        ("none.csv", None, "No such file"),
        ("empty.csv", "", "no column dtype"),
        ("cut.csv", f"{COLUMNS}\nfwd,bf16,64", "line 2 has another number of cells"),
        ("long.csv", f"{COLUMNS}\n{POINT.format(64, 1)},1", "line 2 has another number of cells"),
        ("twice.csv", f"{COLUMNS}\n{POINT.format(64, 1)}\n{POINT.format(64, 2)}", "two figures of", "head_dim 64"),
        ("old.csv", old.read_text(), "a line for each point, others one for each point and peer"),
    ):
        path = folder / name if content is None else write(name, content)
        status, text = merged(out, path)
        assert status == 2 and lines() == before, (name, text)
        expect(text, "peers_merge.py: ", *words)


def test_processes(folder):
    """Runs of the same points, each in a process of its own: the medians, of how many, and which are no such runs."""

    def write(name, *lines):
        (folder / name).write_text("\n".join(lines) + "\n")
        return folder / name

    out = folder / "out.csv"
    columns = f"{COLUMNS},min_ms,spread,passes,checked,fa4_tflops,fa4_ratio,card,date"
    first = [columns, POINT.format(64, 9) + ",2,0.1,1,1,90,10,a,3", POINT.format(128, 5) + ",2,0.1,1,1,,,a,3"]
    second = [columns, POINT.format(64, 10) + ",1,0.3,1,0,40,4,a,5", POINT.format(128, 3) + ",2,0.1,2,1,,,a,5"]
    third = [columns, POINT.format(64, 100) + ",3,0.2,1,1,100,1,a,4", POINT.format(128, 4) + ",2,0.1,1,1,,,a,4"]
    runs = [write(f"{n}.csv", *lines) for n, lines in enumerate((first, second, third))]
    old = write("out.csv", COLUMNS, POINT.format(64, 1), POINT.format(256, 2))
    assert merged("--processes", out, *runs) == (0, f"{out}: 3 points\n") and old == out
    expected = [
        columns + ",processes",
        POINT.format(64, 10) + ",1,0.2,3,0,90,4,a,5,3",
        POINT.format(256, 2) + 9 * ",",
        POINT.format(128, 4) + ",2,0.1,4,1,,,a,5,3",
    ]
    assert out.read_text().splitlines() == expected, out.read_text()

    by_peer = folder / "by_peer.csv"
    columns = "case,dtype,head_dim,causal,batch,seqlen_q,seqlen_k,heads,kv_heads,detail,peer,median_us"
    rows = lambda us: [f"short,bf16,64,0,1,16,16,2,2,,{name},{t}" for name, t in (("libfa3", 7), ("cudnn", us))]
    runs_by_peer = [write(f"p{us}.csv", columns, *rows(us)) for us in (30, 100, 9)]
    assert merged("--processes", by_peer, *runs_by_peer)[0] == 0
    assert by_peer.read_text().splitlines()[1:] == [line + ",3" for line in rows(30)], by_peer.read_text()

    for number in (1, 2, 4):
        try:
            merged("--processes", out, *(2 * runs)[:number])
            raise AssertionError(number)
        except SystemExit as error:
            assert error.code == 2
    change = lambda line, old, new: [*third[:line], third[line].replace(old, new), *third[line + 1 :]]
    for lines, *words in (
        (third[:2], "not the same columns and points"),
        (change(2, "bf16,128", "bf16,96"), "not the same columns and points"),
        (change(0, "fa4_ratio", "fa2_ratio"), "not the same columns and points"),
        (change(1, ",100,1,a", ",,,a"), "head_dim 64", "fa4_tflops is '' and '40' and '90'"),
        (change(1, ",a,", ",b,"), "head_dim 64", "card is 'a' and 'b'"),
        (expected, "several already"),
        (first, "two of the runs are the same"),
    ):
        status, text = merged("--processes", out, *runs[:2], write("other.csv", *lines))
        assert status == 2 and out.read_text().splitlines() == expected, text
        expect(text, "peers_merge.py: ", *words)
    fewer = write("fewer.csv", columns, rows(1)[0])
    status, text = merged("--processes", by_peer, *runs_by_peer[:2], fewer)
    assert status == 2, text
    expect(text, "the runs have not the same peers")


def test_record(bench, library, folder):
    """Runs on two cards, of some points each."""
    clock, speeds, card = [0.0], {"libfa3": 2.0, "fa2": 4.0, "cudnn": 5.0}, ["NVIDIA H100 80GB HBM3"]

    def maker(name):
        def prepare(point, q, k, v):
            def call():
                clock[0] += speeds[name]
                return [MadeUp(1.0)]

            call.kernel = "fa3_some"
            return call

        return prepare

    command = f"--bench {bench} --library libfa3={library} --results {folder} --reps 2 --warmups 0 --idle-ms 0".split()
    command += "--head-start-ms 0 --causal 0 --batch 1 --heads 2 --seqlen 64".split()
    torch = made_up_torch(clock)
    torch.cuda.get_device_name = lambda: card[0]

    def run(*words):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            return peers.main([*command, *words]), out.getvalue()

    def rows(path):
        with open(folder / path, newline="") as file:
            return list(csv.DictReader(file))

    names = {name: (lambda name=name: maker(name)) for name in ("fa2", "cudnn")}
    with stand_ins({"torch": torch}), unittest.mock.patch.multiple(
        peers_fwd, make_library=lambda _: maker("libfa3"), PEERS=names
    ):
        for head_dim in ("64", "128"):
            status, text = run("--record", "forward", "--peers", "fa2", "--head-dim", head_dim)
            assert status == 0 and f"{folder}/h100/forward.csv: merged" in text, text
        found = rows("h100/forward.csv")
        assert [(row["head_dim"], row["fa2_ratio"], row["card"]) for row in found] == [
            ("64", "0.5000", card[0]), ("128", "0.5000", card[0])
        ], found  # fmt: skip
        assert os.listdir(folder / "h100") == ["forward.csv"]

        # Anew, with one peer more; then nothing is measured that would lose it.
        speeds["libfa3"] = 1.0
        assert run("--record", "forward", "--peers", "fa2,cudnn", "--head-dim", "128")[0] == 0
        found = rows("h100/forward.csv")
        ratios = [(row["head_dim"], row["fa2_ratio"], row["cudnn_ratio"]) for row in found]
        assert ratios == [("64", "0.5000", ""), ("128", "0.2500", "0.2000")], ratios
        was = clock[0]
        status, text = run("--record", "forward", "--peers", "fa2", "--head-dim", "128")
        assert status == 2 and clock[0] == was and rows("h100/forward.csv") == found, text
        expect(text, "h100/forward.csv has figures of cudnn at these points")

        # A line for each, and another card.
        card[0] = "NVIDIA H200"
        for head_dim in ("64", "128"):
            assert run("--record", "shapes", "--peers", "fa2", "--head-dim", head_dim)[0] == 0
        found = [(row["head_dim"], row["peer"], row["median_us"]) for row in rows("h200/shapes.csv")]
        assert found == [(d, *of) for d in ("64", "128") for of in (("libfa3", "1000.00"), ("fa2", "4000.00"))], found
        assert run("--record", "shapes", "--peers", "none", "--head-dim", "128")[0] == 2
        (folder / "h200/forward.csv").write_text("not this\n")
        status, text = run("--record", "forward", "--peers", "fa2", "--head-dim", "128")
        assert status == 2, text
        expect(text, "--record: ", "h200/forward.csv: no column dtype")
    assert sorted(os.listdir(folder)) == ["h100", "h200"]


def main(bench, library):
    with tempfile.TemporaryDirectory() as folder:
        test_merge(pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        test_processes(pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        test_record(bench, library, pathlib.Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
