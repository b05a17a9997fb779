"""What the tests of the rules share."""
import unittest

import exceptions


class Breach(unittest.TestCase):
    def one(self, rule, tree, pattern):
        found = rule(tree)
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], pattern)

    def mended(self, kind):
        """What a rule says of its exceptions where nothing needs them, as in a tree of a test's own."""
        return exceptions.mended(kind, {}, 0)
