"""A move of an alias whose server is killed before the webhook is taken is sent after the restart."""

from receivers import Receiver
from servers import Server, Task, wait_until


def test_a_move_before_a_kill_is_sent_after_the_restart(tmp_path):
    with Receiver(503) as receiver, Server(tmp_path, **receiver.settings) as server:
        server.push({"tone": Task(seed=1)})
        wait_until(lambda: receiver.refused)
        server.kill()
        receiver.status = 200
        server.start()
        wait_until(lambda: receiver.moves == [("tone", "live", 1, 1)])
        assert receiver.taken[0] == receiver.refused[0]
        assert receiver.settings["webhook_key"] not in server.log.read_text()
        assert receiver.url not in server.log.read_text()
