"""System calls that a program in the sandbox may not make: a seccomp filter, by the machine's libseccomp."""

from __future__ import annotations

import ctypes
import errno
import os

ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NOT_EQUAL, EQUAL, MASKED_EQUAL = 1, 4, 7

SOCKETS = ("socket", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Ways to a socket with a name. A pair of sockets stays allowed: nobody else has its other end."""
NAMESPACES = ("unshare", "setns")
UNCOUNTED_MEMORY = (
    "memfd_create",
    "shmget",
    "shmat",
    "msgget",
    "semget",
    "mq_open",
    "vmsplice",
    "add_key",
    "request_key",
    "keyctl",
)
"""Memory that belongs to no process, so that neither a limit of one nor a count over all of them sees it."""
OTHER_PROCESSES = (
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "pidfd_getfd",
    "kcmp",
    "perf_event_open",
    "bpf",
    "userfaultfd",
    "move_pages",
    "migrate_pages",
)
SIGNALS = ("kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
OF_THE_SAME_USER = (
    "setpriority",
    "ioprio_set",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "utime",
    "utimes",
    "utimensat",
    "futimesat",
)
"""What can be done to a process or to a file that may not be opened, of the same user."""

NEW_CALLS = range(449, 512)
"""What came after Linux 5.15 looks as if it had not: libraries fall back, and nothing new does what is refused."""

CLONE_NEWUSER = 0x10000000
SHARED_AND_NAMELESS, HUGE = 0x01 | 0x20, 0x40000
F_SETOWN, F_SETSIG, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902
BY_ARGUMENT = (
    ("clone", 0, MASKED_EQUAL, CLONE_NEWUSER, CLONE_NEWUSER),
    ("mmap", 3, MASKED_EQUAL, SHARED_AND_NAMELESS, SHARED_AND_NAMELESS),  # pages stay when all but one are unmapped
    ("mmap", 3, MASKED_EQUAL, HUGE, HUGE),
)
BY_ARGUMENT_AMONG_OTHERS = (
    ("prlimit64", 0, NOT_EQUAL, 0, 0),
    ("sched_setaffinity", 0, NOT_EQUAL, 0, 0),
    ("sched_setscheduler", 0, NOT_EQUAL, 0, 0),
    ("sched_setparam", 0, NOT_EQUAL, 0, 0),
    ("sched_setattr", 0, NOT_EQUAL, 0, 0),
    ("fcntl", 1, EQUAL, F_SETOWN, 0),
    ("fcntl", 1, EQUAL, F_SETSIG, 0),
    ("fcntl", 1, EQUAL, F_SETOWN_EX, 0),
    ("ioctl", 1, EQUAL, FIOSETOWN, 0),
    ("ioctl", 1, EQUAL, SIOCSPGRP, 0),
)


class _Compared(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


class Filter:
    """A filter that is ready to be loaded; ``OSError`` where there is no libseccomp (2.5 or newer)."""

    def __init__(self, *, alone: bool, signals: bool) -> None:
        """``alone``: no process or file of others is in sight. ``signals``: who may be sent one is seen to already."""
        self._others_get_signals = not (alone or signals)
        self._library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(ALLOW)))
        for name in (*SOCKETS, *NAMESPACES, *UNCOUNTED_MEMORY, *OTHER_PROCESSES):
            self._refuse(name)
        for call in ("clone3", *NEW_CALLS):  # clone3: its flags are out of a filter's sight
            self._refuse(call, error=errno.ENOSYS)
        for rule in (*BY_ARGUMENT, *(() if alone else BY_ARGUMENT_AMONG_OTHERS)):
            self._refuse(rule[0], _Compared(*rule[1:]))
        for name in () if alone else (*OF_THE_SAME_USER, *(() if signals else SIGNALS)):
            self._refuse(name)

    def _refuse(self, call: str | int, *compared: _Compared, error: int = errno.EPERM) -> None:
        known = call if isinstance(call, int) else self._library.seccomp_syscall_resolve_name(call.encode())
        action = ctypes.c_uint32(REFUSE | error)
        array = (_Compared * len(compared))(*compared)
        if known == -1 or self._library.seccomp_rule_add_array(self._context, action, known, len(compared), array):
            raise OSError(f"this libseccomp does not know {call}")

    def load(self) -> None:
        """From now on for this process and its children; it sets no_new_privs."""
        if self._others_get_signals:  # a process sends one to itself to abort
            self._refuse("tgkill", _Compared(0, NOT_EQUAL, os.getpid(), 0))
        if self._library.seccomp_load(self._context) != 0:
            raise OSError("the kernel refused the seccomp filter")

    def export(self, file: int) -> None:
        """Write it to a file, as bubblewrap reads it."""
        if self._library.seccomp_export_bpf(self._context, file) != 0:
            raise OSError("the seccomp filter could not be written")
