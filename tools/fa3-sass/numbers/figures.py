"""Which figures of a kernel its contract fixes by machine, and what they are. A subject is what a rule of a contract
is about: `kernel.votes`, `hot[dQ].adds`, `epilogue.fences`."""

KERNEL = ("mbarriers mbarrier_counts steady_waits named_barriers bulk_groups semaphores tensor_maps grid_dependency "
          "reductions votes permutes roundings descriptors parameter_words").split()
LOOP = "handovers adds fmas multiplies most_multiplies adds_anywhere fmas_anywhere".split()
PART = "handovers adds fmas multiplies specials fences".split()
PARTS = ["prologue", "epilogue", "producer"]

# Passes have no loop with WGMMAs. Of the forward kernel, which two thirds of all rows are of, less is fixed, as ptxas
# makes of its epilogue and producer something else for nearly every row.
PASS = {("kernel", figure) for figure in ("named_barriers", "semaphores", "grid_dependency", "reductions", "votes",
                                          "permutes", "roundings", "parameter_words")}
PASS |= {("producer", figure) for figure in ("adds", "fmas", "multiplies", "specials")}
FORWARD = {("kernel", figure) for figure in KERNEL if figure != "mbarriers"}
FORWARD |= {("hot", figure) for figure in LOOP if figure != "fmas_anywhere"}
FORWARD |= {("boundary", figure) for figure in ("handovers", "adds_anywhere", "multiplies")}
FORWARD |= {(part, "fences") for part in PARTS}
FORWARD |= {("epilogue", "multiplies"), ("epilogue", "handovers"), ("producer", "handovers")}


def is_fixed(row, scope, figure):
    if row.name.startswith("fa3_pass_"):
        return (scope, figure) in PASS
    return row.kernel != "fwd" or (scope, figure) in FORWARD


def subjects(kernels):
    """Subjects of the rules for these records of `list --json`, in the order of the file, and of each its scope, role
    and figure. A loop is named by its GEMMs only where loops of the kernel have several."""
    found = [("kernel", "", figure) for figure in KERNEL]
    roles = {(loop["hot"], loop["role"]) for kernel in kernels for loop in kernel["loops"]}
    for hot, role in sorted(roles, key=lambda pair: (not pair[0], pair[1])):
        named = len({r for h, r in roles if h == hot}) > 1
        found += [("hot" if hot else "boundary", role if named else "", figure) for figure in LOOP]
    found += [(part, "", figure) for part in PARTS for figure in PART]
    return {f"{scope}[{role}].{figure}" if role else f"{scope}.{figure}": (scope, role, figure)
            for scope, role, figure in found}


def value_of(kernel, scope, role, figure):
    """As text, or None if this kernel has no such figure, or loops that differ in it."""
    if scope == "kernel":
        value = kernel["figures"].get(figure)
    elif scope in PARTS:
        value = kernel["scopes"].get(scope, {}).get(figure)
    else:
        values = {loop["figures"].get(figure) for loop in kernel["loops"]
                  if loop["hot"] == (scope == "hot") and role in ("", loop["role"])}
        value = values.pop() if len(values) == 1 else None
    return None if value is None else str(value)
