"""How programs begin that time the library beside peers: command line, libraries, torch, the GPU, and peers."""

import argparse
import datetime
import pathlib
import sys

import prepared
from peers_measure import reason

sys.path.insert(0, str(prepared.ROOT / "tests/records"))
import card  # noqa: E402


def names_among(known):
    """The type of an option that names peers."""

    def names(text):
        found = [] if text == "none" else text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown peers: {', '.join(map(repr, unknown))}")
        return found

    return names


def new_parser(description):
    """With the options of all programs that ask fa3-bench for points."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--bench",
        default=prepared.ROOT / "build/tools/fa3-bench/fa3-bench",
        help="the program fa3-bench, which is asked for points and protocol (default: %(default)s)",
    )
    parser.add_argument(
        "--results", type=pathlib.Path, default=card.RESULTS, help="where results are kept (default: %(default)s)"
    )
    return parser


def start(program, paths):
    """The libraries of {name: path}, and the card, its driver and the time. Without one of the libraries the program
    ends with exit status 2, without torch or a GPU with 77."""
    try:
        libraries = {name: prepared.Library(path) for name, path in paths.items()}
    except (OSError, AttributeError) as error:  # no such file, or one that is no libfa3.so
        print(f"{program}: --library: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        import torch
    except ImportError as error:
        print(f"{program} needs torch: {error}")
        sys.exit(77)
    if not torch.cuda.is_available():
        print(f"{program} needs a GPU: torch finds none")
        sys.exit(77)
    name, (_, driver) = torch.cuda.get_device_name(), card.name_and_driver()
    print(f"{name}, driver {driver}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for library_name, library in libraries.items():
        print(f"{library_name}: {library.path}")
    return libraries, [name, driver, f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%MZ}"]


def import_each(imports):
    """What each function of {name: function} returns; peers that do not work here are named with the reason."""
    found = {}
    for name, load in imports.items():
        try:
            found[name] = load()
        except Exception as error:  # a peer may fail to import in any way; none is needed
            print(f"absent: {name}: {reason(error)}")
    return found
