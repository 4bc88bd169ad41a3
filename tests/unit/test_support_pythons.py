"""The tests themselves: they start for every user, whatever of the machine is closed to them."""

from __future__ import annotations

import os
import traceback

from tests.support.lab.pythons import pythons

NOBODY = 65534


def test_pythons_are_found_by_a_user_who_may_not_look_into_roots_home() -> None:
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups(())
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            found = pythons.__wrapped__()
            os._exit(0 if found and all(os.access(path, os.X_OK) for path in found.values()) else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
