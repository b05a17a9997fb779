#!/usr/bin/env python3
"""The estimate of `fa3-sass floors` against the hardware's counters: the share of clocks in which the tensor cores are
busy, of each kernel in the tables that tools/counters made (tests/records/kernels.md). Long sequences alone count, as a
launch's beginning and end are in the measured shares."""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
LONG = 8000  # queries
MOST = 0.10


def measured(document):
    """{pattern of a cubin's name: share}"""
    lines = re.findall(r"^\| ((?:bwd\w* )?d\d+ \w+|alg\w+) \| (\d+) \|(?:[^|]*\|){3} (\d+)% \|", document, re.M)
    shares = {}
    for kernel, seqlen, share in lines:
        if int(seqlen) > LONG:
            first, *rest = kernel.split()
            if kernel.startswith("d"):
                name = f"fwd_bf16_{first}_{rest[0]}_*x64"
            else:
                name = f"{first}_bf16_{'_'.join(rest or ['d128', 'full'])}_*"
            shares.setdefault(name, int(share) / 100)
    return shares


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", metavar="fa3-sass")
    parser.add_argument("cubins", type=pathlib.Path, help="their folder")
    options = parser.parse_args()
    shares = measured((ROOT / "tests/records/kernels.md").read_text())
    if len(shares) < 24:
        sys.exit(f"only {len(shares)} kernels found in the table of counters")
    wrong = []
    for name, share in shares.items():
        [cubin] = options.cubins.glob(f"fa3_{name}.cubin")
        told = subprocess.run([options.tool, "floors", "--json", cubin], check=True, stdout=subprocess.PIPE).stdout
        loops = json.loads(told)["loops"]  # of a backward pass several, which have the tensor cores together
        estimate = loops[0]["estimated tensor share"]
        off = estimate / share - 1
        print(f"{cubin.stem:45} measured {share:.2f}, estimated {estimate:.2f}: {off:+.0%}")
        if abs(off) > MOST:
            wrong.append(cubin.stem)
    if wrong:
        sys.exit(f"more than {MOST:.0%} beside what was measured: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
