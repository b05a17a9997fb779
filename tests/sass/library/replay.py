#!/usr/bin/env python3
"""What `fa3-sass list` says of the main loops, found a second time by another method.

usage: replay.py FA3_SASS FILE

FILE holds fat binaries. The texts of kept/nvdisasm, which fa3-sass reads, are read here, too; of every kernel in them
the instructions are replayed:
twice round each innermost loop with WGMMAs, in program order, with a queue of commit groups as the hardware has it. The
second round counts. Shapes, groups, waits and what covers the exponentials must be those of `fa3-sass list --json`.
"""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

STEP = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
LABEL = re.compile(r"(\.L\w+):\s*$")
FUNCTION = re.compile(r"\.text\.(\S+):\s*$")
WGMMA = re.compile(r"[HQIB]GMMA\.(64x\d+x\d+)\.(\S+)")

Step = collections.namedtuple("Step", "guard opcode operands")


def read(fa3_sass, path):
    """What `fa3-sass list` says of the file, and the texts from which it is."""
    with tempfile.NamedTemporaryFile("r") as names:
        report = subprocess.run([fa3_sass, "list", path, "--json"], check=True, stdout=subprocess.PIPE,
                                env={**os.environ, "FA3_LISTINGS_READ": names.name}).stdout
        return json.loads(report), [pathlib.Path(name).read_text() for name in set(names.read().split())]


def functions(text):
    """Each function of nvdisasm's text: its steps, and where its labels stand."""
    name, steps, labels = None, [], {}
    for line in text.splitlines():
        if line.lstrip().startswith(".section"):
            if name:
                yield name, steps, labels
            name = None
        elif match := FUNCTION.match(line):
            name, steps, labels = match[1], [], {}
        elif name and (match := LABEL.match(line)):
            labels[match[1]] = len(steps)
        elif name and (match := STEP.match(line)):
            steps.append(Step(match[2], match[3], match[4]))
    if name:
        yield name, steps, labels


def name_of(step):
    return step.opcode.split(".")[0]


def edges(steps, labels):
    """Where control may go behind each step."""
    follows = []
    for at, step in enumerate(steps):
        name, to = name_of(step), []
        if name in ("BRA", "BRX", "BRXU", "JMP", "WARPSYNC"):
            to = [labels[label] for label in re.findall(r"\.L\w+", step.operands)]
        stops = name in ("EXIT", "RET", "BRX", "BRXU", "JMP") or (name == "BRA" and "," not in step.operands)
        if not stops or step.guard:
            to.append(at + 1)
        follows.append([t for t in to if t < len(steps)])
    return follows


def components(nodes, follows):
    """Strongly connected components with an edge inside (Kosaraju's two walks)."""
    nodes, order, seen = set(nodes), [], set()
    before = collections.defaultdict(list)
    for node in nodes:
        for to in follows[node]:
            if to in nodes:
                before[to].append(node)
    for root in sorted(nodes):
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(follows[root]))]
        while stack:
            node, rest = stack[-1]
            to = next((t for t in rest if t in nodes and t not in seen), None)
            if to is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(to)
                stack.append((to, iter(follows[to])))
    taken = set()
    for root in reversed(order):
        if root in taken:
            continue
        taken.add(root)
        component, stack = [], [root]
        while stack:
            node = stack.pop()
            component.append(node)
            for to in before[node]:
                if to not in taken:
                    taken.add(to)
                    stack.append(to)
        if len(component) > 1 or root in follows[root]:
            yield sorted(component)


def innermost(nodes, steps, follows):
    """Innermost loops with WGMMAs, as entry and all steps. Without its entry, a loop falls into smaller ones."""
    for component in components(nodes, follows):
        if not any(WGMMA.match(steps[n].opcode) for n in component):
            continue
        inside = set(component)
        entries = {t for n in range(len(steps)) if n not in inside for t in follows[n] if t in inside}
        entry = min(entries, default=component[0])
        cut = [[t for t in to if t != entry] for to in follows]
        smaller = list(innermost(component, steps, cut))
        yield from smaller or [(entry, component)]


def usual_way(entry, component, steps, follows):
    """From the entry round to it: with the most WGMMAs, of these ways the one with the fewest steps."""
    inside = set(component)
    price = {n: (-1, 1) if WGMMA.match(steps[n].opcode) else (0, 1) for n in component}
    best, came = {entry: price[entry]}, {}
    changed = [entry]
    while changed:  # Bellman and Ford; every way round inside costs steps and gains no WGMMA
        again = []
        for node in changed:
            for to in follows[node]:
                if to not in inside or to == entry:
                    continue
                cost = (best[node][0] + price[to][0], best[node][1] + price[to][1])
                if to not in best or cost < best[to]:
                    best[to], came[to] = cost, node
                    again.append(to)
        changed = again
    last = min((n for n in best if entry in follows[n]), key=lambda n: best[n])
    way = [last]
    while way[-1] != entry:
        way.append(came[way[-1]])
    return [steps[n] for n in reversed(way)]


def replay(way):
    """Twice round with a queue of groups; what the second round shows."""
    pending, queue = [], []  # products of WGMMAs not yet committed; of committed groups that no wait has covered
    size = collections.Counter()  # WGMMAs of a product
    for turn in range(2):
        seen, product = collections.Counter(), {}  # the product that an accumulator holds
        waits, exps, overlapped, groups, over = [], 0, 0, 0, []
        for step in way:
            operands = [o.strip() for o in re.sub(r"\[[^]]*\]", "[]", step.operands).split(",")]
            if match := WGMMA.match(step.opcode):
                seen[f"{match[1]} {'SS' if operands[1].startswith('gdesc') else 'RS'}"] += 1
                accumulator = operands[0], step.opcode
                if "!UPT" in operands or accumulator not in product:
                    product[accumulator] = turn, len(size)
                pending.append(product[accumulator])
                size[product[accumulator]] += 1
                if operands[-1] == "gsb0":
                    queue.append(pending)
                    pending, groups = [], groups + 1
            elif step.opcode.startswith("WARPGROUP.DEPBAR"):
                left = int(operands[-1], 0)
                waits.append(str(left))
                del queue[:max(0, len(queue) - left)]
            elif step.opcode.startswith("MUFU.EX2"):
                exps += 1
                overlapped += bool(queue or pending)
                over.append(collections.Counter(product for group in queue for product in group))
    shapes = ", ".join(f"{count} x {shape}" for shape, count in sorted(seen.items()))
    covered = sum(max((running / size[product] for product, running in cover.items()), default=0) for cover in over)
    return {"instructions": len(way), "shapes": shapes, "groups": groups, "waits": " ".join(waits), "exps": exps,
            "exps_in_flight": sum(bool(cover) for cover in over), "exps_overlapped": overlapped,
            "exps_covered": round(float(covered), 3)}


def replayed(text):
    found = {}
    for name, steps, labels in functions(text):
        follows = edges(steps, labels)
        opcodes = collections.Counter(s.opcode for s in steps if WGMMA.match(s.opcode))
        loops = [replay(usual_way(entry, component, steps, follows))
                 for entry, component in innermost(range(len(steps)), steps, follows)]
        found[name] = opcodes, loops
    return found


def listed(kernel):
    """The same facts from an entry of list --json."""
    loops = []
    for loop in kernel["loops"]:
        figures = loop["figures"]
        shapes = collections.Counter()
        for count, shape in re.findall(r"(\d+) x (\S+ [SR]S)", figures["gemms"]):
            shapes[shape] += int(count)
        facts = {key: figures[key] for key in ("instructions", "groups", "waits", "exps")}
        facts["shapes"] = ", ".join(f"{count} x {shape}" for shape, count in sorted(shapes.items()))
        for key in ("exps_in_flight", "exps_overlapped"):
            facts[key] = round(figures.get(key, 0) * figures["exps"])
        facts["exps_covered"] = round(float(figures.get("exps_covered", 0) * figures["exps"]), 3)
        loops.append(facts)
    return collections.Counter(kernel["wgmma"]), loops


def lines(loops):
    return sorted(json.dumps(loop, sort_keys=True) for loop in loops)


def main(fa3_sass, path):
    report, texts = read(fa3_sass, path)
    mine = {}
    for text in texts:
        mine.update(replayed(text))
    theirs = {entry["name"]: listed(entry) for entry in report["kernels"]}
    names = set(mine) | set(theirs)
    wrong = 0
    for name in sorted(names):
        own, other = mine.get(name), theirs.get(name)
        if own is None or other is None:
            print(f"{name}: only {'fa3-sass' if own is None else 'the replay'} has it")
            wrong += 1
        elif own[0] != other[0]:
            print(f"{name}: WGMMAs: replayed {dict(own[0])}, listed {dict(other[0])}")
            wrong += 1
        elif lines(own[1]) != lines(other[1]):
            print(f"{name}: loops differ")
            print("".join(f"  replayed {line}\n" for line in lines(own[1]) if line not in lines(other[1])), end="")
            print("".join(f"  listed   {line}\n" for line in lines(other[1]) if line not in lines(own[1])), end="")
            wrong += 1
    loops = sum(len(listed[1]) for listed in theirs.values())
    print(f"{len(names)} kernels, {loops} loops, {wrong} differ")
    return 1 if wrong or not names else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
