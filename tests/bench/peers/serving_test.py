"""serving.py: its options, its CSV, its points beside those of record, and its calls and checks on the CPU, where torch
is. Arguments: fa3-bench and libfa3.so."""

import csv
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import types

import peers_merge
import peers_points
import serving
import serving_csv
from test_helpers import expect, have

ROOT = pathlib.Path(__file__).resolve().parents[3]
SMALL = {"heads": 4, "kv_heads": 2, "head_dim": 64}
BATCHES = [
    {**SMALL, "lengths": [17, 60], "name": "packed"},
    {**SMALL, "lengths": [1, 1, 20], "lengths_k": [70, 5, 50], "page": 16, "sinks": True},
    {**SMALL, "lengths": [30, 9], "window": 8},
    {**SMALL, "lengths": [30, 9], "softcap": 3},
    {**SMALL, "lengths": [30, 9], "alibi": True},
    {**SMALL, "lengths": [1, 3], "lengths_k": [70, 50], "page": 16, "e4m3_cache": True},
    {"heads": 4, "kv_heads": 1, "head_dim": 576, "head_dim_v": 512, "lengths": [1, 1], "lengths_k": [40, 20],
     "page": 16},
]


def refused(bench, *words):
    """What the program says of a wrong command line."""
    program = [sys.executable, ROOT / "tools/peers/serving.py", "--bench", bench, *words]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 2, (words, done)
    return done.stderr


def test_options(bench):
    for words, text in (
        (["--peers", "fa5"], "unknown peers: 'fa5'"),
        (["--set", "grid"], "not planned are timed by peers.py"),
        (["--set", "mine"], "mine"),
        (["--reps", "0"], "'0' is no number above 0"),
        (["--lengths", "5", "--dtype", "fp16", "--head-dim", "64", "--causal", "1"], "timed in bf16"),
        (["--lengths", "5", "--head-dim", "1000", "--causal", "1"], "1000"),
    ):
        expect(refused(bench, *words), text)
    for direction, kinds in (("fwd", {"decode", "chunked", "mixed", "varlen", "window"}), ("bwd", {"varlen_bwd"})):
        options = serving.parse(["--bench", bench, "--direction", direction])
        found = {point.planned["kind"] for point in options.points}
        assert kinds <= found and ("decode" in found) == (direction == "fwd"), found
    program = [sys.executable, ROOT / "tools/peers/peers.py", "--bench", bench, "--set", "documents"]
    expect(subprocess.run(program, capture_output=True, text=True).stderr, "planned calls are timed by serving.py")


def test_points_of_record(bench):
    """What the script measures is what is kept: no point has another name. Those of e4m3 beside bf16 were measured
    otherwise."""
    made = set()
    for direction in ("fwd", "bwd"):
        for point in serving.parse(["--bench", bench, "--direction", direction]).points:
            made.add((point.planned["kind"], point.planned["name"]))
    for path in sorted(ROOT.glob("tests/records/*/serving.csv")):
        with open(path, newline="") as file:
            kept = {(line["kind"], line["point"]) for line in csv.DictReader(file)}
        kept = {point for point in kept if not point[1].endswith((", dense cache", ", latent cache"))}
        assert not kept - made, sorted(kept - made)


def test_csv(folder):
    line = lambda point, peer, us: dict.fromkeys(serving_csv.COLUMNS, "") | {
        "kind": "decode", "point": point, "peer": peer, "us": us
    }  # fmt: skip
    old, path = folder / "old.csv", folder / "card" / "serving.csv"
    old.write_text("kind,point,peer,us,tflops_or_gbytes_s,checked\ndecode,a,libfa3,1,2,ok\ndecode,a,fa4,3,4,ok\n"
                   "decode,b,libfa3,5,6,ok\n")  # fmt: skip
    before = serving_csv.read(old)
    run = {("decode", "a"): [line("a", "libfa3", "7")], ("decode", "b"): [line("b", "libfa3", "8")]}
    table, kept = serving_csv.merged(before, run | {("decode", "c"): [line("c", "fa4", "9")]})
    assert kept == ["kind decode point a: not replaced, as there is no new figure of fa4"], kept
    serving_csv.write(path, table)
    assert serving_csv.read(path) == table
    assert [one["us"] for lines in table.values() for one in lines] == ["1", "3", "8", "9"], table
    old.write_text("kind,point,us\n")
    try:
        serving_csv.read(old)
    except peers_merge.MergeError as error:
        expect(str(error), "no column peer, tflops_or_gbytes_s, checked")
    else:
        raise AssertionError("a file without columns was read")


def small_cases(bench, folder, direction):
    from serving_case import Case

    path = folder / "batches.json"
    path.write_text(json.dumps([batch for batch in BATCHES if direction == "fwd" or "page" not in batch]))
    points, _, _ = peers_points.ask(bench, ["--batches", str(path), "--direction", direction])
    return [Case(point, "cpu") for point in points]


def test_calls_and_checks(bench, library, folder):
    """The parameters that the library gets, by its reference, and what the checks take and do not take."""
    import prepared
    import serving_calls
    from serving_check import check_of, tolerance

    loaded = prepared.Library(library)
    fa3 = prepared.fa3
    for direction in ("fwd", "bwd"):
        for case in small_cases(bench, folder, direction):
            fields, tensors = serving_calls.library_fields(case), serving_calls.forward_tensors(case)
            loaded.reference(fa3.ForwardParams(**fields, **prepared.described(tensors)))
            result = tensors["o"]
            if case.backward:
                tensors = serving_calls.backward_tensors(case, tensors)
                loaded.reference(fa3.BackwardParams(**fields, **prepared.described(tensors)))
                result = [tensors[name] for name in ("dq", "dk", "dv")]
            check = check_of(case)
            error = check(result)
            assert error < tolerance(case) / 2, (case.name, error)
            wrong = [x.float() * 1.1 for x in result] if case.backward else result.float() * 1.1
            assert check(wrong) > tolerance(case), case.name
            (result[1] if case.backward else result)[..., -1] = math.nan
            assert math.isnan(check(result)), case.name


def test_which_peers(bench, folder):
    """Who is asked for which calls, without any peer here."""
    import serving_cudnn
    import serving_flex

    packed, paged, *_ = small_cases(bench, folder, "fwd")
    assert packed.name == "packed" and packed.kind == "batch"
    assert paged.name.startswith("bf16 d64 causal lengths 1,1,20"), paged.name
    assert paged.is_memory_bound() is False and paged.is_cold() and not packed.is_cold()
    sys.modules["cudnn"] = types.SimpleNamespace(create_handle=lambda: None)
    assert serving_cudnn.make_cudnn()(paged) is None  # several lengths of queries over pages
    document = serving_flex.documents_of(packed)
    assert document.tolist() == [0] * 17 + [1] * 60
    mask = serving_flex.mask_of(packed)
    assert mask(0, 0, 20, 18) and not mask(0, 0, 20, 10) and not mask(0, 0, 18, 20)


def main(bench, library):
    test_options(bench)
    test_points_of_record(bench)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        test_csv(folder)
        if have("torch"):
            test_calls_and_checks(bench, library, folder)
            test_which_peers(bench, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
