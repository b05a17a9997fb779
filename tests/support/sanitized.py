"""Builds of the host sources by another compiler or with other options than the library's, by Ninja in a folder of
their own, so that a second build is quick.
"""
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# As in src/meson.build, less what only the library needs.
LIBRARY = ["-fno-exceptions", "-fno-rtti"]
COMMON = ["-std=c++20", "-g1", "-U_GLIBCXX_ASSERTIONS", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
          '-DFA3_ROWS="../paper/rows.def"', *(f"-I{ROOT / folder}" for folder in ("include", "src", "ptx"))]


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def library_sources():
    return sorted((ROOT / "src").rglob("*.cpp"))


def works(command, folder):
    """Can this compiler, with these options, make a program that runs?"""
    folder.mkdir(parents=True, exist_ok=True)
    source, program = folder / "trial.cpp", folder / "trial"
    if "-fsanitize=fuzzer" in command:
        source.write_text('extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n')
        run = [program, "-runs=1"]
    else:
        source.write_text("int main() { return 0; }\n")
        run = [program]
    if not shutil.which(command[0]):
        return False
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run([*command, source, "-o", program], **quiet).returncode == 0 and \
        subprocess.run(run, **quiet).returncode == 0


def build(folder, program, objects, link):
    """`objects`: pairs of a source and the command that compiles it, but for its name and -o. `link`: the command that
    links them, libraries last, after None for the objects."""
    folder.mkdir(parents=True, exist_ok=True)
    at = link.index(None)
    line = [*map(str, link[:at]), "$in", *map(str, link[at + 1:]), "-o", "$out"]
    text = ["rule compile", "  command = $compile -MD -MF $out.d -o $out -c $in", "  depfile = $out.d", "  deps = gcc",
            "rule link", f"  command = {' '.join(line)}"]
    names = []
    for source, command in objects:
        names.append(f"{pathlib.Path(source).parent.name}-{pathlib.Path(source).name}.o")
        text += [f"build {names[-1]}: compile {source}", f"  compile = {shlex.join(map(str, command))}"]
    text += [f"build {program}: link {' '.join(names)}", ""]
    (folder / "build.ninja").write_text("\n".join(text))
    subprocess.run(["ninja", "-C", folder, "--quiet"], check=True)
    return folder / program
