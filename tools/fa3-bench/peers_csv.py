"""The CSVs of peers.py: a line for each point, or one for each point and whoever was timed there."""

import csv
import os

LINE_COLUMNS = ("case,dtype,head_dim,causal,batch,seqlen_q,seqlen_k,heads,kv_heads,detail,peer,median_us,min_us,tflops,"
                "gbytes_s,checked").split(",")


def write_lines(path, rows, names, options):
    """In microseconds; gbytes_s counts K and V once, detail names another head dimension of V, checked compares with
    the first library's output (of the first: whether all that could be compared agree)."""
    with open(f"{path}.part", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LINE_COLUMNS)
        for row in rows:
            p = row.point
            shape = [p.set, p.dtype, p.head_dim, int(p.causal), p.batch, p.seqlen, p.seqlen_k, p.heads, p.kv_heads]
            shape.append("" if p.head_dim_v == p.head_dim else f"v {p.head_dim_v}")
            element = 1 if p.is_fp8() else 2
            kv_bytes = element * p.batch * p.seqlen_k * p.kv_heads * (p.head_dim + p.head_dim_v)
            for name in [row.first, *names]:
                if not row.tflops(name):
                    continue
                checked = row.checked(options) if name == row.first else row.agrees(name, options)
                ms, least = row.ms(name), row.minima[name]
                figures = [f"{1e3 * ms:.2f}", f"{1e3 * least:.2f}", f"{row.tflops(name):.1f}"]
                writer.writerow([*shape, name, *figures, f"{kv_bytes / ms * 1e-6:.0f}", int(bool(checked))])
    os.replace(f"{path}.part", path)


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
