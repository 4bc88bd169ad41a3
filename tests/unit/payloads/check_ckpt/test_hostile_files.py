"""Files made to attack whoever reads them: nothing runs, and each costs little time and memory."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import audit, place_of, save, settle, stored_zip, training_state, write

pytestmark = pytest.mark.torch

REPO = Path(__file__).resolve().parents[4]

# A bare start of Python is about 10 MB.
MEMORY_MB = 150
# In times of a loop of a million additions, which takes 25 to 40 ms on an idle machine; all take less than 1 s there.
PACES = 45

WATCHED = """
import json, resource, sys, time
sys.path.insert(0, {payloads!r})
from check_ckpt import run
class Context:
    params = {{"root": sys.argv[1], "depth": 6, "engine": "stdlib"}}
    emitted, findings = [], []
    def emit(self, record): self.emitted.append(record)
    def finding(self, rule, severity, subject, message, *rest, **data): self.findings.append([rule, severity, message])
    def progress(self, *rest): pass
    def log(self, text): pass
context = Context()
before = time.process_time()
total = 0
for number in range(1_000_000):
    total += number
pace = time.process_time() - before
run(context)
usage = resource.getrusage(resource.RUSAGE_SELF)
# ru_maxrss would be that of the process that started this one.
peak = next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps([context.emitted, context.findings, peak, (usage.ru_utime + usage.ru_stime - pace) / pace]))
"""


def watched(path: Path) -> tuple[str, set[str]]:
    """Audit a file in a process of its own, within memory and time; return verdict and rules."""
    script = WATCHED.format(payloads=str(REPO / "remoterun" / "payloads"))
    done = subprocess.run(
        [sys.executable, "-E", "-c", script, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    emitted, findings, memory, paces = json.loads(done.stdout)
    assert memory < MEMORY_MB
    assert paces < PACES
    return emitted[0]["verdict"], {rule for rule, _, _ in findings}


class Attack:
    """Make a file when it is unpickled for real."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.trace}",)


def torch_zip(pickled: bytes, **records: bytes) -> bytes:
    """Make a file that torch would load, around any pickle."""
    return stored_zip({"archive/data.pkl": pickled, "archive/version": b"3\n", **records})


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("container", ["zip", "plain", "legacy", "after the state"])
def test_code_in_a_pickle_is_found_and_does_not_run(tmp_path: Path, protocol: int, container: str) -> None:
    trace, path = tmp_path / "trace", tmp_path / "c.pt"
    attack = Attack(trace)
    if container == "plain":
        write(path, pickle.dumps(attack, protocol))
    elif container == "legacy":
        torch.save(
            {"w": torch.ones(2), "x": attack}, path, _use_new_zipfile_serialization=False, pickle_protocol=protocol
        )
    elif container == "zip":
        write(path, torch_zip(pickle.dumps({"x": attack}, protocol)))
    else:
        save(training_state(x=attack), path, pickle_protocol=max(2, protocol))
    settle(path)
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "CK101" in heard.rules()
    assert "system" in heard.of("CK101")["message"]
    assert not trace.exists()


def test_code_in_front_of_an_error_is_found(tmp_path: Path) -> None:
    """An unpickler runs what it meets before it fails."""
    write(tmp_path / "c.pt", torch_zip(b"cos\nsystem\n(S'true'\ntR\xff"))
    assert {"CK101", "CK025"} <= audit(tmp_path).rules()


def test_names_from_the_memo_and_inner_names_are_seen(tmp_path: Path) -> None:
    memo = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93\x8c\x04true\x85R."
    inner = b"\x80\x04\x8c\x05torch\x8c\x17serialization.os.system\x93\x8c\x04true\x85R."
    getattr_ = b"c__builtin__\ngetattr\n(c__builtin__\neval\nS'__call__'\ntR(S'1'\ntR."
    partial = b"cfunctools\npartial\n(cos\nsystem\nS'true'\ntR)R."
    for data in (memo, inner, getattr_, partial):
        assert "CK101" in audit(write(tmp_path / "c.pt", torch_zip(data))).rules()


class Raw:
    """Be what pickle makes of a function and its arguments."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


ATTACKS = {
    "system": b"cos\nsystem\n(S'true'\ntR.",
    "posix": b"cposix\nsystem\n(S'true'\ntR.",
    "instance": b"(S'true'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'true'\no.",
    "newobj": b"\x80\x02csubprocess\nPopen\nX\x04\0\0\0true\x85\x81.",
    "newobj_ex": b"\x80\x04\x8c\nsubprocess\x8c\x05Popen\x93\x8c\x04true\x85}\x92.",
    "partial": b"cfunctools\npartial\n(cos\nsystem\nS'true'\ntR)R.",
    "getattr of getattr": b"c__builtin__\ngetattr\n(c__builtin__\ngetattr\n(cos\npath\nS'os'\ntRS'system'\ntR.",
    "torch's helper": b"ctorch._tensor\n_rebuild_from_type_v2\n(cshutil\nrmtree\nctorch\nTensor\n(S'/x'\nt}tR.",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_code_is_seen_whichever_way_it_is_called(tmp_path: Path, name: str) -> None:
    heard = audit(write(tmp_path / "c.pt", torch_zip(ATTACKS[name])))
    assert heard.record["verdict"] == "bad"
    assert "CK101" in heard.rules()


ODD = {
    "a class that empties a file": b"cio\nFileIO\n(S'/x'\nS'w'\ntR.",
    "a handler of logs": b"clogging\nFileHandler\n(S'/x'\ntR.",
    "a class that is changed": b"ctorch.nn.modules.linear\nLinear\n(N}S'forward'\nctorch\nTensor\nstb.",
    "a function that is changed": b"ctorch._utils\n_rebuild_tensor_v2\n(N}S'__code__'\nNstb.",
    "a loader": b"ctorch\nload\n(S'other.pt'\ntR.",
    "what a call returned": b"coperator\nmethodcaller\n(S'x'\ntR(NtR.",
}


@pytest.mark.parametrize("name", ODD)
def test_what_no_checkpoint_does_is_suspect(tmp_path: Path, name: str) -> None:
    heard = audit(write(tmp_path / "c.pt", torch_zip(ODD[name])))
    assert "CK100" in heard.rules()
    assert heard.record["verdict"] in {"suspect", "unsupported"}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("record", ["archive/data/0", "archive/extra", "archive/.data/hidden", "other"])
def test_code_under_another_name_is_seen(tmp_path: Path, protocol: int, record: str) -> None:
    """In the bytes of a storage, or in a record without a pickle's name."""
    attack = pickle.dumps(Attack(tmp_path / "trace"), protocol)
    heard = audit(write(tmp_path / "c.pt", torch_zip(pickle.dumps({}), **{record: attack})))
    assert heard.record["verdict"] == "bad"
    assert {"CK101", "CK102"} <= heard.rules()
    assert record in heard.of("CK102")["message"]


def test_a_harmless_pickle_in_a_tensor_is_only_told(tmp_path: Path) -> None:
    data = pickle.dumps({"name": "x", "sizes": list(range(50))})
    heard = audit(save({"state": torch.frombuffer(bytearray(data), dtype=torch.uint8)}, tmp_path / "c.pt"))
    assert (heard.record["verdict"], heard.rules()) == ("ok", {"CK102"})


def test_code_in_front_of_an_archive_is_seen(tmp_path: Path) -> None:
    """torch reads such a file as a pickle, zip readers as an archive."""
    trace = tmp_path / "trace"
    archive = bytearray(stored_zip({"archive/data.pkl": pickle.dumps({}), "archive/data/0": bytes(8)}))
    front = pickle.dumps(Attack(trace), 2)
    with zipfile.ZipFile(io.BytesIO(front + bytes(archive))) as whole:
        places = [info.header_offset for info in whole.infolist()]
    assert places[0] == len(front)
    at = -1
    while (at := archive.find(b"PK\x01\x02", at + 1)) > 0:
        struct.pack_into("<I", archive, at + 42, struct.unpack_from("<I", archive, at + 42)[0] + len(front))
    end = archive.rfind(b"PK\x05\x06")
    struct.pack_into("<I", archive, end + 16, struct.unpack_from("<I", archive, end + 16)[0] + len(front))
    heard = audit(write(tmp_path / "c.pt", front + bytes(archive)))
    assert heard.record["verdict"] == "bad"
    assert "in front of the archive" in heard.of("CK102")["message"]
    assert "CK101" in heard.rules()


def test_an_archive_in_front_of_another_is_seen(tmp_path: Path) -> None:
    first, second = torch_zip(pickle.dumps(Attack(tmp_path / "trace"))), torch_zip(pickle.dumps({}))
    assert audit(write(tmp_path / "c.pt", first + second)).record["verdict"] == "bad"


def test_an_end_record_in_the_comment_of_another_is_seen(tmp_path: Path) -> None:
    good = torch_zip(pickle.dumps({}))
    fake = bytearray(good)
    end = fake.rfind(b"PK\x05\x06")
    struct.pack_into("<H", fake, end + 20, 22)
    fake += good[end:]
    struct.pack_into("<H", fake, len(fake) - 2, 7)
    heard = audit(write(tmp_path / "c.pt", bytes(fake)))
    assert heard.record["verdict"] == "bad"


def test_a_symbolic_link_in_an_archive_is_evasive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        link = zipfile.ZipInfo("archive/data/0")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    heard = audit(write(tmp_path / "c.pt", buffer.getvalue()))
    assert "symbolic link" in heard.of("CK102")["message"]


def test_compressed_sources_without_a_program_are_evasive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/code/a.pkl", pickle.dumps(Attack(tmp_path / "t")) * 9, zipfile.ZIP_DEFLATED)
    assert "only with the sources" in audit(write(tmp_path / "c.pt", buffer.getvalue())).of("CK102")["message"]


def test_many_pickles_are_evasive(tmp_path: Path) -> None:
    """However many there are, not all of them are looked at, so that they can't take for ever."""
    records = {f"archive/{index}.pkl": pickle.dumps({}) for index in range(20)}
    heard = audit(write(tmp_path / "c.pt", torch_zip(pickle.dumps({}), **records)))
    assert "21 pickles" in heard.of("CK102")["message"]


@pytest.mark.parametrize("code", [b"\x82\x05", b"\x83\x05\x00", b"\x84\x05\x00\x00\x00", b"\x97", b"N\x98"])
def test_extension_opcodes_are_suspect(tmp_path: Path, code: bytes) -> None:
    heard = audit(write(tmp_path / "c.pt", torch_zip(b"\x80\x05" + code + b".")))
    assert "CK105" in heard.rules()


def test_the_state_of_a_class_that_nobody_knows_is_named(tmp_path: Path) -> None:
    """A layer that keeps its weights as bytes of its own making: not one of them was checked."""
    state = {"codebook": bytes(5000), "small": b"x"}
    value = {"model": {"w": torch.ones(2)}, "layer": Opaque(state), "text": b"t" * 5000, "list": [b"u" * 5000]}
    heard = audit(save(value, tmp_path / "c.pt", pickle_protocol=4))
    assert heard.record["verdict"] == "ok"
    assert heard.of("CK106")["severity"] == "info"
    assert "5,000 bytes" in heard.of("CK106")["message"]
    (unchecked,) = heard.record["unchecked"]
    assert (unchecked["tensor"].rpartition(".")[2], unchecked["bytes"]) == ("Opaque", 5000)


class Opaque:
    """Keep what it is given."""

    def __init__(self, state: dict[str, bytes]) -> None:
        self.state = state


@pytest.mark.parametrize(
    ("version", "folder", "expected"),
    [
        ("2.5.1+cu121", ".cache/huggingface/hub/m", "CVE-2025-32434"),
        ("2.9.0", "hub/m", "CVE-2026-24747"),
        ("2.10.0", "hub/m", ""),
        ("2.5.1", "runs/mine", ""),
    ],
)
def test_an_old_torch_and_a_foreign_file_are_told_together(
    tmp_path: Path, version: str, folder: str, expected: str
) -> None:
    (tmp_path / "site" / f"torch-{version}.dist-info").mkdir(parents=True)
    path = save({"w": torch.ones(3)}, tmp_path / folder / "c.pt")
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})" + WATCHED.format(
        payloads=str(REPO / "remoterun" / "payloads")
    )
    done = subprocess.run(
        [sys.executable, "-E", "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    found = [message for rule, severity, message in json.loads(done.stdout)[1] if rule == "CK107"]
    assert len(found) == bool(expected)
    assert all(expected in message and "torch 2." in message for message in found)


def test_a_second_pickle_is_seen(tmp_path: Path) -> None:
    attack = pickle.dumps(Attack(tmp_path / "trace"))
    other = torch_zip(pickle.dumps({}), **{"other/data.pkl": attack})
    assert {"CK101", "CK102"} <= audit(write(tmp_path / "c.pt", other)).rules()
    named = torch_zip(pickle.dumps({}), **{"archive/extra.pkl": attack})
    assert "CK101" in audit(write(tmp_path / "c.pt", named)).rules()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_evasive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/data.pkl", pickle.dumps(Attack(tmp_path / "trace")))
    assert {"CK101", "CK102"} <= audit(write(tmp_path / "c.pt", buffer.getvalue())).rules()


def test_compressed_records_are_evasive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": "b" * 1000}))
    heard = audit(write(tmp_path / "c.pt", buffer.getvalue()))
    assert heard.rules() >= {"CK102"}
    assert heard.record["verdict"] == "bad"


@pytest.mark.parametrize(
    ("where", "offset", "value", "rule"),
    [
        ("central", 8, b"\x09\x08", "CK102"),  # flags: encrypted, in the directory alone
        ("central", 10, b"\x08\x00", "CK102"),  # method: deflated, in the directory alone
        ("central", 46, b"X", "CK102"),  # another name than in front of the data
        ("central", 42, b"\xff\xff\xff\x00", "CK025"),  # a header beyond the file
        ("central", 0, b"XX", "CK025"),  # a broken directory
        ("end", 12, b"\xff\xff\xff\x7f", "CK102"),  # a directory of 2 GB, in one end record of two
        ("end64", 32, b"\xff\xff\xff\xff\xff\xff", "CK102"),  # 2^48 records, in the other
        ("locator", 8, b"\xff\xff\xff\xff\xff", "CK025"),  # an end record that is not there
        ("central", 34, b"\x01", "CK025"),  # a record on another disk
        ("central", 38, b"\x10", "CK025"),  # a folder, of which torch reads nothing
        ("end", 4, b"\x01", "CK025"),  # the last of two disks
        ("end", 8, b"\xff\xff", "CK025"),  # more records on this disk than on all
        ("end64", 4, b"\x2b", "CK025"),  # an end record that is too short
        ("end64", 16, b"\x01", "CK025"),  # the last of two disks
        ("end64", 24, b"\x01", "CK025"),  # one record on this disk
        ("locator", 16, b"\x02", "CK025"),  # two disks
    ],
)
def test_directories_that_disagree_are_refused(
    tmp_path: Path, where: str, offset: int, value: bytes, rule: str
) -> None:
    path = save(training_state(), tmp_path / "c.pt")
    data = bytearray(path.read_bytes())
    signature = {"central": b"PK\x01\x02", "end": b"PK\x05\x06", "end64": b"PK\x06\x06", "locator": b"PK\x06\x07"}[
        where
    ]
    at = data.rfind(signature) + offset
    data[at : at + len(value)] = value
    heard = audit(write(path, bytes(data)))
    assert heard.record["verdict"] == "bad"
    assert rule in heard.rules()


def test_wrappers_around_wrappers_are_refused(tmp_path: Path) -> None:
    parameter = b"ctorch._utils\n_rebuild_parameter\n"
    deep = parameter * 50_000 + b"N" + b"\x85R" * 50_000
    subclass = b"ctorch._tensor\n_rebuild_from_type_v2\n"
    typed = subclass + b"(" + (subclass + b"N(") * 20 + b"t" * 20 + b"tR"
    for name, data in (("deep", deep), ("typed", typed)):
        heard = audit(write(tmp_path / f"{name}.pt", torch_zip(b"\x80\x02" + data + b".")))
        assert heard.record["verdict"] in {"bad", "unsupported"}
        assert "audit itself" not in str(heard.findings)


def test_records_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """The way zip bombs are made: many records over the same data."""
    data = bytearray(stored_zip({"archive/data.pkl": pickle.dumps({}), "archive/data/0": bytes(500)}))
    central, second = data.find(b"PK\x01\x02"), data.find(b"PK\x03\x04", 4)
    data[central + 20 : central + 28] = struct.pack("<II", second + 100, second + 100)
    heard = audit(write(tmp_path / "c.pt", bytes(data)))
    assert "CK102" in heard.rules()


def forged(path: Path, old: bytes, new: bytes) -> Path:
    """Replace bytes in the pickle of a torch file."""
    offset, size = place_of(path, "data.pkl")
    data = bytearray(path.read_bytes())
    at = data.find(old, offset, offset + size)
    assert at > 0
    data[at : at + len(old)] = new
    return write(path, bytes(data))


def test_a_tensor_beyond_its_storage_is_malformed(tmp_path: Path) -> None:
    tensor = torch.arange(1000, dtype=torch.float32)
    path = save({"model": {"w": tensor[:999]}}, tmp_path / "c.pt")
    forged(path, b"M\xe7\x03\x85", b"M\xff\x7f\x85")
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "reaches beyond its storage" in "".join(each["message"] for each in heard.findings)


def test_a_storage_of_another_size_than_its_record_is_malformed(tmp_path: Path) -> None:
    path = save({"model": {"w": torch.arange(1000, dtype=torch.float32)[:5]}}, tmp_path / "c.pt")
    forged(path, b"M\xe8\x03tq", b"M\xe9\x03tq")
    assert "its record c/data/0 has 4,000 bytes" in audit(path).of("CK025")["message"]


def streamed(name: bytes, data: bytes = b"") -> bytes:
    """Make a record of a zip as torch writes it, its sizes behind the data; the directory would follow."""
    sizes = struct.pack("<III", zlib.crc32(data), len(data), len(data))
    return b"PK\x03\x04" + bytes(22) + struct.pack("<HH", len(name), 0) + name + data + b"PK\x07\x08" + sizes


# A tensor of one element, under number 2 of the memo, and the function of a parameter under number 1.
ONE_TENSOR = (
    b"](ctorch._utils\n_rebuild_parameter\nq\1ctorch._utils\n_rebuild_tensor_v2\n"
    b"((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0aX\3\0\0\0cpuK\1tQK\0))\x89NtRq\2"
)
ITS_BYTES = {"archive/data/a": bytes(4)}
GGUF = b"GGUF\3\0\0\0"
INNER = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
BOMBS = {
    "memo index": torch_zip(b"\x80\x02Nr\xff\xff\xff\x0f."),
    "marks": torch_zip(b"(" * 200_000 + b"."),
    "empty dictionaries": torch_zip(b"}" * 2_000_000 + b"."),
    "strings": torch_zip(b"X\x00\x01\x00\x00" + b"\xf0\x9f\x98\x80" * 64 + b"2" * 2_000_000 + b"."),
    "lists": torch_zip((b"]" + b"\x94" + b"(" + b"h\x00" * 1000 + b"e") * 500 + b"."),
    "nested": torch_zip(b"]" * 300_000 + b"a" * 299_999 + b"."),
    "tuples": torch_zip(b"N" + b"\x85" * 400_000 + b"."),
    "flat list": torch_zip(b"](" + b")" * 4_000_000 + b"e."),
    "one list often": torch_zip(b"]\x94](" + b"h\0" * 2_500_000 + b"e."),
    "flat dictionary": torch_zip(b"}(" + b"N)" * 1_800_000 + b"u."),
    "arguments": torch_zip(b"carray\narray\n(" + b")" * 4_000_000 + b"tR."),
    "persistent ids": torch_zip(b"](" + b"NQ" * 900_000 + b"e."),
    "one dictionary often": torch_zip(
        b"}\x94("
        + b"".join(b"X\6\0\0\0%06dN" % number for number in range(50_000))
        + b"u\x940}("
        + b"".join(b"X\6\0\0\0%06dh\0" % number for number in range(50_000))
        + b"u."
    ),
    "laughs": torch_zip(b"]\x94" + b"".join(b"]h%c\x94h%ca" % (n, n) for n in range(200)) + b"."),
    "plain": b"\x80\x02" + b"]" * 9_000_000,
    "safetensors header": struct.pack("<Q", 60_000_000) + b'{"a":[' + b"[]," * 19_999_990 + b"0]}     ",
    "safetensors text": struct.pack("<Q", 90_000_000) + b'{"' + b"a" * 89_999_990 + b'":0}    ',
    "gguf strings": GGUF
    + struct.pack("<QQ", 0, 1)
    + b"\1"
    + bytes(7)
    + b"a"
    + struct.pack("<IIQ", 9, 8, 1_999_999)
    + bytes(16_000_000),
    "gguf pairs": GGUF + struct.pack("<QQ", 0, 65_000) + (b"\1" + bytes(7) + b"a" + bytes(5)) * 65_000,
    "gguf tensors": GGUF
    + struct.pack("<QQ", 65_000, 0)
    + b"".join(struct.pack("<QIIQIQ", 4, index, 1, 0, 0, 0) for index in range(65_000)),
    "tar members": tarfile.TarInfo("a").tobuf() * 25_000,
    "inner storages": b"\x80\x04ctorch.storage\n_load_from_bytes\n\x940B\xe8\x03\0\0"
    + INNER.ljust(1000, b"\0")
    + b"\x940]("
    + b"h\0h\1\x85R" * 400_000
    + b"e.",
    "local headers": b"PK\x03\x04" + bytes(26) + b"PK\x03\x04" * 200_000,
    "end records": b"PK\x03\x04" + b"PK\x05\x06" * 300_000,
    "constants that go": torch_zip(b"N0" * 8_000_000 + b"."),
    "recalls": torch_zip(b"N\x94" + b"h\0" * 8_000_000 + b"."),
    "memo written over": torch_zip(b"N" + b"q\0" * 20_000_000 + b"."),
    "protocols": torch_zip(b"\x80\2" * 20_000_000 + b"N."),
    "states of a list": torch_zip(b"]" + b"Nb" * 8_000_000 + b"."),
    "a name again and again": torch_zip(b"](" + b"ca\nb\n" * 3_000_000 + b"e."),
    "broken tensors": torch_zip(b"](" + b"ctorch._utils\n_rebuild_tensor_v2\n)R" * 400_000 + b"e."),
    "records without a pickle": b"".join(streamed(b"a/data/%d" % number) for number in range(100_000)),
    "records and broken ids": streamed(b"a/data.pkl", b"](" + b"NQ" * 100_000 + b"e.")
    + b"".join(streamed(b"a/data/%d" % number) for number in range(50_000)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_cost_little(tmp_path: Path, name: str) -> None:
    verdict, _ = watched(write(tmp_path / "c.pt", BOMBS[name]))
    assert verdict in {"bad", "suspect", "unsupported"}


LISTED_OFTEN = {
    "as it is": b"h\2" * 3_000_000,
    "as parameters": b"h\1h\2\x85R" * 400_000,
}


@pytest.mark.parametrize("name", LISTED_OFTEN)
@pytest.mark.parametrize("there", [True, False])
def test_a_tensor_that_is_listed_often_costs_little(tmp_path: Path, name: str, *, there: bool) -> None:
    records = ITS_BYTES if there else {}
    verdict, rules = watched(write(tmp_path / "c.pt", torch_zip(ONE_TENSOR + LISTED_OFTEN[name] + b"e.", **records)))
    assert (verdict, rules) == (("ok", set()) if there else ("bad", {"CK025", "CK126"}))


def test_an_archive_of_more_records_than_can_be_decoded_costs_little(tmp_path: Path) -> None:
    """It may well be honest, and is not looked at all the same."""
    path = tmp_path / "c.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(126_000):
            archive.writestr(zipfile.ZipInfo(f"a/data/{number}"), b"")
    settle(path)
    assert watched(path) == ("suspect", {"CK103"})


def test_a_tensor_of_many_names_is_counted_once(tmp_path: Path) -> None:
    """So many that not all of its names are listed."""
    tensor = torch.full((40,), float("nan"))
    heard = audit(save({"model": {f"w{number}": tensor for number in range(3_000)}}, tmp_path / "c.pt"))
    assert (heard.record["params"], heard.record["nan_weights"], heard.record["verdict"]) == (40, 40, "bad")


def test_keys_that_collide_cost_little(tmp_path: Path) -> None:
    """Integers of one hash would make a real dictionary quadratic."""
    step = sys.hash_info.modulus
    keys = b"".join(b"\x8a\x0b" + (step * number).to_bytes(11, "little") + b"N" for number in range(1, 120_000))
    watched(write(tmp_path / "c.pt", torch_zip(b"\x80\x02}(" + keys + b"u.")))


def test_many_views_of_one_storage_cost_little(tmp_path: Path) -> None:
    base = torch.zeros(200_000)
    views = {f"v{index}": base[index : index + 190_000] for index in range(3_000)}
    verdict, rules = watched(save({"model": views}, tmp_path / "c.pt"))
    assert (verdict, rules) == ("ok", set())


def test_a_large_hole_costs_little(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    settle(path)
    verdict, rules = watched(path)
    assert (verdict, rules) == ("bad", {"CK021"})


def test_an_audit_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    for data in (*list(BOMBS.values())[:2], b"", b"PK\x03\x04"):
        audit(write(tmp_path / "c.pt", data))
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
    assert gc.isenabled()
