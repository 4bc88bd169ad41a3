"""What the loaders themselves say of files: torch.load and safe_open, tried in another process that is watched.

Neither is imported here, and nothing of a file is ever run: that process loads with ``weights_only=True``. Its answer
is information beside our own verdict: torch takes damaged files, and refuses sound ones that hold more than tensors.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

from .find.names import is_companion
from .model import FlawedError, Found, clean_text
from .readers.archive import LOCAL
from .records import Record
from .rules import security
from .rules.catalogue import severity
from .rules.rule import BAD, INFO
from .source import NotRegularError, Source

if TYPE_CHECKING:
    from .find.unit import Unit

# Of the files of a checkpoint, those that somebody loads by themselves.
_LOADABLE = (".pt", ".pth", ".pth.tar", ".bin", ".ckpt", ".safetensors", ".distcp")
_ZIP, _WHOLE, _SAFETENSORS = "zip", "whole", "safetensors"
_BY = {_ZIP: "torch.load", _WHOLE: "torch.load", _SAFETENSORS: "safe_open"}
_NOWHERE = "/proc/sys"
_LOOK_EVERY_S = 0.02
_GRACE_S = 2.0
_MOST_BYTES = 1 << 20
_MIB = 1 << 20
# No process has so many bytes, and none takes so many seconds; one that a file got hold of may say so.
_ABSURD = 1 << 62
# Signals that a loader brings on itself; any other came from outside.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_ELSEWHERE = "; name an environment that can load it: `--venv DIR`, or `venv` of the target"
_ADVICE = ("Weights only load failed", "Check the documentation")
# The program of the process: it reads lines of JSON, [path, how], and answers each with one.
_CHILD = r"""
import os, sys
out = os.dup(1)
os.dup2(2, 1)
sys.path[:] = [place for place in sys.path if place]
import json, stat, time

def say(**what):
    os.write(out, json.dumps(what).encode("ascii") + b"\n")

def own_memory():
    with open("/proc/self/status") as status:
        lines = [line.split() for line in status]
    return sum(int(line[1]) for line in lines if line[0] in ("RssAnon:", "RssShmem:", "VmSwap:")) * 1024

def torch_loader(mapped):
    import torch
    say(torch=str(torch.__version__))
    # Before 2.6, weights_only keeps no file from running code (CVE-2025-32434).
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ImportError("torch %s can be made to run code of a file (CVE-2025-32434)" % torch.__version__)
    return lambda path: torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)

def safe_opener():
    from safetensors import safe_open
    try:
        import numpy
        framework = "np"
    except ImportError:
        framework = "pt"
    def load(path):
        with safe_open(path, framework=framework) as file:
            return list(file.keys())
    return load

def attempt(path, how):
    try:
        load = safe_opener() if how == "safetensors" else torch_loader(how == "zip")
    except Exception as error:
        return {"accepted": None, "error": str(error)[:4000], "absent": True}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("it is no regular file any more")
    except Exception as error:
        return {"accepted": None, "error": str(error)}
    say(loading=True)
    start = time.monotonic()
    try:
        kept = load("/proc/self/fd/%d" % fd)
        answer = {"accepted": True, "error": ""}
    except Exception as error:
        answer = {"accepted": False, "error": "%s: %s" % (type(error).__name__, str(error)[:4000])}
    answer.update(seconds=time.monotonic() - start, memory=own_memory())
    os.close(fd)
    return answer

try:
    os.nice(9)
except OSError:
    pass
for line in sys.stdin:
    say(**attempt(*json.loads(line)))
"""


class Allowance(Record):
    """Bound a load test: bytes of memory of the process's own, and seconds for all files of a checkpoint."""

    memory: int
    seconds: float


class _Answer(Record):
    """Hold what became of one file: `accepted` is None when nobody can tell, and `error` says why."""

    path: str
    accepted: Optional[bool]
    error: str = ""
    by: Optional[str] = None
    seconds: float = 0.0


class LoadTests:
    """Let loaders try files, in one process for all of them as long as that behaves."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._child: Optional[_Child] = None

    def of_checkpoint(self, unit: Unit, found: Sequence[Found], alive: Callable[[], None]) -> Dict[str, object]:
        """Try the files of a checkpoint, but for those that only go with it.

        `found` is all that was found in it: what may run code or exhaust the memory is given to nobody.
        """
        unsafe = sorted({each.rule for each in found if each.rule in security.RULES and severity(each) != INFO})
        if unsafe:
            return _summed([_Answer("", None, "not tried: see %s" % ", ".join(unsafe))])
        names = [name for name in unit.files if name.lower().endswith(_LOADABLE)]
        large = [name for name in names if not is_companion(os.path.basename(name))]
        paths = [os.path.join(unit.folder, name) for name in large or names] if unit.family else [unit.path]
        return self.of_files(paths, alive)

    def of_files(self, paths: Sequence[str], alive: Callable[[], None]) -> Dict[str, object]:
        """Try files one after the other, and return what their record is to say of it.

        `alive` is called now and then while it goes on.
        """
        until = time.monotonic() + self._allowance.seconds
        answers: List[_Answer] = []
        torch, peak = None, 0
        for path in paths:
            how, reason = _way(path, self._allowance)
            if not how:
                answers.append(_Answer(path, None, reason))
                continue
            try:
                child = self._child = self._child or _Child(self._allowance)
            except OSError as error:
                answers.append(_Answer(path, None, "no process could be started: %s" % error.strerror))
                continue
            answers.append(child.ask(path, how, until, alive))
            torch, peak = child.torch, max(peak, child.peak)
            if child.ended:
                self.close()
        return _summed(answers, torch, peak)

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
            self._child = None


def _summed(answers: Sequence[_Answer], torch: Optional[str] = None, peak: int = 0) -> Dict[str, object]:
    worst = min(answers, key=_rank, default=_Answer("", None, "there is no file that torch.load or safetensors reads"))
    where = "%s: " % clean_text(os.path.basename(worst.path), 80) if worst.error and len(answers) > 1 else ""
    return {
        "accepted": worst.accepted,
        "error": where + worst.error if worst.error else None,
        "by": worst.by,
        "torch": torch,
        "seconds": round(sum(each.seconds for each in answers), 3),
        "rss_mib": round(peak / _MIB, 1),
    }


def _rank(answer: _Answer) -> int:
    """Order answers: one refusal is enough, and not to know comes before a yes."""
    return 0 if answer.accepted is False else 1 if answer.accepted is None else 2


def _way(path: str, allowance: Allowance) -> Tuple[str, str]:
    """Choose how a file is loaded, or say why it is not."""
    try:
        with Source(path) as source:
            head, size = source.read(0, 9), source.size
    except (OSError, NotRegularError) as error:
        return "", "it can't be opened: %s" % (getattr(error, "strerror", None) or "it is no regular file")
    if path.endswith(".distcp") or head.startswith(b"GGUF"):
        return "", "torch.load does not read files of this kind"
    if path.endswith(".safetensors") or head[8:] == b"{":
        return _SAFETENSORS, ""
    if head.startswith(LOCAL):
        return _ZIP, ""
    if size > allowance.memory // 2:
        return "", "it can't be mapped, and is too large to be loaded whole (load_memory)"
    return _WHOLE, ""


class _Child:
    """Be the process that loads; `ended` says why it can't be asked any more, `peak` what it took for the last file."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._heard = b""
        self.ended = ""
        self.torch: Optional[str] = None
        self.peak = 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_FORCE_")}
        # It must neither take cores from whatever trains here nor touch a GPU.
        environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # Python imports from where it starts before the first line can forbid it.
            cwd=_NOWHERE,
        )

    def close(self) -> None:
        """Kill it, wherever it is."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the kernel, on storage mostly: who started this payload counts it

    def ask(self, path: str, how: str, until: float, alive: Callable[[], None]) -> _Answer:
        """Let it load a file, and watch it until it has, or has passed its allowance."""
        self.peak = 0
        loading = False
        self._send([os.path.abspath(path), how])
        while not self.ended:
            for said in self._listen():
                self._note(said.get("memory"))
                self.torch = clean_text(str(said["torch"]), 60) if "torch" in said else self.torch
                loading = loading or "loading" in said
                if "accepted" in said and not self.ended:
                    return _answer(path, how, said)
            self._note(own_memory(self._process.pid))
            if time.monotonic() > until and not self.ended:
                self.ended = "it was given up after %g s (load_time)" % self._allowance.seconds
            alive()
        if loading and -(self._process.poll() or 0) in _CRASHES:
            return _Answer(path, False, "%s crashed on it: %s" % (_BY[how], self.ended), _BY[how])
        return _Answer(path, None, self.ended)

    def _send(self, what: List[str]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode("ascii") + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is seen where it is listened to

    def _listen(self) -> List[Dict[str, object]]:
        """Wait a moment for what it says."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], _LOOK_EVERY_S)[0]:
            return []
        data = os.read(pipe, 1 << 16)
        *lines, self._heard = (self._heard + data).split(b"\n")
        if not data:
            self.ended = self._end()
        elif len(self._heard) > _MOST_BYTES:
            self.ended = "its process said too much"
        try:
            said = [json.loads(line) for line in lines]
        except ValueError:
            said = [None]
        if not all(isinstance(each, dict) for each in said):
            # A file that got hold of it may say anything.
            self.ended = "its process said what makes no sense"
        return [each for each in said if isinstance(each, dict)]

    def _end(self) -> str:
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "its process fell silent"
        return "its process ended with %s" % (signal.Signals(-status).name if status < 0 else "status %d" % status)

    def _note(self, memory: object) -> None:
        if isinstance(memory, int) and memory < _ABSURD:
            self.peak = max(self.peak, memory)
            if memory > self._allowance.memory and not self.ended:
                self.ended = "it was ended at %d MiB of memory of its own (load_memory)" % (memory // _MIB)


def _answer(path: str, how: str, said: Dict[str, object]) -> _Answer:
    if how == _SAFETENSORS and "absent" in said:
        return _by_header(path)
    accepted, seconds = said["accepted"], said.get("seconds")
    error = shortened(str(said.get("error", "")))
    return _Answer(
        path,
        accepted if isinstance(accepted, bool) else None,
        "%s%s" % (error, _ELSEWHERE) if "absent" in said else error,
        _BY[how] if isinstance(accepted, bool) else None,
        seconds if isinstance(seconds, float) and 0 <= seconds < _ABSURD else 0.0,
    )


def own_memory(pid: int) -> int:
    """Return the bytes of memory that are a process's own: pages of mapped files, which cost nobody, left out."""
    try:
        with open("/proc/%d/status" % pid) as status:
            fields = [line.split() for line in status]
    except OSError:
        return 0
    return sum(int(each[1]) << 10 for each in fields if each[0] in ("RssAnon:", "RssShmem:", "VmSwap:"))


def shortened(error: str) -> str:
    """Take from an error the sentence that tells: torch wraps it in paragraphs of advice."""
    lines = [line.strip() for line in error.rpartition("WeightsUnpickler error:")[2].splitlines() if line.strip()]
    telling = [line for line in lines if not any(advice in line for advice in _ADVICE)]
    return clean_text((telling or lines or [""])[0].partition(". ")[0])


def _by_header(path: str) -> _Answer:
    """Judge a safetensors file by its header alone, as safe_open does, where there is none."""
    from .readers.safetensors import read_safetensors

    try:
        with Source(path) as source:
            found = read_safetensors(source).found
    except FlawedError as flaw:
        found = [flaw.found]
    except (OSError, NotRegularError) as error:
        return _Answer(path, None, "it can't be read: %s" % error)
    wrong = [each.message for each in found if severity(each) == BAD]
    return _Answer(path, not wrong, wrong[0] if wrong else "", "header")
