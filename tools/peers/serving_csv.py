"""The CSV of serving.py: a line for each point and whoever was timed there."""

import csv
import pathlib

import peers_merge
from peers_csv import WHERE_COLUMNS

COLUMNS = ["kind", "point", "peer", "us", "tflops_or_gbytes_s", "checked", *WHERE_COLUMNS]


def read(path):
    """{(kind, point): its lines}. A file without the last columns has them empty."""
    with open(path, newline="") as file:
        reader = csv.DictReader(file, restval="")
        if missing := [name for name in COLUMNS[:6] if name not in (reader.fieldnames or [])]:
            raise peers_merge.MergeError(f"{path}: no column {', '.join(missing)}")
        points = {}
        for line in reader:
            points.setdefault((line["kind"], line["point"]), []).append({name: line.get(name, "") for name in COLUMNS})
    return points


def merged(before, points):
    """Points of a run, and those of before that it has not. A point is not replaced by one of which fewer peers were
    timed: such are named."""
    (_, table), kept = peers_merge.merge([(COLUMNS, before), (COLUMNS, points)])
    return table, kept


def write(path, points):
    """Whole or not at all."""
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    peers_merge.write(path, (COLUMNS, points))
