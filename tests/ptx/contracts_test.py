"""Each pattern of a contract is that of a row: a row that is called something else would lose its rules unseen.

usage: contracts_test.py PROJECT
"""
import fnmatch
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
sys.path.append(str(root / "tools/build"))
import rows  # noqa: E402

names = [row.name for table in ("ptx/table/rows.def", "ptx/paper/rows.def")
         for row in rows.rows(rows.text_of(root / table))]
patterns, problems = 0, []
for contract in sorted((root / "ptx").rglob("*.contract")):
    for number, line in enumerate(contract.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not re.match(r"rows |  fa3_", line):
            continue
        for pattern in [word for word in words if word.startswith("fa3_")]:
            patterns += 1
            if not fnmatch.filter(names, pattern):
                problems.append(f"{contract.relative_to(root)}:{number}: no row is called {pattern}")
print("\n".join(problems) or f"{patterns} patterns, {len(names)} rows")
sys.exit(bool(problems) or not patterns)
