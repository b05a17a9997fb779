#!/usr/bin/env python3
"""Draws the pictures that the READMEs of fa3-sass and of ptx show, or with --check says whether they still are what it
draws."""
import argparse
import os
import re
import subprocess
import sys

folder = os.path.dirname(os.path.abspath(__file__))


def pictures(library):
    """File names and what each shows, as fa3-sass wants it."""
    return {"algorithm2.svg": [os.path.join(folder, "algorithm2.sass")],
            "alg2.svg": [library, "fa3_alg2_bf16_d128_full_128x176"],
            "algorithm2_ptxas.svg": [library, "fa3_alg2asis_bf16_d128_full_128x176"],
            "forward.svg": [library, "fa3_fwd_bf16_d128_full_192x64"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a picture is another one")
    parser.add_argument("tool", metavar="fa3-sass")
    parser.add_argument("library")
    check, tool, library = vars(parser.parse_args()).values()
    stale = []
    for name, shown in pictures(library).items():
        drawn = subprocess.run([tool, "timeline", *shown], check=True, stdout=subprocess.PIPE).stdout
        drawn = re.sub(rb"\.L_x_\d+", b".L_x", drawn)  # nvdisasm numbers labels by what else it reads
        path = os.path.join(folder, name)
        if check:
            if not os.path.exists(path) or open(path, "rb").read() != drawn:
                stale.append(name)
        else:
            with open(path, "wb") as file:
                file.write(drawn)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what fa3-sass draws today; `meson compile -C build sass-pictures` makes them")


if __name__ == "__main__":
    main()
