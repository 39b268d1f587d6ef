"""The first key of an open server: an admin's, so that nobody locks everybody out; however many ask at once."""

import pytest

from onebert_server.client import Client
from onebert_store.errors import NoAdmin, Unauthorized
from servers import Server, run_onebert, wait_until
from stores import all_at_once


def test_a_first_key_that_leaves_nobody_to_administer_is_refused(tmp_path):
    with Server(tmp_path) as server, Client(server.url) as anybody:
        for scopes, tasks in ((["classify"], ["*"]), (["admin"], ["acme-*"])):
            with pytest.raises(NoAdmin) as refused:
                anybody.create_key("shop", scopes, tasks)
            assert (refused.value.status, refused.value.code) == (409, "no-admin")
        done = run_onebert("keys", "create", "--name", "a", "--scope", "classify", "--tasks", "*", "--url", server.url)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "--scope admin --tasks '*'" in done.stderr
        # The server is as open as it was.
        assert anybody.keys() == []
        made = anybody.create_key("ops", ["admin"], ["*"])
        with pytest.raises(Unauthorized):
            anybody.keys()
        with Client(server.url, made.key) as admin:
            admin.create_key("shop", ["classify"], ["*"])
            every = admin.keys()
            assert [key.name for key in every] == ["ops", "shop"]


def test_of_many_first_keys_at_once_none_locks_the_admin_out(tmp_path):
    with Server(tmp_path) as server:

        def make(number):
            with Client(server.url) as anybody:
                return anybody.create_key(f"key-{number}", ["admin" if number == 3 else "classify"], ["*"])

        # Refused are those that come before the admin's, and those that come when it is in force.
        made = all_at_once(8, make, NoAdmin, Unauthorized)
        with Client(server.url, made[3].key) as admin:
            every = admin.keys()
        assert {key.name for key in every} == {f"key-{number}" for number, key in enumerate(made) if key}


def test_the_hosts_command_makes_any_first_key(tmp_path):
    with Server(tmp_path) as server:
        arguments = "keys", "create", "--name", "app", "--scope", "classify", "--tasks", "*"
        done = run_onebert(*arguments, data_dir=server.folder / "data")
        assert done.returncode == 0, done.stderr

        def closed():
            with Client(server.url) as anybody:
                try:
                    anybody.tasks()
                except Unauthorized:
                    return True
                return False

        wait_until(closed)
