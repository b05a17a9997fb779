#!/usr/bin/env python3
"""The project keeps its rules, and each rule finds what breaks it.

usage: rules_test.py ROOT
"""
import sys
import unittest

import kernels
import names
import rooms
import sizes
import tree
from kernels_test import Kernels  # noqa: F401
from names_test import Names  # noqa: F401
from rooms_test import Rooms  # noqa: F401
from sizes_test import Sizes  # noqa: F401

TREE = tree.read_tree(sys.argv[1])


class Project(unittest.TestCase):
    """One test a rule, made below."""

    def test_the_tree_was_read(self):
        for path in ("README.md", "include/fa3.h", "ptx/isa/wgmma.cuh", "ptx/forward/fwd.cu", "ptx/table/rows.def",
                     "src/meson.build", "tools/demo", "tools/docs/pages/words.md"):
            self.assertGreater(len(TREE[path]), 0)


def keeps(rule):
    def test(self):
        found = rule(TREE)
        self.assertEqual(found, [], "\n" + "\n".join(found))
    return test


for rule in (*kernels.RULES, *rooms.RULES, *sizes.RULES, *names.RULES):
    setattr(Project, f"test_{rule.__name__}", keeps(rule))

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
