"""The constant that enters a target, and the first bytes that follow it on stdin.

`STAGE0` is the only program text that ever stands on a remote command line. It holds no single quote, no newline and
no exclamation mark, so that one layer of single quotes carries it unchanged through bash, dash, zsh, fish, csh and
busybox ash (csh expands ``!`` inside quotes). It reads the interpreter's path from the first line of stdin: POSIX
`read` takes one byte at a time, so the rest stays for Python.
"""

from __future__ import annotations

from hashlib import blake2b

MARK = "remoterun0"
"""What stage 0 writes in front of its own few lines, so that they can be told from a banner."""
FOUND = f"{MARK} start"
"""Says that the interpreter is there and is about to be started: what goes wrong from here on is the interpreter's."""

# Where people put virtual environments: listed when the wanted interpreter is missing.
_USUAL = (
    "/*/bin/python /*/venv/bin/python /root/*/bin/python /home/*/*/bin/python /opt/*/bin/python /workspace/*/bin/python"
)

# -E: a leaked PYTHONHOME kills the interpreter. -S: the leg needs no site-packages, and site costs more than all of
# its own work. sys.path[:1]=[]: -c puts the working directory first, where a stray json.py would be imported. Python
# 3.13 imports linecache even before that: hence the cd to a place where no file of anybody's can lie. A terminal
# changes what passes through it, so nothing is read from one; unless it is raw, bytes that are signals to it also throw
# away what was said.
STAGE0 = (
    "PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; cd /proc/sys 2>/dev/null || cd /; "
    f'if [ -t 0 ]; then stty raw 2>/dev/null; printf "%s\\n" "{MARK} terminal"; exit 126; fi; '
    "IFS= read -r p; "
    'case $p in */*) q=$p;; *) q=$(command -v "$p");; esac; '
    f'if [ -f "$q" ] && [ -x "$q" ]; then printf "%s\\n" "{FOUND}"; '
    'exec "$q" -E -S -c "import sys;sys.path[:1]=[];'
    'i=getattr(sys.stdin,\\"buffer\\",sys.stdin);exec(i.read(int(i.readline())))"; fi; '
    f'printf "%s\\n" "{MARK} no-interpreter $p"; '
    f'if [ -f "$q" ]; then printf "%s\\n" "{MARK} not-executable"; '
    f'elif [ -L "$q" ]; then printf "%s\\n" "{MARK} leads-to $(readlink -f "$q" || readlink "$q")"; fi; '
    'for n in 1 2 3 4 5 6 7 8; do if [ -L "$q" ]; then t=$(readlink "$q"); '
    "case $t in /*) q=$t;; *) q=${q%/*}/$t;; esac; fi; done; "
    'case $q in /*) until [ -d "$q/" ]; do q=${q%/*}; done; '
    f'[ -x "$q/" ] || printf "%s\\n" "{MARK} closed ${{q:-/}}";; esac; '
    f'for v in {_USUAL}; do if [ -x "$v" ]; then printf "%s\\n" "{MARK} found $v"; fi; done; exit 127'
)

# Parses on Python 2.7 and 3.6, so that an old interpreter can say what it is instead of dying of a syntax error.
# Compiling the program takes longer than everything else a leg does, so its compiled form is kept on the target, and
# used again only when its keyed hash is right: the key is the controller's secret, so nobody there can have put
# anything else in its place. The runtime stays marshalled: only the payload's process needs it.
_BOOT = """\
if sys.version_info<(3,8):
 sys.stdout.write("%s python-too-old %%d.%%d.%%d %%s\\n"%%(tuple(sys.version_info[:3])+(sys.executable,)))
 sys.stdout.flush();sys.exit(126)
s=i.read(int(i.readline()))
k=i.read(int(i.readline()))
c=p=0
if k:
 try:
  import marshal,os,pwd
  from _blake2 import blake2b as h
  v="%%s-%%s-%%x"%%(k[32:].decode(),sys.implementation.cache_tag,sys.hexversion)
  p="%%s/.cache/remoterun/code/%%s"%%(pwd.getpwuid(os.geteuid())[5],v)
  f=os.open(p,os.O_RDONLY|os.O_NONBLOCK|os.O_NOFOLLOW|os.O_CLOEXEC);d=os.read(f,1<<22);os.close(f)
  if h(d[32:],key=k,digest_size=32).digest()==d[:32]:c=marshal.loads(d[32:])
 except Exception:pass
if c:p=0
else:
 import __future__,marshal,zlib
 c=[compile(t,"<remoterun>","exec",__future__.annotations.compiler_flag) for t in zlib.decompress(s).split(b"\\0")]
 c[1]=marshal.dumps(c[1])
exec(c[0])
leg_main(i,c,k,p)
"""
BOOT = (_BOOT % MARK).encode()


def code_key(secret: bytes, program: bytes) -> bytes:
    """Join a secret of 32 bytes and the program's name: both sign the compiled program that a target keeps."""
    return secret + blake2b(program, digest_size=16).hexdigest().encode()


def opening(interpreter: str, program: bytes, key: bytes, header: bytes) -> bytes:
    """Build the first bytes on stdin: the interpreter's line, then boot, program, key and header, length-prefixed.

    Args:
        interpreter: the path, or a bare name to be looked up on the target.
        program: the sources of leg and runtime with a zero byte between them, zlib-compressed.
        key: `code_key` of the program where its compiled form may be kept on the target, else empty.
        header: the marshalled first words to the leg.

    Raises:
        ValueError: when the interpreter's path cannot stand on one line.
    """
    path = interpreter.encode("utf-8", "surrogateescape")
    if not path or b"\n" in path or b"\0" in path:
        raise ValueError(f"the interpreter's path {interpreter!r} cannot stand on one line")
    parts = [path + b"\n"]
    for blob in (BOOT, program, key, header):
        parts += [b"%d\n" % len(blob), blob]
    return b"".join(parts)
