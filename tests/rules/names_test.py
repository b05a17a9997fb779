"""The rule of names.py finds what breaks it."""
from unittest import mock

import exceptions
import names as rules
from breach import Breach


class Names(Breach):
    def test_names(self):
        with mock.patch.dict(exceptions.NAMES, clear=True):
            for name in ("of_row", "its", "these", "those", "others", "here"):
                for path, text in (("src/a.cpp", f"\nint {name} = 1;"), ("tools/a.py", f"\n{name} = 1\n"),
                                   ("tools/a", f"#!/usr/bin/python3\n{name} = 1\n")):
                    self.one(rules.names_are_nouns, {path: text}, f"^{path}:2: {name}: name the thing itself")
            for text in ("// its of_row", 'f("here");', "row_of_(x); profits(); others_(y);"):
                self.assertEqual(rules.names_are_nouns({"src/a.cpp": text}), [])
            self.assertEqual(rules.names_are_nouns({"tools/a.py": '# its\n"here"\nall_of_it = 1\n'}), [])
        with mock.patch.dict(exceptions.NAMES, {"src/": 1}, clear=True):
            self.assertEqual(rules.names_are_nouns({"src/a/b.h": "int its;"}), [])
            self.assertEqual(len(rules.names_are_nouns({"src/a.h": "int its;", "src/b.h": "int here;"})), 2)
            self.one(rules.names_are_nouns, {"src/a.h": "int x;"}, "NAMES: src/ has 0, which needs no exception")
