"""The points that peers.py measures, as fa3-bench answers with them: also the protocol and the columns of the CSV."""

import json
import subprocess
import sys
import types


class Point(types.SimpleNamespace):
    """A point as fa3-bench describes it: set ("" without one), dtype, head_dim, head_dim_v, causal, batch, seqlen,
    seqlen_k, heads, kv_heads, kernel, v, scales, two_level, library_chooses, flop, label; planned: None, or what makes
    it a planned call."""

    planned = None

    def group(self):
        dims = str(self.head_dim) + ("" if self.head_dim_v == self.head_dim else f"x{self.head_dim_v}")
        return f"{self.dtype} d{dims} {'causal' if self.causal else 'full'}"

    def is_fp8(self):
        return self.dtype == "e4m3"

    def mask(self):
        return "causal_bottom_right" if self.causal else "none"


def ask(bench, words):
    """Points, protocol and columns for these options of fa3-bench. If it refuses them, the process ends as it did."""
    done = subprocess.run([bench, *words, "--list", "--json", "-"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    answer = json.loads(done.stdout)
    points = [Point(**point) for point in answer["points"]]
    return points, types.SimpleNamespace(**answer["protocol"]), answer["csv_columns"].split(",")
