"""Runs a command under a seccomp profile, by libseccomp.

`seccomp.py PROFILE [--refuse NAME]... -- COMMAND...`: a call that the profile does not allow kills the process, so that a list that
has become too short is seen at once; a call that is named by --refuse fails, as under a runtime's default profile.
"""

import ctypes
import errno
import json
import os
import sys

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000


def load(profile, refused):
    """Puts the filter in force for this process."""
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    lib.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    context = lib.seccomp_init(KILL_PROCESS)
    for group in profile["syscalls"]:
        for name in group["names"]:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            if number < 0:
                # Of another architecture; a misspelt one is found by check.py.
                continue
            action = ERRNO | errno.EPERM if name in refused else ALLOW
            if lib.seccomp_rule_add(context, action, number, 0) != 0:
                sys.exit(f"{name} cannot be filtered")
    if lib.seccomp_load(context) != 0:
        sys.exit("the filter is not taken by the kernel")


def main():
    arguments, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    with open(arguments[0]) as file:
        profile = json.load(file)
    load(profile, arguments[2::2])
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
