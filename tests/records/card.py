"""Where what was measured on a card is kept: in a folder beside this file, which has the card's name."""

import pathlib
import re
import subprocess

RESULTS = pathlib.Path(__file__).resolve().parent
FOLDERS = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200"}


def folder(name):
    """The name of the folder of a card, by the driver's name of it. Cards that nobody has named here have the driver's
    name, in small letters, digits and dashes: another H100, say one for PCIe, is not the same card."""
    slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-").removeprefix("nvidia-")
    return FOLDERS.get(name) or slug or "unknown"


def name_and_driver():
    """Of this machine's first card; "unknown" twice if the driver's nvidia-smi does not say."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        name, driver = answer.splitlines()[0].split(",")
        return name.strip(), driver.strip()
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        return "unknown", "unknown"
