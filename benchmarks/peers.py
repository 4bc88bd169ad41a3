"""check-ckpt beside other tools that look at checkpoints: `python -m benchmarks.peers [--into docs/peers.md]`.

Each tool looks at each case, in a process of its own, for so long at most, without a network where the kernel allows
that. The tools are installed from PyPI into an environment of their own. One case holds code, which makes a file and
nothing else: a tool that runs it is found out by that file. What a tool makes of a case is read off its exit status and
its words by the table below, never written by hand.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer_cases import PLAIN, Case, make

_ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 120
_BEGIN, _END = "<!-- begin: written by benchmarks/peers.py -->", "<!-- end -->"

FOUND, OK, NONE, RAN, LATE = "found", "ok", "no verdict", "ran it", "timed out"

# What scripts do that look for NaN, wherever it may be: load everything, count.
_SCRIPT = """
import sys, torch
def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)
found = list(tensors(torch.load(sys.argv[1], map_location="cpu", weights_only=False)))
nan, inf = (sum(int(test(each).sum()) for each in found) for test in (torch.isnan, torch.isinf))
print(len(found), "tensors, NaN or Inf:", nan + inf)
"""
_LOAD = """
import sys, torch
try:
    torch.load(sys.argv[1], map_location="cpu", weights_only=True)
    print("loaded")
except Exception as error:
    print("refused:", type(error).__name__, error)
"""
_OPEN = """
import sys
from safetensors import SafetensorError, safe_open
try:
    with safe_open(sys.argv[1], "pt") as file:
        for name in file.keys():
            file.get_tensor(name)
    print("loaded")
except SafetensorError as error:
    print("refused:", error)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Describe a tool: what is installed, how it is called, and what it means by its exit status and its words.

    It has found something when its words match `found` or its exit status is one of `found_by`, and says that all is
    well when it ends with 0 and its words match `passed`. Anything else is no verdict.
    """

    name: str
    package: str
    argv: tuple[str, ...]
    found: str = r"(?!)"
    found_by: tuple[int, ...] = ()
    passed: str = ""
    only: str = ""

    def judge(self, status: int, words: str) -> str:
        """Return what it says of a file."""
        if status in self.found_by or re.search(self.found, words):
            return FOUND
        return OK if status == 0 and re.search(self.passed, words) else NONE


_TORCH = "torch==2.13.0"
OURS = Tool(
    name="remoterun check",
    package="",
    argv=(sys.executable, "-m", "remoterun", "check", "{path}", "--output", "json", "--set", "cache=false"),
    found=r'"verdict": "(bad|suspect|unsupported)"',
    passed=r'"verdict": "ok"',
)
TOOLS = (
    Tool(name="counting script", package=_TORCH, argv=("python", "-c", _SCRIPT, "{path}"), found=r"Inf: [1-9]"),
    Tool(name="torch.load", package=_TORCH, argv=("python", "-c", _LOAD, "{path}"), found="^refused", only=".pt"),
    Tool(
        name="safe_open",
        package="safetensors==0.8.0",
        argv=("python", "-c", _OPEN, "{path}"),
        found="^refused",
        only=".safetensors",
    ),
    Tool(
        name="weightlens",
        package="weightlens==0.3.0",
        argv=("lens", "analyze", "{path}"),
        found=r"[1-9]\d* \S+-level finding|load_failed|unreadable",
        passed="No diagnostic findings",
    ),
    Tool(name="ckptkit", package="ckptkit==0.3.0", argv=("ckptkit", "validate", "{path}"), found="✗", passed=": valid"),
    Tool(
        name="checkpoint-lens",
        package="checkpoint-lens==0.1.2",
        argv=("checkpoint-lens", "inspect", "{path}"),
        found=r"(?i)\b(nan|inf|corrupt|non-finite)\b",
        passed="CONFIRMED",
    ),
    Tool(name="modelinfo-cli", package="modelinfo-cli==1.4.4", argv=("modelinfo", "{path}"), passed="Parameters:"),
    Tool(
        name="picklescan",
        package="picklescan==1.0.5",
        argv=("picklescan", "-p", "{path}"),
        found="Infected files: [1-9]",
        passed="Infected files: 0",
    ),
    Tool(name="modelscan", package="modelscan==0.8.8", argv=("modelscan", "-p", "{path}"), found_by=(1,)),
    Tool(name="modelaudit", package="modelaudit==0.2.54", argv=("modelaudit", "scan", "{path}"), found_by=(1,)),
    Tool(name="weightguard", package="weightguard==0.2.0", argv=("weightguard", "scan", "{path}"), found_by=(1,)),
    Tool(name="fickling", package="fickling==0.1.12", argv=("fickling", "--check-safety", "{path}"), found_by=(1,)),
)
NOT_RUN = {
    "ckpt (Dat-cool-repo/ckpt-reshard-cli)": "a Rust program that is not on PyPI; it checks CRC-32 with `--verify`",
    "lostmsu/PTT": "not found on PyPI",
    "llama.cpp `--check-tensors`, `gguf-hash`": "programs in C++ for GGUF alone, of which the set has no file",
    "Megatron-LM `integrity.py`": "needs a manifest that was written when the checkpoint was saved",
    "AdapterSentry": "looks at low-rank adapters alone, of which the set has none",
    "assay, model-audit": "not found on PyPI under these names",
    "ckpt-chaos": "tests programs that save checkpoints, not checkpoints",
    "Composer NaNMonitor, Keras TerminateOnNaN, Lightning detect_anomaly": "watch a training run, not its files",
    "OLMo-core": "its check is a part of its own loading",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Hold what one tool said of one case."""

    tool: Tool
    case: Case
    verdict: str
    status: int | None
    words: str

    def cell(self, *, always: bool) -> str:
        """Write the verdict for the table: a finding in a sound file is a false alarm, a pass of a bad one a miss.

        `always` tells that the same is found in a sound file of the kind.
        """
        if self.verdict == FOUND:
            return "**false alarm**" if self.case.sound else "always" if always else "found"
        if self.verdict == OK:
            return "ok" if self.case.sound else "-"
        return f"**{self.verdict}**" if self.verdict == RAN else self.verdict


class Bench:
    """Run tools in an environment of their own, with a home that is thrown away."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self._bin = environment / "bin"
        self._home = folder / "home"
        self._home.mkdir()
        self.alone = _unshared()

    def install(self, tools: Sequence[Tool]) -> None:
        """Install what the tools need."""
        if not self._bin.exists():
            venv.create(self._bin.parent, with_pip=True)
        packages = sorted({tool.package for tool in tools})
        pip = [str(self._bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)

    def run(self, tool: Tool, case: Case, limit_s: float) -> Result:
        """Let a tool look at a case."""
        if case.marker is not None:
            case.marker.unlink(missing_ok=True)
        program, *rest = (word.replace("{path}", str(case.path)) for word in tool.argv)
        argv = [*self.alone, program if tool is OURS else str(self._bin / program), *rest]
        environment = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "HOME": str(self._home),
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "DO_NOT_TRACK": "1",
        }
        status, words = _finish(argv, environment, _ROOT if tool is OURS else self._home, limit_s)
        verdict = LATE if status is None else tool.judge(status, words)
        if case.marker is not None and case.marker.exists():
            verdict = RAN
        return Result(tool=tool, case=case, verdict=verdict, status=status, words=words)


def _unshared() -> list[str]:
    """Return what goes in front of a command to keep it from the network, nothing where that can't be done."""
    for prefix in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        try:
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                return prefix
        except FileNotFoundError:
            break
    return []


def _finish(argv: Sequence[str], environment: dict[str, str], folder: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a program to its end, or end it with all that it started; return its exit status and its words."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
        start_new_session=True,
    ) as process:
        try:
            words, _ = process.communicate(timeout=limit_s)
            return process.returncode, words.decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0].decode(errors="replace")


# --- the page -------------------------------------------------------------------------------------


def page(results: Sequence[Result], cases: Sequence[Case], tools: Sequence[Tool], *, alone: bool) -> Iterator[str]:
    """Write the results as Markdown."""
    alarms = _alarms(results)
    known = {
        (each.case.name, each.tool.name): each.cell(always=(each.tool.name, each.case.path.name) in alarms)
        for each in results
    }
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    where = "without a network" if alone else "with a network, which could not be taken from them"
    yield f"Run on {today}, Python {platform.python_version()}, {where}; {_LIMIT_S} s at most for each cell."
    sound = [case for case in cases if case.sound]
    for title, part in (
        ("Sound files", sound),
        ("Damaged files", [case for case in cases if not case.sound and not case.hard]),
        ("Beyond the set", [case for case in cases if case.hard]),
    ):
        yield ""
        yield f"### {title}"
        yield ""
        yield from _table(
            ["case", "what is wrong with it", *(tool.name for tool in tools)],
            (
                [f"`{case.name}`", case.what, *(known.get((case.name, tool.name), "") for tool in tools)]
                for case in part
            ),
        )
    yield ""
    yield "### In sum"
    yield ""
    yield from _table(["tool", "version", "found", "false alarms", "no verdict"], _sums(results, tools))
    yield ""
    yield "### Not run"
    yield ""
    for name, reason in NOT_RUN.items():
        yield f"- {name}: {reason}."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _alarms(results: Sequence[Result]) -> set[tuple[str, str]]:
    """Return which tools find something in plain sound files of which kind."""
    plain = [result for result in results if result.case.name in PLAIN and result.verdict == FOUND]
    return {(result.tool.name, result.case.path.name) for result in plain}


def _sums(results: Sequence[Result], tools: Sequence[Tool]) -> Iterator[list[str]]:
    alarms = _alarms(results)
    for tool in tools:
        mine = [result for result in results if result.tool is tool and not result.case.hard]
        bad = [result.verdict for result in mine if not result.case.sound]
        good = [result.verdict for result in mine if result.case.sound]
        told = [each for each in mine if not each.case.sound and (tool.name, each.case.path.name) not in alarms]
        lost = sum(verdict in (NONE, LATE) for verdict in (*bad, *good))
        name, _, version = tool.package.partition("==")
        yield [
            tool.name,
            (version if name != "torch" or tool.name == "torch.load" else f"torch {version}") or "this one",
            f"{sum(each.verdict == FOUND for each in told)} of {len(bad)}",
            f"{good.count(FOUND)} of {len(good)}",
            f"{lost} of {len(mine)}" + (", **ran the code**" if RAN in bad else ""),
        ]


def put_into(path: Path, lines: Iterable[str]) -> None:
    """Put lines into the place that a page has for them."""
    before, begin, rest = path.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{path} has no place for the results: {_BEGIN} ... {_END}")
    path.write_text(before + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + after, "utf-8")


def main() -> None:
    """Run all tools on all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, help="the environment to install into, and to keep")
    parser.add_argument("--tool", action="append", help="run this one only (repeatable)")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds for each tool on each case")
    parser.add_argument("--log", type=Path, help="write all that the tools said to this file")
    parser.add_argument("--into", type=Path, help="put the results into this page instead of printing them")
    options = parser.parse_args()
    tools = [tool for tool in (OURS, *TOOLS) if not options.tool or tool.name in options.tool]
    with tempfile.TemporaryDirectory(prefix="remoterun-peers-") as place:
        folder = Path(place)
        bench = Bench(folder, (options.venv or folder / "venv").absolute())
        bench.install([tool for tool in tools if tool is not OURS])
        cases = list(make(folder / "cases"))
        results = []
        for tool in tools:
            for case in cases:
                if case.path.name.endswith(tool.only):
                    results.append(bench.run(tool, case, options.limit))
                    print(f"{tool.name}: {case.name}: {results[-1].verdict}", file=sys.stderr)
        lines = list(page(results, cases, tools, alone=bool(bench.alone)))
        if options.log:
            options.log.write_text("\n".join(_log(results)), "utf-8")
    if options.into:
        put_into(options.into, lines)
    else:
        print("\n".join(lines))


def _log(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        yield f"===== {result.case.name}: {result.tool.name}: {result.verdict} (exit status {result.status})"
        yield result.words


if __name__ == "__main__":
    main()
