"""peers.py's command line: what it takes, what it refuses, and what it leaves to fa3-bench. Arguments: the program
fa3-bench, the library."""

import importlib.util
import pathlib
import subprocess
import sys

import peers
from peers_fwd import FORMS, PEERS, useful_peers
from test_helpers import HERE, SKIPPED, expect, listed, made_point


def main(bench, library):
    assert "matplotlib" not in sys.modules  # machines with a GPU need not have it
    parse = lambda *words: peers.parse(["--bench", bench, *words])
    command = [sys.executable, HERE / "peers.py", "--bench", bench]

    def refused(*words):
        done = subprocess.run([*command, *words], capture_output=True, text=True)
        assert done.returncode == 2, done
        return done.stderr

    options = parse()
    assert options.peers == list(PEERS) and {"triton", "standard"} <= set(options.peers), options.peers
    assert options.library == [("libfa3", None)], options.library
    assert parse("--peers", "standard,triton").peers == ["standard", "triton"]
    assert parse("--peers", "none").peers == []
    two = parse("--library", "old=/a=b/libfa3.so", "--library=new=libfa3.so").library
    assert two == [("old", "/a=b/libfa3.so"), ("new", "libfa3.so")], two
    # Without a word, those that do some of the points.
    fp8 = ["cudnn", "official", "cublas", "tiles", "two_level", "blocks", "bf16", "quantize"]
    quarter, half = (made_point(dtype, 64, 0, 1, 64, 1, 1) for dtype in ("e4m3", "bf16"))
    assert useful_peers([quarter]) == fp8, useful_peers([quarter])
    assert useful_peers([quarter, half]) == [*PEERS, *FORMS]
    assert parse("--peers", "quantize,fa2").peers == ["quantize", "fa2"]
    expect(refused("--peers", "cudnn,fa9"), "unknown peers: 'fa9'")
    expect(refused("--peers", "cudnn,"), "unknown peers: ''")
    expect(refused("--point-ms", "soon"), "--point-ms", "soon")
    expect(refused("--csv", "--passes"), "--csv")
    expect(refused("--csv", "true"), "'true'")
    for wrong in ("libfa3.so", "=libfa3.so", "new=", "a,b=libfa3.so", "-x=libfa3.so"):
        expect(refused(f"--library={wrong}"), f"'{wrong}' is not NAME=PATH")
    expect(refused("--library", f"triton={library}"), "'triton' is a peer's name")
    expect(refused("--library", f"tiles={library}"), "'tiles' is a peer's name")
    expect(refused("--library", f"a={library}", "--library", f"a={library}"), "a name is given twice")
    expect(refused("--library", f"a={library}.none"), f"{library}.none")
    expect(refused("--library", f"python={sys.executable}"), "--library")
    expect(refused("--bench", "/no/fa3-bench"), "/no/fa3-bench", "--bench")
    # What is kept of a card is of one library, and each of its files has its points.
    assert parse("--record", "forward").record == "forward" and parse("--record", "shapes").record == "shapes"
    assert parse("--record", "fp8", "--set", "fp8", "--results", "/a").results == pathlib.Path("/a")
    assert parse("--record", "backward", "--direction", "bwd", "--library=libfa3=/a").record == "backward"
    for words in ("--library=new=/a", "--library=libfa3=/a --library=old=/b"):
        expect(refused("--record", "forward", *words.split()), "for one --library, whose name is libfa3")
    for words in ("backward", "fp8", "shapes --set fp8", "forward --set grid,fp8", "forward --direction bwd"):
        expect(refused("--record", *words.split()), f"--record {words.split()[0]} is not for all of these points")
    expect(refused("--record", "serving"), "--record", "serving")

    # Whatever else is said goes to fa3-bench, which refuses what it does not know, and answers.
    expect(refused("--set", "grid,mine"), "mine")
    expect(refused("--dtype", "fp8"), "fp8")
    expect(refused("--pass", "3"), "--pass")
    expect(refused("--point", "3"), "--point")  # no short for --point-ms
    expect(refused("--clock"), "--clock")
    expect(refused("--head-dim", "1000"), "bf16 d1000", "q.dim[3]")
    expect(refused("--json", "report.json"), "--json")
    answer, protocol = listed(bench), options.protocol
    assert vars(protocol) == answer["protocol"] and [vars(p) for p in options.points] == answer["points"]
    assert (protocol.idle_ms, protocol.warmups, protocol.reps, protocol.passes, protocol.seed) == (100, 5, 30, 1, 1)
    some = parse("--set", "extra,fp16", "--csv", "a.csv", "--passes=3", "--peers", "fa2", "--filter", "seqlen 512 ")
    assert (some.csv, some.peers, some.protocol.passes) == ("a.csv", ["fa2"], 3)
    assert {(p.dtype, p.head_dim, p.seqlen) for p in some.points} == {("fp16", 128, 512)} and len(some.points) == 2
    points = options.points
    assert points[0].flop == 4 * 512 * 512 * 64 * 32 * 32 and points[-1].flop == 2 * 16384**2 * 256 * 8

    # The backward pass: five products, of the peers that have it, and of the library with its sums in a fixed order.
    backward = parse("--direction", "bwd")
    assert backward.peers == ["cudnn", "fa2", "fa4", "official", "deterministic", "centered"], backward.peers
    assert parse("--direction", "bwd", "--peers", "deterministic,fa4").peers == ["deterministic", "fa4"]
    assert [p.flop for p in backward.points] == [2.5 * p.flop for p in points]
    assert all(p.direction == "bwd" and p.label.startswith("bwd bf16 d") for p in backward.points)
    expect(refused("--direction", "bwd", "--dtype", "e4m3"), "e4m3 has no backward pass")
    expect(refused("--direction", "bwd", "--peers", "fa2,triton"), "no backward pass of triton is measured")
    expect(refused("--direction", "bwd", "--peers", "tiles"), "no backward pass of tiles is measured")
    expect(refused("--peers", "fa2,deterministic"), "no forward pass of deterministic is measured")
    expect(refused("--library", f"deterministic={library}"), "'deterministic' is a peer's name")
    expect(refused("--direction", "both"), "--direction")

    if importlib.util.find_spec("torch") is None:
        assert subprocess.run([*command, "--library", f"fa3={library}"]).returncode == SKIPPED


if __name__ == "__main__":
    main(*sys.argv[1:])
