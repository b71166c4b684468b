"""Programs that try to get out of the sandbox, or to take more than it gives, and what must stop each.

A way out prints its name if it works. ``stopped_by`` has words of ``Ran.isolation``: any one of them is enough. Of what
``Outside`` offers all is open to everybody on the machine, so that it is the sandbox that stops a program.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

OWN_ROOT = {"bubblewrap", "namespaces"}
FILES = OWN_ROOT | {"landlock"}
CALLS = OWN_ROOT | {"seccomp"}
ANY = FILES | {"limits"}
COUNTED = {"supervisor", "cgroup"}


@dataclass(frozen=True)
class Escape:
    """``control``: it works for any program that is in no sandbox, on every Linux."""

    program: str
    stopped_by: frozenset[str]
    control: bool = True
    landlock: int = 1


def escape(stopped_by: set[str], program: str, *, control: bool = True, landlock: int = 1) -> Escape:
    return Escape(textwrap.dedent(program).strip(), frozenset(stopped_by), control, landlock)


WAYS_OUT = {
    # To others by sockets.
    "unix-stream": escape(CALLS, "s = socket.socket(socket.AF_UNIX); s.connect(OUT + '/stream')"),
    "unix-datagram": escape(
        CALLS, "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'secret', OUT + '/datagram')"
    ),
    "unix-abstract": escape(CALLS, "s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + NAME)"),
    "unix-by-libc": escape(CALLS, "s = socket.socket(fileno=called(libc.socket(1, 1, 0))); s.connect(OUT + '/stream')"),
    "unix-after-exec": escape(
        CALLS,
        """
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, OUT + "/stream"], check=True)
    """,
    ),
    "unix-relative": escape(CALLS, "os.chdir(OUT); s = socket.socket(socket.AF_UNIX); s.connect('stream')"),
    "tcp": escape(CALLS, "socket.create_connection(('127.0.0.1', PORT), 60)"),
    "udp": escape(
        CALLS,
        """
        s = socket.socket(type=socket.SOCK_DGRAM)
        s.connect(("127.0.0.1", PORT))
        s.send(b"secret")
        s.send(b"refused, if nobody got the first")
    """,
    ),
    "ring-of-calls": escape({"seccomp"}, "called(libc.syscall(425, 1, bytes(120)))", control=False),
    # To files.
    "read": escape(FILES, "open(OUT + '/file').read()"),
    "list": escape(FILES, "os.listdir(OUT)"),
    "list-tmp": escape(FILES, "assert os.path.basename(OUT) in os.listdir(os.path.dirname(OUT))"),
    "read-users": escape(FILES, "open('/etc/passwd').read()"),
    "write": escape(FILES, "open(OUT + '/file', 'a').write('theirs')"),
    "create": escape(FILES, "open(OUT + '/new-file', 'w').write('theirs')"),
    "create-folder": escape(FILES, "os.mkdir(OUT + '/new-folder')"),
    "empty": escape(FILES, "os.truncate(OUT + '/emptied', 0)", landlock=3),
    "delete": escape(FILES, "os.unlink(OUT + '/deleted')"),
    "rename": escape(FILES, "os.rename(OUT + '/renamed', OUT + '/away')"),
    "link": escape(FILES, "os.link(OUT + '/file', 'mine'); open('mine').read()", control=False),
    "permissions": escape(CALLS, "os.chmod(OUT + '/file', 0o777)"),
    "pipe": escape(FILES, "os.write(os.open(OUT + '/fifo', os.O_WRONLY | os.O_NONBLOCK), b'secret')"),
    "shared-memory-folder": escape(FILES, "open('/dev/shm/' + NAME, 'w').write('theirs')"),
    "elsewhere": escape(
        FILES,
        """
        for folder in ("/", "/home", "/run", "/dev", "/var/tmp", "/usr/local", sys.prefix):
            with contextlib.suppress(OSError):
                file = open(folder + "/" + NAME, "w")
                os.unlink(file.name)
                break
        else:
            raise OSError
    """,
        control=False,
    ),
    # To other processes.
    "signal": escape(CALLS, "os.kill(VICTIM, 0)"),
    "signal-a-thread": escape(CALLS, "called(libc.tgkill(VICTIM, VICTIM, 0))"),
    "signal-by-file": escape(CALLS, "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, VICTIM)"),
    "environment": escape(FILES, "assert b'A_SECRET' in open(f'/proc/{VICTIM}/environ', 'rb').read()"),
    "arguments": escape(FILES, "open(f'/proc/{VICTIM}/cmdline').read()"),
    "memory": escape(FILES, "open(f'/proc/{VICTIM}/mem', 'r+b')", control=False),
    "trace": escape(FILES | CALLS, "called(libc.ptrace(0x4206, VICTIM, None, None))", control=False),
    "limits-of": escape(CALLS, "resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0))"),
    "priority-of": escape(CALLS, "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)"),
    "cores-of": escape(CALLS, "os.sched_setaffinity(VICTIM, os.sched_getaffinity(0))"),
    "shared-memory": escape(CALLS, "libc.shmat.restype = ctypes.c_long; called(libc.shmat(SEGMENT, None, 0))"),
    "open-files": escape(
        ANY,
        """
        left = [file for file in range(3, 4096) if not called_or_none(os.fstat, file) is None]
        assert left
    """,
        control=False,
    ),
    # To privileges.
    "user-namespace": escape(CALLS, "called(libc.unshare(0x10000000))", control=False),
    "user-namespace-by-clone3": escape(
        CALLS,
        """
        arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17)
        made = called(libc.syscall(435, arguments, 64))
        if made == 0:
            os._exit(0)
    """,
        control=False,
    ),
    "mount": escape(ANY, "os.mkdir('mine'); called(libc.mount(b'tmpfs', b'mine', b'tmpfs', 0, None))", control=False),
    "new-root": escape(ANY, "os.chroot('/')", control=False),
    "device": escape(ANY, "os.mknod('device', 0o020600, os.makedev(1, 1))", control=False),
    "more-by-exec": escape(ANY, "assert libc.prctl(39, 0, 0, 0, 0) == 0", control=False),
    # To memory that no process owns.
    "memory-file": escape({"seccomp"}, "os.memfd_create('mine')", control=False),
    "segment": escape({"seccomp"}, "called(libc.shmget(0, 4096, 0o1600))", control=False),
    "queue": escape({"seccomp"}, "called(libc.msgget(0, 0o1600))", control=False),
    "shared-and-nameless": escape({"seccomp"}, "mmap.mmap(-1, 4096)"),
    "own-program": escape(ANY, "os.truncate(0, 1 << 20)", control=False),
}

IMPORTS = "import contextlib, ctypes, fcntl, mmap, os, resource, socket, subprocess, sys\n"
CALLED = """
libc = ctypes.CDLL(None, use_errno=True)
def called(done):
    if done < 0:
        raise OSError(ctypes.get_errno())
    return done
def called_or_none(call, *arguments):
    with contextlib.suppress(OSError):
        return call(*arguments)
"""
EACH_IN_A_CHILD = """
for name, program in WAYS_OUT.items():
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            exec(program, globals())
            os.write(1, f"{name}\\n".encode())
        os._exit(0)
    os.waitpid(child, 0)
print("tried all")
"""


def all_ways_out(outside: Outside, *, controls: bool = False) -> str:
    """A program that tries every one (or every control), each in a child, and prints the names of those that work."""
    programs = {name: each.program for name, each in WAYS_OUT.items() if each.control or not controls}
    return f"{IMPORTS}{CALLED}{outside.constants()}\nWAYS_OUT = {programs!r}\n{EACH_IN_A_CHILD}"


class Outside:
    """A listener, files, a process and a segment of memory, all there for everybody. Use as a context."""

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="outside-")))
        self.name = self.folder.name
        for file in ("file", "emptied", "deleted", "renamed"):
            (self.folder / file).write_text("mine")
            (self.folder / file).chmod(0o666)
        os.mkfifo(self.folder / "fifo")
        (self.folder / "fifo").chmod(0o666)
        reader = os.open(self.folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        self._stack.callback(os.close, reader)
        self.got: list[bytes] = []
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "stream"))
        self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, str(self.folder / "datagram"))
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.name}")
        self.port = self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", self.port))
        self.victim = subprocess.Popen(["sleep", "600"], env={"A_SECRET": "s3cret", "PATH": os.defpath})
        self._stack.callback(self.victim.wait)
        self._stack.callback(self.victim.kill)
        self._stack.callback(lambda: Path("/dev/shm", self.name).unlink(missing_ok=True))
        self.segment = self._segment()
        self.folder.chmod(0o777)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def constants(self) -> str:
        return (
            f"OUT, NAME, PORT = {str(self.folder)!r}, {self.name!r}, {self.port}\n"
            f"VICTIM, SEGMENT = {self.victim.pid}, {self.segment}"
        )

    def _listen(self, family: int, kind: int, address: object) -> int:
        listener = self._stack.enter_context(socket.socket(family, kind))
        listener.bind(address)
        if isinstance(address, str) and address[0] != "\0":
            os.chmod(address, 0o777)
        if kind == socket.SOCK_STREAM:
            listener.listen(8)
        threading.Thread(target=self._serve, args=(listener, kind), daemon=True).start()
        name = listener.getsockname()
        return name[1] if isinstance(name, tuple) else 0

    def _serve(self, listener: socket.socket, kind: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                if kind == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                    self.got.append(b"a connection")
                else:
                    self.got.append(listener.recv(100))

    def _segment(self) -> int:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        segment = libc.shmget(0, 4096, 0o1666)
        assert segment >= 0
        self._stack.callback(libc.shmctl, segment, 0, None)
        return segment


def without_sandbox(program: str) -> str:
    """What it prints as an ordinary program of this user."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-I", "-"]
        return subprocess.run(command, input=program, capture_output=True, text=True, cwd=folder, check=True).stdout


HOGS = {
    # More memory than 256 MiB.
    "one-process": escape(ANY, "held = b'x' * (512 << 20)"),
    "children": escape(
        COUNTED,
        """
        for _ in range(8):
            if os.fork() == 0:
                held = b"x" * (60 << 20)
                time.sleep(600)
        time.sleep(600)
    """,
    ),
    "grandchildren-in-sessions-of-their-own": escape(
        COUNTED,
        """
        for _ in range(8):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    held = b"x" * (60 << 20)
                    time.sleep(600)
                os._exit(0)
        time.sleep(600)
    """,
    ),
    "unreadable-children": escape(
        COUNTED,
        """
        for _ in range(8):
            if os.fork() == 0:
                libc.prctl(4, 0, 0, 0, 0)
                held = b"x" * (60 << 20)
                time.sleep(600)
        time.sleep(600)
    """,
    ),
    "memory-files": escape(
        COUNTED | {"seccomp"},
        """
        held = [os.memfd_create("m") for _ in range(40)]
        for file in held:
            os.write(file, b"x" * (8 << 20))
        time.sleep(600)
    """,
    ),
    "shared-pages": escape(
        {"cgroup", "seccomp"},
        """
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        for _ in range(10):
            start = libc.mmap(None, 40 << 20, 3, 0x21, -1, 0)
            if start in (None, 2**64 - 1):
                sys.exit(1)
            ctypes.memset(start, 1, 40 << 20)
            libc.munmap(start + 4096, (40 << 20) - 4096)
        time.sleep(600)
    """,
    ),
    # More files than 16 MiB.
    "one-file": escape(ANY, "open('x', 'wb').write(b'x' * (20 << 20))"),
    "many-files": escape(
        OWN_ROOT | {"supervisor"},
        """
        for i in range(10):
            os.mkdir(f"f{i}")
            open(f"f{i}/x", "wb").write(b"x" * (4 << 20))
        time.sleep(600)
    """,
    ),
    "deleted-files": escape(
        OWN_ROOT | {"supervisor"},
        """
        held = []
        for i in range(40):
            held.append(open("x", "wb"))
            held[-1].write(b"x" * (8 << 20))
            os.unlink("x")
        time.sleep(600)
    """,
    ),
    "hidden-files": escape(
        OWN_ROOT | {"supervisor"},
        """
        os.mkdir("hidden")
        os.mkdir("hidden/more", 0o300)
        for i in range(10):
            open(f"hidden/more/{i}", "wb").write(b"x" * (4 << 20))
        time.sleep(600)
    """,
    ),
    # More processes than 16.
    "forks": escape(
        OWN_ROOT | COUNTED,
        """
        for _ in range(100):
            if fork() == 0:
                time.sleep(600)
        os.read(REFUSED, 1)
        os._exit(1)
    """,
    ),
    "orphans": escape(
        OWN_ROOT | COUNTED,
        """
        for _ in range(100):
            if fork() == 0:
                os.setsid()
                if fork() == 0:
                    time.sleep(600)
                os._exit(0)
            os.wait()
        os.read(REFUSED, 1)
        os._exit(1)
    """,
    ),
    "doubling": escape(
        OWN_ROOT | COUNTED,
        """
        for _ in range(7):
            fork()
        os.read(REFUSED, 1)
        os._exit(1)
    """,
    ),
    "threads": escape(
        OWN_ROOT | COUNTED,
        """
        for _ in range(100):
            try:
                threading.Thread(target=time.sleep, args=(600,)).start()
            except RuntimeError:
                os._exit(1)
        time.sleep(600)
    """,
    ),
    # More open files than 64.
    "open-files": escape(ANY, "held = [open(os.devnull) for _ in range(100)]"),
}

HOGS_NEED = """
import threading, time
REFUSED, refuse = os.pipe()
def fork():
    try:
        return os.fork()
    except OSError:
        os.write(refuse, b"x")
        os._exit(1)
"""


def hog(name: str) -> str:
    return f"{IMPORTS}{CALLED}{HOGS_NEED}{HOGS[name].program}"
