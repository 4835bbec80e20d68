"""The compiled CPU path, which works with raw addresses, touches no byte beside its buffers."""

import subprocess
import sys
from pathlib import Path

GUARDED = Path(__file__).parents[1] / "guarded_resize.py"


def test_sources_outputs_and_kept_images_may_end_at_memory_that_is_not_there() -> None:
    done = subprocess.run([sys.executable, str(GUARDED)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "150 pieces\n"
