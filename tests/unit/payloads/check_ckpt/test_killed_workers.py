"""A worker that is killed while it reads: what the machine did is not blamed on the program."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def _kill_the_first_child(over: threading.Event) -> None:
    while not over.is_set():
        for child in psutil.Process().children()[:1]:
            child.send_signal(signal.SIGKILL)
            return


def test_a_killed_worker_leaves_its_checkpoint_unread(tmp_path: Path) -> None:
    save({"w": torch.randn(6 << 20)}, tmp_path / "large.pt")
    save({"w": torch.randn(16)}, tmp_path / "small.pt")
    over = threading.Event()
    killer = threading.Thread(target=_kill_the_first_child, args=(over,))
    killer.start()
    heard = audit(tmp_path, workers=2, max_mbps=20, cache=False)
    over.set()
    killer.join()
    assert heard.record_of("small.pt")["verdict"] == "ok"
    assert heard.record_of("large.pt")["verdict"] == "unsupported"
    told = heard.of("CK030")
    assert "a worker process was ended by signal 9: the machine may be short of memory" in told["message"]
    assert "report it" not in told["message"]
    assert "workers=1" in told["next_step"]
