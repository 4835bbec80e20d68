"""The peers: transformers' two image processors, each a subprocess in the environment that has it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.checkpoints import ROOT

ORACLES = ROOT / ".venv-oracles" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Peer:
    """A backend of transformers' processor and the parity that gives its bytes."""

    name: str
    python: str
    parity: str

    def batches(self, model_dir: Path, batches: Sequence[Sequence[bytes]], repeats: int) -> list[list[float]]:
        """CPU seconds per repeat of each batch of encoded images, in one call of the processor."""
        with tempfile.TemporaryDirectory() as folder:
            for number, batch in enumerate(batches):
                for index, data in enumerate(batch):
                    (Path(folder) / f"{number:03}-{index:03}.bin").write_bytes(data)
            settings = (model_dir / "preprocessor_config.json").read_text()
            (Path(folder) / "settings.json").write_text(settings)
            command = [self.python, str(ROOT / "bench" / "peer.py"), self.name, folder, str(repeats), "batch"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        report: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])["batches"]
        return [report[name] for name in sorted(report)]


def present() -> list[Peer]:
    """The peers whose environment is there; the missing one is named on the standard output."""
    known = [Peer("pil", sys.executable, "pillow13"), Peer("torchvision", str(ORACLES), "aten_u8")]
    for peer in known:
        if not Path(peer.python).exists():
            print(f"{peer.name}: no environment at {peer.python}; run `make oracles`")
    return [peer for peer in known if Path(peer.python).exists()]
