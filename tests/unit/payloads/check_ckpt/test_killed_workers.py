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


def _kill_a_new_child(known: set[int], over: threading.Event) -> None:
    """Leave alone what other tests have started."""
    while not over.is_set():
        for child in psutil.Process().children():
            if child.pid not in known:
                child.send_signal(signal.SIGKILL)
                return


def test_a_killed_worker_leaves_its_checkpoint_unread(tmp_path: Path) -> None:
    save({"w": torch.randn(6 << 20)}, tmp_path / "large.pt")
    save({"w": torch.randn(16)}, tmp_path / "small.pt")
    over = threading.Event()
    known = {child.pid for child in psutil.Process().children()}
    killer = threading.Thread(target=_kill_a_new_child, args=(known, over))
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
