"""System calls that model-written code is denied, whatever its jail's files are.

The list is by name with the numbers of each architecture; `test_sandbox_syscalls` compares them with the kernel's own.
Calls that the kernel added later than the last number here fail as on a kernel that lacks them.
"""

from __future__ import annotations

import errno
import platform
from typing import Any

LAST_NUMBER = 450

_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64)
_NETWORK = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}
_PROCESSES = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    # Memory outside the limit on address space; CUDA's driver needs it.
    "memfd_create": (319, 279),
}
_OTHER_PROCESSES = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # A process that leaves its group would outlive the group's end.
    "setsid": (112, 157),
    "setpgid": (109, 154),
}
_SHARED_BETWEEN_PROCESSES = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_notify": (244, 184),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
# Landlock does not watch over these, and a read-only descriptor is enough for some.
_ATTRIBUTES_OF_FILES = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
_VIEW_OF_FILES = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
}
# Large parts of the kernel that have been broken out of before, and what only a superuser does.
_KERNEL = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "personality": (135, 92),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
}

_CONDITIONAL = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "prctl": (157, 167),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
}

_SELF = "self"
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_PR_SET_PDEATHSIG, _PR_SET_PTRACER = 1, 0x59616D61
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _TIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x5410
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR = 0x40086602, 0x401C5820

# name, index of the argument, test, its values; the call is denied where the test holds
_DENIED_IF: tuple[tuple[str, int, str, tuple[int | str, ...]], ...] = (
    ("clone", 0, "any bit", (_CLONE_NAMESPACES,)),
    ("kill", 0, "none of", (_SELF,)),
    ("tgkill", 0, "none of", (_SELF,)),
    # 0 is the caller itself
    ("prlimit64", 0, "none of", (0, _SELF)),
    ("sched_setaffinity", 0, "none of", (0, _SELF)),
    # The death of whoever started it must go on to end it.
    ("prctl", 0, "one of", (_PR_SET_PDEATHSIG, _PR_SET_PTRACER)),
    # The kernel would send a signal in its stead.
    ("fcntl", 1, "one of", (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)),
    # Typing into the terminal, signals again, and attributes of files.
    ("ioctl", 1, "one of", (_TIOCSTI, _TIOCLINUX, _TIOCSPGRP, _FIOSETOWN, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR)),
)
_ONLY_THREADS = ("clone", 0, "no bit", (_CLONE_THREAD,))

ALWAYS = {
    **_NETWORK,
    **_OTHER_PROCESSES,
    **_SHARED_BETWEEN_PROCESSES,
    **_ATTRIBUTES_OF_FILES,
    **_VIEW_OF_FILES,
    **_KERNEL,
}
NUMBERS = {**ALWAYS, **_PROCESSES, **_CONDITIONAL}
"""Every call named here, with its numbers."""


def supported() -> bool:
    """Whether the numbers of this machine's architecture are known."""
    return platform.machine() in _AUDIT_ARCHITECTURES


def seccomp_policy(*, processes: bool) -> dict[str, Any]:
    """What `inside` makes its filter of, as plain JSON.

    Args:
        processes: Whether processes may be started.

    Returns:
        `architecture`, `last_number`, and `rules`: each a call's number, the error it fails with, and the index of an
        argument, a test and its values, or three nulls if it always fails.
    """
    machine = platform.machine()
    column = list(_AUDIT_ARCHITECTURES).index(machine)
    denied = ALWAYS if processes else {**ALWAYS, **_PROCESSES}
    rules: list[list[Any]] = [
        [number, errno.EPERM, None, None, None] for name in denied if (number := NUMBERS[name][column]) is not None
    ]
    for name, argument, test, values in _DENIED_IF if processes else (*_DENIED_IF, _ONLY_THREADS):
        rules.append([NUMBERS[name][column], errno.EPERM, argument, test, list(values)])
    # Its flags lie in memory, where a filter cannot look; C libraries fall back to `clone`.
    rules.append([NUMBERS["clone3"][column], errno.ENOSYS, None, None, None])
    return {"architecture": _AUDIT_ARCHITECTURES[machine], "last_number": LAST_NUMBER, "rules": rules}
