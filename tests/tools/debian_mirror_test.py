"""tools/build/debian-mirror on sources of each form, with what `apt-get update` would have fetched from them.

usage: debian_mirror_test.py SCRIPT
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = sys.argv[1]
CONFIGURATION = """
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "{0}/sources.list.d";
Dir::State::lists "{0}/lists";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
"""
KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Mirror(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "sources.list.d").mkdir()
        (self.root / "lists/partial").mkdir(parents=True)
        (self.root / "apt.conf").write_text(CONFIGURATION.format(self.root))

    def one_line(self, text):
        (self.root / "sources.list").write_text(text)

    def deb822(self, text):
        (self.root / "sources.list.d/debian.sources").write_text(text)

    def fetched(self, place, codename, origin="Debian"):
        """What apt keeps of a source. The place is its URI without http://, and its suite, with _ for /."""
        release = f"Origin: {origin}\nCodename: {codename}\nDate: Sat, 17 May 2025 09:00:00 UTC\n"
        (self.root / f"lists/{place}_Release").write_text(release)
        (self.root / f"lists/{place}_main_binary-amd64_Packages").touch()
        (self.root / f"lists/{place}_main_source_Sources").touch()

    def mirror(self, codename="bookworm"):
        """What the script prints, or None if it fails."""
        environment = {**os.environ, "APT_CONFIG": str(self.root / "apt.conf")}
        done = subprocess.run([SCRIPT, codename], env=environment, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode == 0, done.stdout != "")
        return done.stdout.strip() or None

    def test_one_line(self):
        self.one_line(f"deb [arch=amd64 signed-by={KEY}] http://a.example/debian bookworm main contrib # the mirror\n")
        self.fetched("a.example_debian_dists_bookworm", "bookworm")
        self.assertEqual(self.mirror(), "http://a.example/debian/")

    def test_deb822(self):
        self.deb822("Types: deb deb-src\n# a comment\nURIs: http://a.example/debian http://b.example/debian\n"
                    f"Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: {KEY}\n")
        for host in "ab":
            self.fetched(f"{host}.example_debian_dists_bookworm-updates", "bookworm-updates")
            self.fetched(f"{host}.example_debian_dists_bookworm", "bookworm")
        self.assertEqual(self.mirror(), "http://a.example/debian/")

    def test_suite_by_another_name(self):
        self.deb822("Types: deb\nURIs: http://a.example/debian\nSuites: oldstable\nComponents: main\n")
        self.fetched("a.example_debian_dists_oldstable", "bookworm")
        self.assertEqual(self.mirror(), "http://a.example/debian/")

    def test_what_is_not_used(self):
        self.one_line("# deb http://a.example/debian bookworm main\ndeb-src http://b.example/debian bookworm main\n")
        self.deb822("Enabled: no\nTypes: deb\nURIs: http://c.example/debian\nSuites: bookworm\nComponents: main\n")
        for host in "abc":
            self.fetched(f"{host}.example_debian_dists_bookworm", "bookworm")
        self.assertIsNone(self.mirror())

    def test_packages_of_others(self):
        self.one_line("deb http://a.example bookworm main\ndeb http://b.example/debian bookworm main\n")
        self.fetched("a.example_dists_bookworm", "bookworm", origin="Artifactory")
        self.assertIsNone(self.mirror())
        self.fetched("b.example_debian_dists_bookworm", "bookworm")
        self.assertEqual(self.mirror(), "http://b.example/debian/")

    def test_backports(self):
        self.one_line("deb http://a.example/debian bookworm main\n"
                      "deb http://b.example/debian bookworm-backports main\n")
        self.fetched("a.example_debian_dists_bookworm", "bookworm")
        self.assertIsNone(self.mirror("bookworm-backports"))
        self.fetched("b.example_debian_dists_bookworm-backports", "bookworm-backports", origin="Debian Backports")
        self.assertEqual(self.mirror("bookworm-backports"), "http://b.example/debian/")

    def test_compact_disc(self):
        self.one_line("deb cdrom:[Debian]/ bookworm main\n")
        self.fetched("Debian_dists_bookworm", "bookworm")
        self.assertIsNone(self.mirror())

    def test_nothing(self):
        self.assertIsNone(self.mirror())


if __name__ == "__main__":
    if not shutil.which("apt-get"):
        print("SKIPPED: no apt-get")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
