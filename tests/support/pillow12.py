"""Pillow 12.3.0 beside the installed one, in the ignored cache folder."""

import fcntl
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache"
VERSION = "12.3.0"


def pillow12_home() -> Path:
    """A folder to put first on PYTHONPATH; installed once, however many processes ask."""
    home = CACHE / f"pillow12-{sys.implementation.cache_tag}"
    done = home / f"pillow-{VERSION}.dist-info" / "RECORD"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "pillow12.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            subprocess.run([*command, "--target", str(home), f"pillow=={VERSION}"], check=True)
    return home
