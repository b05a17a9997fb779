"""tools/test in a small project: it finds a compiler that came after the build was configured, says what was skipped
and why, keeps the tests' exit status, and does not pass a build without tests for one whose tests pass."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ("tools/test", "tools/build/usage", "tests/support/skips.py")
# It installs a compiler; a build that was configured before does not know it.
SETUP = """#!/bin/sh
[ "$1" = tests ] || exit 9
printf '#!/bin/sh\\n' >.toolchain/bin/late-compiler
chmod +x .toolchain/bin/late-compiler
"""
PROJECT = """project('small', meson_version: '>=1.3')
if get_option('tests') and get_option('paper')
  late = find_program('late-compiler', required: false)
  if late.found()
    test('late', late)
  endif
  sh = find_program('sh')
  test('whole', sh, args: ['-c', 'echo SKIPPED: no unicorn; exit 77'])
  test('silent', sh, args: ['-c', 'exit 77'])
  test('words', sh, args: ['-c', 'echo "The stars  are"; echo not right >&2; exit 77'])
  test('part', sh, suite: 'parts',
    args: ['-c', 'echo one; echo SKIPPED: no second moon; echo two; exit ${SMALL_STATUS:-0}'])
  test('catch2', sh, args: ['-c', 'cat @0@'.format(meson.current_source_dir() / 'catch2.txt')])
endif
"""
CATCH2 = """
-------------------------------------------------------------------------------
one case
-------------------------------------------------------------------------------
../case.cpp:17: SKIPPED:
explicitly with message:
  needs a GPU of a kind that has not
  been made

../case.cpp:17: SKIPPED:
explicitly with message:
  needs a GPU of a kind that has not
  been made

===============================================================================
test cases: 3 | 1 passed | 2 skipped
"""
SKIPS = """
Skipped, and why:
  silent: it does not say why
  a part of catch2 (2 cases): needs a GPU of a kind that has not been made
  a part of part: no second moon
"""


def make_project(folder):
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    meson = shutil.which("meson") or ROOT / ".toolchain/bin/meson"
    (folder / ".toolchain/bin").mkdir(parents=True)
    (folder / ".toolchain/bin/meson").symlink_to(meson)
    (folder / "tools/setup").write_text(SETUP)
    (folder / "tools/setup").chmod(0o755)
    (folder / "meson.build").write_text(PROJECT)
    (folder / "meson.options").write_text("option('tests', type: 'boolean', value: true)\n"
                                         "option('paper', type: 'boolean', value: false)\n")
    (folder / "catch2.txt").write_text(CATCH2)
    run(meson, "setup", "build", cwd=folder)


def run(*command, cwd, status=0, **environment):
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == status, f"{command}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    make_project(folder)
    output = run("tools/test", cwd=folder)
    assert re.search(r" small:late +OK ", output), output
    assert "\nOk:                3" in output and "\nSkipped:           3" in output, output
    for line in SKIPS.strip().splitlines():
        assert f"\n{line}\n" in output, f"not said: {line}\n{output}"
    assert "\n  whole: no unicorn\n" in output and "\n  words: The stars are not right\n" in output, output
    assert output.index("Skipped, and why") > output.index("\nSkipped: "), output

    output = run("tools/test", "part", cwd=folder, status=1, SMALL_STATUS="3")
    assert output.endswith("\nSkipped, and why:\n  a part of part: no second moon\n"), output
    output = run("tools/test", "late", cwd=folder)
    assert output.endswith("\nNothing was skipped.\n"), output

    output = run("tools/test", "--list", cwd=folder)
    assert output.count("small:") == 6 and "kipped" not in output, output

    run(folder / ".toolchain/bin/meson", "configure", "build", "-Dtests=false", cwd=folder)
    output = run("tools/test", cwd=folder, status=1)
    assert "build/ is configured without tests, by -Dtests=false" in output, output
