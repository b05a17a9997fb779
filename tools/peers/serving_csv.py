"""The CSV of serving.py: a line for each point and whoever was timed there."""

import csv
import os
import pathlib

COLUMNS = "kind,point,peer,us,tflops_or_gbytes_s,checked,card,driver,date".split(",")


class CsvError(Exception):
    pass


def read(path):
    """{(kind, point): its lines}. A file without the last columns has them empty."""
    with open(path, newline="") as file:
        reader = csv.DictReader(file, restval="")
        if missing := [name for name in COLUMNS[:6] if name not in (reader.fieldnames or [])]:
            raise CsvError(f"{path}: no column {', '.join(missing)}")
        points = {}
        for line in reader:
            points.setdefault((line["kind"], line["point"]), []).append({name: line.get(name, "") for name in COLUMNS})
    return points


def merged(before, points):
    """Points of a run, and those of before that it has not. A point is not replaced by one of which fewer peers were
    timed: such are named."""
    table, kept = dict(before), []
    for point, lines in points.items():
        lost = {line["peer"] for line in before.get(point, [])} - {line["peer"] for line in lines}
        if lost:
            kept.append(f"{' '.join(point)}: not replaced, as there is no new figure of {', '.join(sorted(lost))}")
        else:
            table[point] = lines
    return table, kept


def write(path, points):
    """Whole or not at all."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for lines in points.values():
            writer.writerows(lines)
    os.replace(part, path)
