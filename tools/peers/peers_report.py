"""What peers.py prints: a line for each point, means, and which figures are missing."""

import collections
import math

from peers_fwd import NO_ATTENTION


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def print_row(row, names, options):
    cells = [f"{row.point.label:50s} {row.first} {row.tflops(row.first):6.1f}"]
    for name in names:
        cells.append(f"{name} {row.tflops(name):6.1f} ({row.ratio(name):.3f})" if row.tflops(name) else f"{name} -")
    checked = row.checked(options)
    worst = max(row.differences.values(), default=0)
    cells.append("agrees" if checked else "not compared" if checked is None else f"DIFFERS by {worst:.2g}")
    print("  ".join(cells), flush=True)
    for name, note in row.notes.items():
        if note != "not supported":
            print(f"    {name}: {note}", flush=True)
    for name, host in row.host_bound.items():
        print(f"    {name}: bound by the host, {host:.3f} ms a call (a longer --head-start-ms helps)", flush=True)


def print_means(rows, names, first, peers):
    print(f"\nSpeed over that of {first}: geometric mean (smallest to largest ratio)")
    groups = collections.OrderedDict()
    for row in rows:
        groups.setdefault(row.point.group(), []).append(row)
    if len(groups) > 1:
        groups["all"] = rows

    def best(row):
        ratios = [row.ratio(name) for name in peers if name not in NO_ATTENTION and row.ratio(name)]
        return max(ratios) if ratios else None

    for group, members in groups.items():
        cells = [f"{group:18s} {first} {geometric_mean([row.tflops(first) for row in members]):6.1f} TFLOP/s"]
        columns = [(name, lambda row, name=name: row.ratio(name)) for name in names] + [("best of the peers", best)]
        for name, ratio in columns:
            ratios = [ratio(row) for row in members if ratio(row)]
            if ratios:
                cells.append(f"{name} {geometric_mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        print("  ".join(cells))


def print_absences(rows, names):
    """Peers without a figure, so that nobody takes an empty column for a slow one."""
    for name in names:
        reasons = collections.Counter(row.notes[name] for row in rows if name in row.notes)
        for reason, count in reasons.items():
            print(f"NO FIGURE of {name} at {count} of {len(rows)} points: {reason}")
