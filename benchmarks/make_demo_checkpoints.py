"""Make the small checkpoints that the embedded demo lays out: `python -m benchmarks.make_demo_checkpoints`, with torch.

A small network is trained by AdamW, saved as training scripts save, and damaged in the ways that happen: NaN in the
optimizer's state, NaN in a weight, a snapshot torn by a concurrent step, a save that was cut off.
"""

from __future__ import annotations

import argparse
import struct
import zipfile
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parents[1] / "remoterun" / "lab" / "data"
STEPS_PER_EPOCH = 2000
MAX_BYTES = 400_000


class Training:
    """Train a network of 2,120 parameters on a fixed random task."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.task = torch.randn(24, 8)
        self.step = 0

    def train_to(self, step: int) -> None:
        """Train until so many steps were made."""
        while self.step < step:
            batch = torch.randn(16, 24)
            loss = (self.model(batch) - torch.tanh(batch @ self.task)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1

    def save(self, path: Path) -> None:
        """Save model, optimizer, step and epoch."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "global_step": self.step,
            "epoch": self.step // STEPS_PER_EPOCH,
        }
        torch.save(state, path)


def checkpoint(guest: str, step: int) -> Path:
    """Return where a guest's checkpoint of a step lies."""
    return FOLDER / guest / f"step_{step}" / "checkpoint.pt"


def edit(path: Path, group: str, name: str, value: float) -> None:
    """Put a value into the first numbers of a tensor of a saved checkpoint."""
    state = torch.load(path, weights_only=True)
    tensor = state["model_state_dict"][name] if group == "model" else state["optimizer_state_dict"]["state"][0][name]
    tensor.view(-1)[:3] = value
    torch.save(state, path)


def tear(path: Path, later: Path) -> None:
    """Give the last halves of a weight and of its first moment the bytes of a later step, under the old CRC-32."""
    data, new = bytearray(path.read_bytes()), later.read_bytes()
    # Records are numbered as they are met: six of the model, then step, exp_avg and exp_avg_sq of the first weight.
    for record in ("data/0", "data/7"):
        offset, size = _place(path, record)
        middle = offset + size // 2
        data[middle : offset + size] = new[middle : offset + size]
    path.write_bytes(data)


def _place(path: Path, record: str) -> tuple[int, int]:
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(record))
    lengths = path.read_bytes()[info.header_offset + 26 : info.header_offset + 30]
    name, extra = struct.unpack("<HH", lengths)
    return info.header_offset + 30 + name + extra, info.file_size


def make() -> None:
    """Make all checkpoints: guest 200 has good and bad ones, guest 201 only good ones."""
    training = Training(seed=200)
    for step in (1000, 2000, 3000, 4000, 4001, 4500, 5000):
        training.train_to(step)
        training.save(checkpoint("200", step))
        if step == 4500:
            later = FOLDER / "later" / "checkpoint.pt"
            training.train_to(4501)
            training.save(later)
            tear(checkpoint("200", 4500), later)
            later.unlink()
            later.parent.rmdir()
    edit(checkpoint("200", 3000), "optimizer", "exp_avg_sq", float("nan"))
    edit(checkpoint("200", 4001), "model", "2.weight", float("nan"))
    whole = checkpoint("200", 5000).read_bytes()
    checkpoint("200", 5000).write_bytes(whole[: len(whole) * 3 // 5])
    training = Training(seed=201)
    for step in (500, 1000):
        training.train_to(step)
        training.save(checkpoint("201", step))


def main() -> None:
    """Make the files and say how large they are."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    make()
    total = 0
    for path in sorted(FOLDER.rglob("*.pt")):
        total += path.stat().st_size
        print(f"{path.stat().st_size:>8,}  {path.relative_to(FOLDER)}")
    print(f"{total:>8,}  in all")
    if total > MAX_BYTES:
        raise SystemExit(f"more than {MAX_BYTES:,} bytes: too much for a package")


if __name__ == "__main__":
    main()
