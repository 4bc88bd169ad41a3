"""The program of the process that loads files: it reads ``[path, how]`` lines of JSON and answers each with one."""

from __future__ import annotations

CHILD = r"""
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
