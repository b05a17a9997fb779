"""The CSV of peers.py."""

import csv
import os


def write_csv(path, rows, names, options):
    """fa3-bench's columns for the first library, and two for each of the other names. Whole or not at all, so that a
    run cut short keeps the points before."""
    with open(f"{path}.part", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(options.csv_columns + [f"{name}_{what}" for name in names for what in ("tflops", "ratio")])
        for row in rows:
            values = {
                **vars(row.point),
                "causal": int(row.point.causal),
                "two_level": int(row.point.two_level),
                "kernel": row.kernel,
                "median_ms": f"{row.ms(row.first):.5f}",
                "min_ms": f"{row.minima[row.first]:.5f}",
                "tflops": f"{row.tflops(row.first):.1f}",
                "checked": int(bool(row.checked(options))),
                "spread": f"{row.spread(row.first):.4f}",
                "passes": len(row.passes[row.first]),
                "reps": len(row.times[row.first]),
            }
            cells = [values[column] for column in options.csv_columns]
            for name in names:
                cells += [f"{row.tflops(name):.1f}", f"{row.ratio(name):.4f}"] if row.tflops(name) else ["", ""]
            writer.writerow(cells)
    os.replace(f"{path}.part", path)
