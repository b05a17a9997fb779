"""The CSVs of peers.py: a line for each point, or one for each point and whoever was timed there. Each line ends with
the card, its driver and when the run began."""

import csv
import os
import pathlib

import peers_merge

WHERE_COLUMNS = ["card", "driver", "date"]  # of options.where
LINE_COLUMNS = ("case,dtype,head_dim,causal,batch,seqlen_q,seqlen_k,heads,kv_heads,detail,peer,median_us,min_us,tflops,"
                "gbytes_s,checked").split(",")


def line_shape(p):
    detail = "" if p.head_dim_v == p.head_dim else f"v {p.head_dim_v}"
    shape = [p.set, p.dtype, p.head_dim, int(p.causal), p.batch, p.seqlen, p.seqlen_k, p.heads, p.kv_heads, detail]
    return dict(zip(LINE_COLUMNS, shape))


def write_lines(path, rows, names, options):
    """In microseconds; gbytes_s counts K and V once, detail names another head dimension of V, checked compares with
    the first library's output (of the first: whether all that could be compared agree)."""
    with open(f"{path}.part", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LINE_COLUMNS + WHERE_COLUMNS)
        for row in rows:
            p = row.point
            element = 1 if p.is_fp8() else 2
            kv_bytes = element * p.batch * p.seqlen_k * p.kv_heads * (p.head_dim + p.head_dim_v)
            for name in [row.first, *names]:
                if not row.tflops(name):
                    continue
                checked = row.checked(options) if name == row.first else row.agrees(name, options)
                ms, least = row.ms(name), row.minima[name]
                figures = [f"{1e3 * ms:.2f}", f"{1e3 * least:.2f}", f"{row.tflops(name):.1f}"]
                figures += [f"{kv_bytes / ms * 1e-6:.0f}", int(bool(checked))]
                writer.writerow([*line_shape(p).values(), name, *figures, *options.where])
    os.replace(f"{path}.part", path)


def point_shape(p):
    return {**vars(p), "causal": int(p.causal), "two_level": int(p.two_level)}


def write_csv(path, rows, names, options):
    """fa3-bench's columns for the first library, and two for each of the other names. Whole or not at all, so that a
    run cut short keeps the points before."""
    with open(f"{path}.part", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        peer_columns = [f"{name}_{what}" for name in names for what in ("tflops", "ratio")]
        writer.writerow(options.csv_columns + peer_columns + WHERE_COLUMNS)
        for row in rows:
            values = {
                **point_shape(row.point),
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
            writer.writerow([*cells, *options.where])
    os.replace(f"{path}.part", path)


RECORDS = {
    "forward": (write_csv, point_shape),
    "fp8": (write_csv, point_shape),
    "backward": (write_csv, point_shape),
    "shapes": (write_lines, line_shape),
}


class Record:
    """One of a card's files in tests/records, into which a run of these points and names is merged (peers_merge.py).
    Refused is a run that would lose figures of others at one of its points."""

    def __init__(self, name, folder, points, names):
        (self.write_run, shape), self.path = RECORDS[name], pathlib.Path(folder) / f"{name}.csv"
        self.before = [peers_merge.read(self.path)] if self.path.exists() else []
        self.kept = []
        keys = [peers_merge.point_of(shape(point)) for point in points]
        rows = [row for _, before in self.before for key in keys for row in before.get(key, [])]
        if lost := peers_merge.measured(rows) - set(names):
            raise peers_merge.MergeError(
                f"{self.path} has figures of {', '.join(sorted(lost))} at these points, which this run would replace "
                "without measuring them; choose other points, or write a --csv of its own"
            )

    def write(self, rows, names, options):
        run = self.path.with_suffix(".run")
        run.parent.mkdir(parents=True, exist_ok=True)
        self.write_run(run, rows, names, options)
        table, self.kept = peers_merge.merge([*self.before, peers_merge.read(run)])
        peers_merge.write(self.path, table)
        run.unlink()
