"""What every test gets: a home of its own, a printed seed, and the lab where this machine can carry it."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.homes import Remembered
from tests.support.lab import Lab, missing
from tests.support.lab.pythons import pythons
from tests.support.programs import NO_SKIP

SEED = int(os.environ.get("REMOTERUN_SEED") or random.SystemRandom().randrange(2**32))

# The folders of tests that start commands of the user's.
STARTS_COMMANDS = frozenset({"api", "cli", "conformance", "docs", "lab"})

# How long it takes to make examples says more of what else the machine does than of a test.
SLOW_IS_WELL = [hypothesis.HealthCheck.too_slow]
# Each run draws others, so that few of them become many. Where a property says how many it needs, that counts.
EXAMPLES = 400 if os.environ.get("REMOTERUN_SOAK") == "1" else 40
hypothesis.settings.register_profile(
    "ci",
    derandomize=False,
    deadline=None,
    print_blob=True,
    max_examples=EXAMPLES,
    suppress_health_check=SLOW_IS_WELL,
)
hypothesis.settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis the printed seed, unless the command line names another; and let Ctrl-C reach what is started."""
    # A shell has what it starts in the background ignore it, and that is inherited.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--hypothesis-seed") is None:
        setattr(config.option, "--hypothesis-seed", str(SEED))


def pytest_report_header() -> list[str]:
    """Say how to repeat this run, and what the lab has to work with."""
    reasons = missing()
    return [
        f"random seed: REMOTERUN_SEED={SEED}",
        f"lab: {'not here: ' + '; '.join(reasons) if reasons else 'ready'}",
        f"target-side Pythons: {', '.join(pythons()) or 'none'}",
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything that uses the lab, so that no test can forget to; and take turns with what does not."""
    for item in items:
        if "lab" in getattr(item, "fixturenames", ()):
            item.add_marker("lab")
    items[:] = _in_turns(items)


def _in_turns(items: list[pytest.Item]) -> list[pytest.Item]:
    """Put a file that waits for the lab beside one that computes: workers side by side then use all of the machine."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [tests for tests in files.values() if any(test.get_closest_marker("lab") for test in tests)]
    computing = [tests for tests in files.values() if not any(test.get_closest_marker("lab") for test in tests)]
    pairs = itertools.zip_longest(waiting, computing)
    return [test for pair in pairs for tests in pair for test in tests or ()]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a lab test, saying everything that is missing, where the lab can not be."""
    if item.get_closest_marker("lab") and missing():
        pytest.skip(f"the lab needs: {'; '.join(missing())}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped lab test into a failed one where REMOTERUN_NO_SKIP=1 forbids skipping."""
    report = yield
    if NO_SKIP and report.skipped and item.get_closest_marker("lab") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"REMOTERUN_NO_SKIP=1, and a lab test was skipped: {report.longreprtext}"
    return report


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Share one lab among all tests: hosts are made on first use and reused by name."""
    with Lab() as made:
        yield made


@pytest.fixture
def seed() -> int:
    """Return the seed in this run's header."""
    return SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Return a random generator that depends on the seed and the test alone."""
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture(scope="session")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Remembered:
    """Share what commands remember of earlier ones, computed once."""
    return Remembered(tmp_path_factory.mktemp("remembered"))


@pytest.fixture(autouse=True)
def own_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Keep every test away from the real home, state, caches, ssh-agent and project of whoever runs it."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "CACHE", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    # Torch makes this folder wherever it likes, once it is imported.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(home / "inductor"))
    for name in [name for name in os.environ if name.startswith("REMOTERUN_")]:
        monkeypatch.delenv(name)
    for name in ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS"):
        monkeypatch.delenv(name, raising=False)
    if request.path.relative_to(Path(__file__).parent).parts[0] in STARTS_COMMANDS:
        request.getfixturevalue("remembered").give(home / "state", home / "cache")
    return home


@pytest.fixture
def nobody() -> Iterator[None]:
    """Give up root for the length of a test, because root reads everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
