"""The rule of names.py finds what breaks it."""
import names as rules
from breach import Breach


class Names(Breach):
    def test_names(self):
        for name in ("of_row", "its", "these", "those", "others", "here"):
            for path, text in (("src/a.cpp", f"\nint {name} = 1;"), ("tools/a.py", f"\n{name} = 1\n"),
                               ("tools/a", f"#!/usr/bin/python3\n{name} = 1\n")):
                self.one(rules.names_are_nouns, {path: text}, f"^{path}:2: {name}: name the thing itself")
        for text in ("// its of_row", 'f("here");', "row_of_(x); profits(); others_(y);"):
            self.assertEqual(rules.names_are_nouns({"src/a.cpp": text}), [])
        self.assertEqual(rules.names_are_nouns({"tools/a.py": '# its\n"here"\nall_of_it = 1\n'}), [])
