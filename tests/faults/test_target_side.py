"""Every way in which a payload, a script or a program can end on a target, and the outcome that tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoterun.model import ExecWork, Outcome, Status, Work
from tests.support.here import ENDS, SUPPORTED, packed, payload, play, program, script

each_python = pytest.mark.parametrize("python", SUPPORTED)
oldest_and_newest = pytest.mark.parametrize("python", ENDS)


def _code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


def _message(outcome: Outcome) -> str:
    return outcome.error.message if outcome.error else ""


# --- endings of a payload ---

_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            os.write(1, b"a daemon prints\\n")
            time.sleep(0.01)
    os._exit(0)
"""


@each_python
@pytest.mark.parametrize(
    ("source", "code", "words", "exit_status"),
    [
        ("ctx.emit({'n': 1})", None, "", 0),
        ("raise ValueError('no ü')", "payload_crashed", "ValueError: no ü", 1),
        ("import os; os._exit(0)", "payload_crashed", "without finishing", 0),
        ("import sys; sys.exit(0)", "payload_crashed", "without finishing", 0),
        ("import sys; sys.exit(3)", "nonzero_exit", "exit status 3", 3),
        ("import os; os.kill(os.getpid(), 9)", "payload_killed", "SIGKILL", -9),
        ("import nosuchmodule.sub", "module_missing", "'nosuchmodule'", 1),
        ("ctx.nothing('no checkpoint under /x')", "nothing_to_check", "no checkpoint under /x", 1),
        ("ctx.fail('cannot read /x')", "payload_failed", "cannot read /x", 1),
        ("ctx.emit({'x': b'bytes'})", "payload_crashed", "TypeError", 1),
        ("ctx.emit({'x': float('nan')})", "payload_crashed", "ValueError", 1),
        ("ctx.emit([1])", "payload_crashed", "TypeError: a record is a dict, not list", 1),
        ("ctx.finding('r', 'awful', 's', 'm')", "payload_crashed", "ValueError: severity", 1),
    ],
)  # fmt: skip
def test_a_payload_ends(python: str, source: str, code: str | None, words: str, exit_status: int) -> None:
    outcome = play(payload(source), python)
    assert (_code(outcome), outcome.exit_status, outcome.survivors) == (code, exit_status, 0)
    assert words in _message(outcome)
    assert str(outcome.facts["python"]).startswith(f"{python}.")


@each_python
@pytest.mark.parametrize(
    "source",
    [
        "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
        "raise ValueError('\\udcff')",
        "def deep(): deep()\ndeep()",
        "raise type('Strange', (BaseException,), {})('not an Exception')",
    ],
    ids=["no-words", "no-unicode", "endless-recursion", "no-exception"],
)
def test_odd_exceptions_are_crashes(python: str, source: str) -> None:
    outcome = play(payload(source), python)
    assert _code(outcome) == "payload_crashed"
    assert b"Traceback" in outcome.stderr.data


@each_python
def test_a_crash_shows_the_payloads_own_lines(python: str) -> None:
    work = packed(
        {
            "look/__init__.py": b"from .deep import fall\n\ndef run(ctx):\n    fall('here')\n",
            "look/deep.py": b"def fall(where):\n    raise KeyError(where)\n",
        }
    )
    trace = play(work, python).stderr.data.decode()
    assert "File \"look/__init__.py\", line 4, in run\n    fall('here')\n" in trace
    assert 'File "look/deep.py", line 2, in fall\n    raise KeyError(where)\n' in trace
    assert trace.startswith('Traceback (most recent call last):\n  File "look/__init__.py"')
    assert "remoterun" not in trace


@oldest_and_newest
@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ({"look/__init__.py": b"def run(ctx):\n  return (\n"}, "payload_crashed", "SyntaxError"),
        ({"look/__init__.py": b"walk = 1\n"}, "payload_crashed", "AttributeError"),
        ({"look/__init__.py": b"raise OSError('at import')\ndef run(ctx): pass\n"}, "payload_crashed", "at import"),
        ({"other.py": b""}, "module_missing", "'look'"),
    ],
)
def test_a_payload_that_cannot_even_begin(python: str, files: dict[str, bytes], code: str, words: str) -> None:
    outcome = play(packed(files), python)
    assert _code(outcome) == code
    assert words in _message(outcome)


@each_python
def test_required_modules_are_looked_for_before_anything_runs(python: str) -> None:
    work = payload("ctx.emit({'ran': True})", requires=("json", "no_such_one", "os.path", "no.such.other"))
    outcome = play(work, python)
    assert _code(outcome) == "module_missing"
    assert _message(outcome).startswith("No module named 'no_such_one', 'no.such.other' in ")
    assert outcome.records == ()


@oldest_and_newest
@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("raise ImportError('libcudnn.so.9: cannot open shared object file')", "payload_crashed", "libcudnn.so.9"),
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "payload_crashed", "libcudart.so.12"),
        ("import no_such_one", "module_missing", "No module named 'no_such_one' in "),
        ("import brok", "module_missing", "No module named 'brok' in "),
        ("", "module_missing", "No module named 'broken.inner' in "),
    ],
    ids=["import-error", "other-error", "lacks-another", "lacks-one-whose-name-it-begins-with", "lacks-it"],
)
def test_a_required_module_inside_one_that_is_broken_is_not_called_missing(
    python: str, source: str, code: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text(f"{source}\n")
    outcome = play(payload("pass", requires=("broken.inner",)), python, env={"PYTHONPATH": str(tmp_path)})
    assert _code(outcome) == code
    assert words in _message(outcome)


@each_python
def test_all_that_a_payload_may_say_arrives(python: str) -> None:
    work = payload(
        """
        ctx.log("looking")
        ctx.progress(1, 2, "files", "a")
        ctx.emit({"params": ctx.params, "text": "ü\\U0001f600\\udcff", "nested": [[{"a": None}], True, 1.5, 10**30]})
        ctx.finding("nan", "suspect", "step_1", "has NaN", "go back", {"n": 3}, tensor="w")
        """,
        root="/x y",
        deep={"a": [1, None, "ü"]},
    )
    outcome = play(work, python)
    assert outcome.status is Status.FINDINGS
    assert outcome.log == ("looking",)
    (record,) = outcome.records
    assert record["params"] == {"root": "/x y", "deep": {"a": [1, None, "ü"]}}
    assert record["nested"] == [[{"a": None}], True, 1.5, 10**30]
    assert str(record["text"]).startswith("ü\U0001f600")
    (finding,) = outcome.findings
    assert (finding.rule, finding.subject, finding.message, finding.next_step) == (
        "nan",
        "step_1",
        "has NaN",
        "go back",
    )
    assert (finding.evidence, finding.data) == ({"n": 3}, {"tensor": "w"})


# --- noise ---


@each_python
def test_what_a_payload_does_to_its_stdout_leaves_the_records_alone(python: str) -> None:
    work = payload(
        """
        import os, sys
        ctx.emit({"n": 1})
        os.write(1, bytes(range(256)) * 40)
        print("text", file=sys.stderr)
        os.write(2, b"\\xf7RR\\xf8" * 50)
        os.close(1)
        os.close(0)
        ctx.emit({"n": 2})
        os.closerange(1, 3)
        ctx.emit({"n": 3})
        """
    )
    outcome = play(work, python)
    assert outcome.status is Status.OK
    assert [record["n"] for record in outcome.records] == [1, 2, 3]
    assert outcome.stdout.data == bytes(range(256)) * 40
    assert outcome.stderr.data == b"text\n" + b"\xf7RR\xf8" * 50
    assert outcome.noise.total == 0


@each_python
def test_a_daemon_that_prints_is_gone_and_the_result_whole(python: str) -> None:
    work = packed(
        {
            "look/__init__.py": b"def run(ctx):\n    import look.daemon\n    ctx.emit({'n': 1})\n",
            "look/daemon.py": _DAEMON.encode(),
        }
    )
    outcome = play(work, python)
    assert (outcome.status, outcome.records, outcome.survivors) == (Status.OK, ({"n": 1},), 0)


@oldest_and_newest
def test_output_of_a_payload_is_kept_by_head_and_tail(python: str) -> None:
    work = payload(
        """
        import sys
        for n in range(300_000):
            sys.stdout.write("%09d\\n" % n)
        sys.stderr.write("e" * 600_000)
        """
    )
    outcome = play(work, python)
    whole = b"".join(b"%09d\n" % n for n in range(300_000))
    half = 512 * 1024
    assert (outcome.stdout.head, outcome.stdout.tail) == (whole[:half], whole[-half:])
    assert outcome.stdout.total == len(whole)
    assert outcome.stdout.truncated
    assert (outcome.stderr.data, outcome.stderr.truncated) == (b"e" * 600_000, False)


# --- many records, big records ---


@oldest_and_newest
def test_a_record_of_3_mb_arrives(python: str) -> None:
    outcome = play(payload("ctx.emit({'x': 'y' * 3_000_000, 'n': 1}); ctx.emit({'n': 2})"), python)
    assert outcome.status is Status.OK
    assert [record["n"] for record in outcome.records] == [1, 2]
    assert outcome.records[0]["x"] == "y" * 3_000_000


@oldest_and_newest
@pytest.mark.parametrize("size", [(16 << 20) - 8, (16 << 20) - 7, 17 << 20, 40 << 20])
def test_a_record_of_16_mb_is_the_largest(python: str, size: int) -> None:
    # {"x":"..."} takes eight bytes more than its text.
    outcome = play(payload(f"ctx.emit({{'n': 1}}); ctx.emit({{'x': 'y' * {size}}})"), python)
    if size + 8 <= 16 << 20:
        assert (outcome.status, len(outcome.records)) == (Status.OK, 2)
    else:
        assert _code(outcome) == "output_limit"
        assert outcome.records == ({"n": 1},)
        assert outcome.survivors == 0


@oldest_and_newest
def test_records_of_workers_and_threads_arrive_whole(python: str) -> None:
    work = payload(
        """
        import os, random, threading

        def emit(worker, thread):
            sizes = random.Random(worker * 10 + thread)
            for n in range(150):
                ctx.emit({"w": worker, "t": thread, "n": n, "x": "y" * sizes.choice([0, 10, 4060, 9000, 30_000])})

        def threads(worker):
            started = [threading.Thread(target=emit, args=(worker, thread)) for thread in range(3)]
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()

        children = []
        busy = threading.Thread(target=threads, args=(0,))
        busy.start()
        # Forked while threads hold the lock, again and again.
        for worker in range(1, 6):
            pid = os.fork()
            if pid == 0:
                threads(worker)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        busy.join()
        """
    )
    outcome = play(work, python)
    assert outcome.status is Status.OK
    assert {len(str(record["x"])) for record in outcome.records} <= {0, 10, 4060, 9000, 30_000}
    for worker in range(6):
        for thread in range(3):
            mine = [record["n"] for record in outcome.records if (record["w"], record["t"]) == (worker, thread)]
            assert mine == list(range(150))
    assert len(outcome.records) == 6 * 3 * 150


@oldest_and_newest
def test_100_000_records_arrive_in_order(python: str) -> None:
    outcome = play(payload("for n in range(100_000):\n    ctx.emit({'n': n})"), python)
    assert outcome.status is Status.OK
    assert [record["n"] for record in outcome.records] == list(range(100_000))


def test_one_record_too_many_ends_the_payload() -> None:
    outcome = play(payload("n = 0\nwhile True:\n    ctx.emit({'n': n})\n    n += 1"))
    assert (_code(outcome), outcome.survivors) == ("output_limit", 0)
    assert [record["n"] for record in outcome.records] == list(range(100_000))


# --- scripts ---


@each_python
@pytest.mark.parametrize(
    ("source", "code", "exit_status", "stdout", "stderr"),
    [
        ("print('done')", None, 0, b"done\n", b""),
        ("import sys; sys.exit(3)", "nonzero_exit", 3, b"", b""),
        ("import sys; sys.exit('a reason')", "nonzero_exit", 1, b"", b"a reason\n"),
        ("import os; os._exit(0)", None, 0, b"", b""),
        ("import nosuchmodule", "module_missing", 1, b"", b"ModuleNotFoundError: No module named 'nosuchmodule'\n"),
        ("print(1)\n1 / 0", "payload_crashed", 1, b"1\n", b"ZeroDivisionError: division by zero\n"),
        ("def f(:\n", "payload_crashed", 1, b"", b"SyntaxError: invalid syntax\n"),
        ("raise KeyboardInterrupt", "payload_killed", -2, b"", b"KeyboardInterrupt\n"),
        ("input()", "payload_crashed", 1, b"", b"EOFError: EOF when reading a line\n"),
        (b"# coding: latin-1\nprint(ascii('\xe4'))", None, 0, b"'\\xe4'\n", b""),
        (b"\xef\xbb\xbfprint(ascii('\xc3\xa4'))", None, 0, b"'\\xe4'\n", b""),
        (b"x = '\0'\n", "payload_crashed", 1, b"", b"null bytes\n"),
    ],
)
def test_a_script_ends(
    python: str, source: str | bytes, code: str | None, exit_status: int, stdout: bytes, stderr: bytes
) -> None:
    outcome = play(script(source), python)
    assert (_code(outcome), outcome.exit_status, outcome.stdout.data) == (code, exit_status, stdout)
    assert outcome.stderr.data.endswith(stderr)


@each_python
def test_a_scripts_traceback_names_it_and_shows_its_lines(python: str) -> None:
    outcome = play(script("import sys\n\ndef fall():\n    raise ValueError('down')\n\nfall()\n"), python)
    trace = outcome.stderr.data.decode()
    assert trace.startswith('Traceback (most recent call last):\n  File "look.py", line 6, in <module>\n    fall()\n')
    assert "  File \"look.py\", line 4, in fall\n    raise ValueError('down')\n" in trace
    assert "remoterun" not in trace


@each_python
def test_a_script_is_main_with_exact_arguments(python: str) -> None:
    words = (b"", b"a b", b"'\"$HOME`id`\n{}!*\\", b"\xff\xfe", "ü\U0001f600".encode(), b"x" * 1_000_000, b"--flag=1")
    source = """
        import os, sys, pickle
        class Thing: pass
        assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
        assert __name__ == "__main__" and sys.modules["__main__"].Thing is Thing
        assert open(__file__, "rb").read().lstrip().startswith(b"import os")
        sys.stdout.buffer.write(b"\\0".join(map(os.fsencode, sys.argv)))
        """
    outcome = play(script(source, *words), python)
    assert outcome.status is Status.OK, outcome.stderr.data
    assert outcome.stdout.data == b"\0".join((b"look.py", *words))


_SPAWN = """
import multiprocessing, sys

def double(n):
    return n * 2

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(double, [1, 2, 3]))
"""


@each_python
def test_multiprocessing_works_in_a_script(python: str) -> None:
    outcome = play(script(_SPAWN), python)
    assert outcome.status is Status.OK, outcome.stderr.data
    assert outcome.stdout.data == b"".join(b"%s [2, 4, 6]\n" % name for name in (b"spawn", b"forkserver", b"fork"))


@each_python
def test_multiprocessing_works_in_a_payload(python: str) -> None:
    source = b"""
import multiprocessing

def double(n):
    return n * 2

def run(ctx):
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            ctx.emit({"method": method, "got": pool.map(double, [1, 2, 3])})
"""
    outcome = play(packed({"look/__init__.py": source}), python)
    assert outcome.status is Status.OK, outcome.stderr.data
    assert [record["got"] for record in outcome.records] == [[2, 4, 6]] * 3


# --- programs ---


@oldest_and_newest
@pytest.mark.parametrize(
    ("source", "code", "words", "records"),
    [
        ("#!/bin/sh\necho '{\"n\": 1}'; echo; echo '{\"n\": 2}'", None, "", [1, 2]),
        ("#!/bin/sh\nprintf '{\"n\": 1}'", None, "", [1]),
        ("#!/bin/sh\necho '{\"n\": 1}'; exit 4", "nonzero_exit", "status 4", [1]),
        ("#!/bin/sh\necho '{\"n\": 1}'; printf '{\"n\"'; exit 4", "nonzero_exit", "status 4", [1]),
        ("#!/bin/sh\necho '{\"n\": 1}'; printf '{\"n\"'; kill -9 $$", "payload_killed", "SIGKILL", [1]),
        ("#!/bin/sh\necho '{\"n\": 1}'; printf '{\"n\"'", "payload_failed", "record 2", [1]),
        ("#!/bin/sh\necho '[1]'", "payload_failed", "no JSON object", []),
        ("#!/bin/sh\necho '{\"n\": NaN}'", "payload_failed", "NaN", []),
        ("#!/bin/sh\necho '{\"n\": 1e999}'", "payload_failed", "1e999", []),
        ("#!/no/such/shell\n", "start_failed", "No such file", []),
        ("\x7fELF but not really", "start_failed", "Exec format error", []),
    ],
)  # fmt: skip
def test_a_program_ends(python: str, source: str, code: str | None, words: str, records: list[int]) -> None:
    outcome = play(program(source), python)
    assert _code(outcome) == code
    assert words in _message(outcome)
    assert [record["n"] for record in outcome.records] == records


@oldest_and_newest
def test_what_is_no_record_ends_a_program(python: str) -> None:
    outcome = play(program("#!/bin/sh\necho '{\"n\": 1}'; echo oops; echo '{\"n\": 3}'; exec sleep 60"), python)
    assert _code(outcome) == "payload_failed"
    assert "record 2" in _message(outcome)
    # What came before counts; of what comes after, as much as had been said before the end.
    assert [record["n"] for record in outcome.records] in ([1], [1, 3])


def test_a_program_reads_its_parameters_and_its_files() -> None:
    source = """\
        #!/bin/sh
        echo "said" >&2
        printf '{"params": %s, "file": "%s"}\\n' "$(cat)" "$(cat "$REMOTERUN_FOLDER/data/text")"
        """
    outcome = play(program(source, {"data/text": b"beside"}, root="/x", n=[1, "ü"]))
    assert outcome.status is Status.OK
    assert outcome.records == ({"params": {"root": "/x", "n": [1, "ü"]}, "file": "beside"},)
    assert outcome.stderr.data == b"said\n"


def test_a_line_of_more_than_16_mb_ends_a_program() -> None:
    outcome = play(program("#!/bin/sh\necho '{\"n\": 1}'; head -c 20000000 /dev/zero; sleep 100"))
    assert (_code(outcome), outcome.records, outcome.survivors) == ("output_limit", ({"n": 1},), 0)


# --- any argv ---


@oldest_and_newest
def test_any_argv_is_run_with_exact_words(python: str) -> None:
    words = (b"%s\\0", b"", b"a b", b"'\"$HOME`id`\n{}!*\\", b"\xff\xfe", "ü".encode(), b"x" * 131_000)
    outcome = play(ExecWork(argv=(b"/usr/bin/printf", *words)), python)
    assert outcome.stdout.data == b"".join(word + b"\0" for word in words[1:])


@oldest_and_newest
@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((b"true",), None, ""),
        ((b"false",), "nonzero_exit", "status 1"),
        ((b"/bin/sh", b"-c", b"kill -SEGV $$"), "payload_killed", "SIGSEGV"),
        ((b"no-such-program",), "start_failed", "no-such-program: No such file or directory"),
        ((b"/etc/passwd",), "start_failed", "/etc/passwd: Permission denied"),
        ((b"true", b"x" * 131_072), "start_failed", "Argument list too long"),
        ((b"true", b"nul\0byte"), "start_failed", "null byte"),
    ],
)
def test_a_program_of_the_target_ends(python: str, argv: tuple[bytes, ...], code: str | None, words: str) -> None:
    outcome = play(ExecWork(argv=argv), python)
    assert _code(outcome) == code
    assert words in _message(outcome)


@pytest.mark.parametrize(
    ("data", "mode", "words"),
    [
        (b"echo hi\n", 0o755, "A script needs a first line such as `#!/bin/sh`"),
        (b"\x7fELF but not really", 0o755, "made for another kind of machine"),
        (b"#!/bin/sh\n", 0o644, "may not be executed"),
        (b"#!/no/such/shell\n", 0o755, "its first line (`#!`) may name an interpreter that is not there"),
    ],
)
def test_it_is_told_why_a_program_that_is_there_cannot_be_started(
    tmp_path: Path, data: bytes, mode: int, words: str
) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(data)
    tool.chmod(mode)
    outcome = play(ExecWork(argv=(bytes(tool),)))
    assert outcome.error is not None
    assert (outcome.error.code, words in outcome.error.hint) == ("start_failed", True)


def test_the_path_that_a_missing_program_was_looked_for_in_is_the_one_that_programs_get() -> None:
    given = play(ExecWork(argv=(b"/bin/sh", b"-c", b"printf %s $PATH"))).stdout.head.decode()
    missing = play(ExecWork(argv=(b"no-such-program",)))
    assert missing.error is not None
    assert f"PATH={given};" in missing.error.hint


@pytest.mark.parametrize(
    "work",
    [
        script("import sys; sys.stdout.write('o' * 20_000_000); sys.stderr.write('e' * 100)"),
        ExecWork(argv=(b"/bin/sh", b"-c", b"head -c 20000000 /dev/zero; printf %100s >&2")),
    ],
    ids=["script", "exec"],
)
def test_streamed_output_is_kept_to_8_mb(work: Work) -> None:
    outcome = play(work)
    assert outcome.status is Status.OK
    assert (len(outcome.stdout.head), len(outcome.stdout.tail)) == (4 << 20, 4 << 20)
    assert outcome.stdout.total == 20_000_000
    assert outcome.stderr.total == 100
