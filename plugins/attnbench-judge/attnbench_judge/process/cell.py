"""The candidate's cell: a process forked from this one that confines itself.

It runs before any code of the candidate, imports the standard library only, and tells through a
pipe, in lines of JSON, the process that it made and which restrictions hold. Of namespaces,
Landlock, seccomp and resource limits it takes what the system offers to this user.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterator
from typing import Any

_LIBC = ctypes.PyDLL(None, use_errno=True)  # keeps the lock of the interpreter, for clone
_NEWNS, _NEWIPC = 0x00020000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_CLONE_PARENT, _CHILD_SETTID, _CHILD_CLEARTID = 0x00008000, 0x01000000, 0x00200000
_TID_ADDRESS = 40
_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
_MOUNT_SETATTR, _AT_RECURSIVE, _READ_ONLY = 442, 0x8000, 1
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SECCOMP, _DROP, _SECUREBITS = 1, 38, 22, 24, 28
_PROCESSES = 512
_CAPABILITIES = 0x20080522  # the version of their sets: 64 bits

# syscall numbers: x86_64, aarch64
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE, _PRLIMIT = (56, 220), (302, 261)
_LANDLOCK = (444, 445, 446)  # create_ruleset, add_rule, restrict_self on every architecture
_CLONE3 = 435  # on every architecture
_NEW_SPACES = 0x7E020000  # the flags of clone for namespaces
_DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "sched_setaffinity": (203, 122),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "timer_create": (222, 107),
    "timerfd_create": (283, 85),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
"""System calls that fail with EPERM: other processes and their priority, namespaces, cores, what
outlives it, and timers, which go off while it stands still, in the time of others. Sockets too,
since those that have a place among the files lead to servers outside, which run what they are told,
and memory that no process holds, which no limit counts."""


def _call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; raises OSError where it fails."""
    result: int = getattr(_LIBC, name)(*arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def _enter_namespaces() -> None:
    flags = _NEWNS | _NEWIPC | _NEWPID | _NEWNET
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", flags)
    except OSError:  # without privileges, in a user namespace of its own
        _call("unshare", flags | _NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _mount_read_only() -> None:
    """All that is mounted can only be read; Landlock lets owners change the modes of files."""
    _call("mount", b"none", b"/", None, _PRIVATE, None)
    attributes = struct.pack("4Q", _READ_ONLY, 0, 0, 0)
    _call("syscall", _MOUNT_SETATTR, -1, b"/", _AT_RECURSIVE, attributes, len(attributes))


def _mount_own(scratch: str, size: int) -> None:
    """A file system of limited size for scratch, and a view of this cell's processes only."""
    limit = f"size={size},mode=700".encode()
    for place in (scratch, "/dev/shm"):  # noqa: S108  # where shared memory has its names
        _call("mount", b"tmpfs", place.encode(), b"tmpfs", 0, limit)
    _call("mount", b"proc", b"/proc", b"proc", 0, None)


def _limit_processes() -> None:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if release < (6, 14):  # before, the file would change the whole machine's limit
        raise OSError("needs Linux 6.14, which has a limit in each process namespace")
    with open("/proc/sys/kernel/pid_max", "w") as file:
        file.write(str(_PROCESSES))


def _limit_resources(memory: int, file_size: int) -> None:
    with open("/proc/self/statm") as pages:  # torch for CUDA alone maps more than the limit
        mapped = int(pages.read().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, mapped + memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _drop_capabilities() -> None:
    for capability in range(64):
        try:
            _call("prctl", _DROP, capability, 0, 0, 0)
        except OSError:
            break  # beyond the last one, or without privileges to drop
    if os.getuid() == 0:
        _call("prctl", _SECUREBITS, 0x2F, 0, 0, 0)  # root is a user like any other
    _call("capset", struct.pack("Ii", _CAPABILITIES, 0), bytes(24))  # what it has until it execs


def _landlock(scratch: str) -> None:
    """Forbid writing outside scratch, connecting, and signals to others.

    Programs can be run only where nothing can be written: the performance event that counts what
    is computed ends where a program begins that may not be read.
    """
    version = _call("syscall", _LANDLOCK[0], None, 0, 1)
    writes = 0x1FF2  # write, remove and make entries
    writes |= (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)
    handled = [writes | 1, 3 if version >= 4 else 0, 3 if version >= 6 else 0]
    size = 8 * (3 if version >= 6 else 2 if version >= 4 else 1)
    ruleset = _call("syscall", _LANDLOCK[0], struct.pack("3Q", *handled), size, 0)
    whole, one = writes, 0x2 | (1 << 14 if version >= 3 else 0)
    allowed = {scratch: whole, "/dev/shm": whole, "/dev/null": one, "/dev/zero": one}  # noqa: S108
    for path, access in (*allowed.items(), *((path, 1) for path in _beside(scratch))):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _call("syscall", _LANDLOCK[1], ruleset, 1, struct.pack("=Qi", access, place), 0)
        os.close(place)
    _call("syscall", _LANDLOCK[2], ruleset, 0)
    os.close(ruleset)
    if version < 6:
        raise OSError(f"Landlock {version} does not keep signals in; 6 does")


def _beside(folder: str) -> Iterator[str]:
    """The folders that neither hold a folder nor lie in it."""
    while (parent := os.path.dirname(folder)) != folder:
        for entry in os.scandir(parent):
            if entry.path not in (folder, "/dev") and entry.is_dir():
                yield entry.path
        folder = parent


def _seccomp() -> None:
    """Forbid system calls that reach other processes."""
    column, audit = _ARCHITECTURES[os.uname().machine]

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, equal, answer = 0x20, 0x15, 0x06
    kill, refuse, allow, unknown = 0x80000000, 0x00050001, 0x7FFF0000, 0x00050026
    program = [step(load, 4), step(equal, audit, 1), step(answer, kill), step(load, 0)]
    if column == 0:  # the other table of calls of this architecture
        program += [step(0x35, 0x40000000, 0, 1), step(answer, kill)]
    for numbers in _DENIED.values():
        program += [step(equal, numbers[column], 0, 1), step(answer, refuse)]
    program += [step(equal, _CLONE3, 0, 1), step(answer, unknown)]  # then clone is called
    program += [step(equal, _PRLIMIT[column], 0, 4), step(load, 16), step(equal, 0, 1)]
    program += [step(answer, refuse), step(answer, allow)]  # limits of another process
    program += [step(equal, _CLONE[column], 0, 4), step(load, 16), step(0x45, _NEW_SPACES, 0, 1)]
    program += [step(answer, refuse), step(answer, allow)]
    program += [step(answer, allow)]
    code = ctypes.create_string_buffer(b"".join(program))
    packed = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    _call("prctl", _SECCOMP, 2, packed, 0, 0)


def fork_beside() -> int:
    """Fork a child of this process's parent, so that the parent is told when it stops or ends."""
    place = ctypes.c_void_p()
    flags = _CLONE_PARENT | signal.SIGCHLD
    if _LIBC.prctl(_TID_ADDRESS, ctypes.byref(place), 0, 0, 0) == 0:
        flags |= _CHILD_SETTID | _CHILD_CLEARTID  # the C library keeps the thread's number there
    column = _ARCHITECTURES.get(os.uname().machine, (0, 0))[0]
    last = (place, None) if column == 0 else (None, place)
    ctypes.pythonapi.PyOS_BeforeFork()
    child: int = _LIBC.syscall(_CLONE[column], flags, None, None, *last)
    if child:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    if child < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return child


def _confine(given: dict[str, Any], report: int, apart: bool) -> None:
    """Restrict this process, and report what holds."""
    held: list[str] = []
    missing: dict[str, str] = {}

    def hold(name: str, restrict: Callable[..., object], *arguments: Any) -> None:
        try:
            restrict(*arguments)
            held.append(name)
        except (OSError, KeyError, ValueError) as error:
            missing[name] = str(error) or type(error).__name__

    os.setsid()
    hold("one core", os.sched_setaffinity, 0, [given["core"]])
    if apart:
        held.append("own processes, network and shared memory (namespaces)")
        hold("nothing to write to (read-only mounts)", _mount_read_only)
        hold("scratch of limited size", _mount_own, given["scratch"], given["scratch_bytes"])
        hold("number of processes", _limit_processes)
    else:
        missing["own processes, network and shared memory (namespaces)"] = given["refused"]
    hold("limits of memory and file size", _limit_resources, given["memory"], given["file_size"])
    hold("dies with the judge", _call, "prctl", _DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    hold("no capabilities", _drop_capabilities)
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    hold("no writing, connecting or signalling outside (Landlock)", _landlock, given["scratch"])
    hold("no network, no tracing, no other core (seccomp)", _seccomp)
    os.chdir(given["scratch"])
    os.write(report, json.dumps({"held": held, "missing": missing}).encode() + b"\n")


def enter(given: dict[str, Any], report: int, work: Callable[[], None]) -> None:
    """Fork a sibling of this process, which confines itself and does some work.

    Args:
        given: ``core``, ``scratch``, ``scratch_bytes``, ``file_size``, and ``memory`` in bytes
            beyond what is mapped already.
        report: the pipe of reports, which the work does not have.
        work: what the sibling does, before it ends.
    """
    apart = True
    try:
        _enter_namespaces()
    except OSError as error:
        apart, given["refused"] = False, str(error)
    child = fork_beside()
    if child:
        os.write(report, json.dumps({"pid": child}).encode() + b"\n")
        return
    try:
        _confine(given, report, apart)
    except BaseException as error:
        os.write(report, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        os._exit(1)
    os.close(report)
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)
