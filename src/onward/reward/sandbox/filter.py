"""The list of system calls that a confined program may make: those of a Python that computes and prints.

Everything else fails with EPERM, so there are no processes, threads, programs, sockets, signals, traces,
shared memory, mounts or changes of a file's rights. Files are confined by Landlock
(``reward.code.isolation``), which does not cover all of these.
"""

from __future__ import annotations

import ctypes
import platform
import struct

_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in the kernel's ``seccomp_data``."""
_X32 = 0x40000000
"""First number of x86-64's other interface, which would pass a filter by numbers."""

_X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35, "getpid": 39, "exit": 60,
    "uname": 63, "fcntl": 72, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "sigaltstack": 131, "arch_prctl": 158, "gettid": 186, "time": 201,
    "futex": 202, "sched_getaffinity": 204, "getdents64": 217, "set_tid_address": 218,
    "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "openat": 257, "newfstatat": 262, "readlinkat": 267, "faccessat": 269,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "prlimit64": 302, "getrandom": 318,
    "statx": 332, "rseq": 334, "faccessat2": 439,
}  # fmt: skip
_AARCH64 = {
    "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "mmap": 222, "mprotect": 226,
    "munmap": 215, "brk": 214, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "ioctl": 29,
    "pread64": 67, "readv": 65, "writev": 66, "sched_yield": 124, "mremap": 216, "madvise": 233, "dup": 23,
    "nanosleep": 101, "getpid": 172, "exit": 93, "uname": 160, "fcntl": 25, "getcwd": 17,
    "gettimeofday": 169, "getrlimit": 163, "getrusage": 165, "sysinfo": 179, "times": 153, "getuid": 174,
    "getgid": 176, "geteuid": 175, "getegid": 177, "getppid": 173, "sigaltstack": 132, "gettid": 178,
    "futex": 98, "sched_getaffinity": 123, "getdents64": 61, "set_tid_address": 96, "restart_syscall": 128,
    "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "exit_group": 94, "openat": 56,
    "newfstatat": 79, "readlinkat": 78, "faccessat": 48, "pselect6": 72, "ppoll": 73,
    "set_robust_list": 99, "prlimit64": 261, "getrandom": 278, "statx": 291, "rseq": 293, "faccessat2": 439,
}  # fmt: skip
CALLS = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
"""Processor → its audit number, and the allowed calls by name."""


ARGUMENTS: dict[str, tuple[int, tuple[int, ...]]] = {
    "prlimit64": (_FIRST_ARGUMENT, (0,)),
    "fcntl": (_SECOND_ARGUMENT, (0, 1, 2, 3, 1030)),
    "ioctl": (_SECOND_ARGUMENT, (0x5401, 0x5450, 0x5451)),
}
"""Call → where its deciding argument lies, and the values that are allowed. ``prlimit64``: of this process.
``fcntl``: to duplicate, and to read flags, since F_SETOWN and F_SETSIG send any signal to any process of this
user. ``ioctl``: whether it is a terminal, and close-on-exec."""


def supported() -> bool:
    """Returns True if the calls of this processor are known."""
    return platform.machine() in CALLS


def program(machine: str) -> bytes:
    """Returns the filter in the kernel's form: one instruction of eight bytes after the other."""
    audit, numbers = CALLS[machine]
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, audit, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32, 0, 1),
        _instruction(_RETURN, _EPERM),
    ]
    for name, number in numbers.items():
        if name in ARGUMENTS:
            place, values = ARGUMENTS[name]
            most = len(values)
            code += [
                _instruction(_JUMP_EQUAL, number, 0, most + 3),
                _instruction(_LOAD, place),
                *(_instruction(_JUMP_EQUAL, value, most - index) for index, value in enumerate(values)),
                _instruction(_RETURN, _EPERM),
                _instruction(_RETURN, _ALLOW),
            ]
        else:
            code += [_instruction(_JUMP_EQUAL, number, 0, 1), _instruction(_RETURN, _ALLOW)]
    return b"".join([*code, _instruction(_RETURN, _EPERM)])


def close_calls() -> bool:
    """Keeps this process to the allowed calls, for good. Returns False where the kernel refuses the filter.
    Called after PR_SET_NO_NEW_PRIVS, while the process has one thread."""
    code = program(platform.machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_of = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    return ctypes.CDLL(None).prctl(_SECCOMP, _MODE_FILTER, filter_of, 0, 0) == 0


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
