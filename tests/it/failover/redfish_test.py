"""What the Redfish example makes of UUIDs that differ, and of a report that it found. `tests/it/failover/power.rs` runs this."""

import base64
import types
import unittest
from unittest import mock

import fencer

NODE = {
    "metadata": {"name": "n", "uid": "uid-n"},
    "status": {"nodeInfo": {"systemUUID": "New-Machine", "bootID": "boot"}},
}
# Key uuid of the Secret, the Node's systemUUID, what the BMC tells, and whether it is the machine.
WITH_NODE = [
    (None, "New-Machine", "new-machine", True),
    ("new-machine", "New-Machine", "new-machine", True),
    ("old-machine", "New-Machine", "old-machine", False),
    ("old-machine", "New-Machine", "new-machine", False),
    (None, "New-Machine", "old-machine", False),
    (None, "", "", False),
    (None, "", None, False),
    ("", "New-Machine", None, False),
    ("", "New-Machine", "new-machine", False),
    ("new-machine", "", "new-machine", False),
]
WITHOUT_NODE = [
    ("new-machine", "new-machine", True),
    ("new-machine", "old-machine", False),
    ("", "", False),
    ("", None, False),
    (None, "new-machine", False),
]


def secret(uuid):
    data = {"url": "http://bmc", "username": "u", "password": "p", "system": "/system"}
    data |= {} if uuid is None else {"uuid": uuid}
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def node(uuid):
    about = {**NODE["status"]["nodeInfo"], "systemUUID": uuid}
    return {**NODE, "status": {"nodeInfo": about}}


def bmc(uuid):
    """Every BMC says that its machine is off."""
    system = {"PowerState": "Off"} | ({} if uuid is None else {"UUID": uuid})
    return mock.patch.object(fencer.Machine, "system", lambda _: system)


class Answers:
    """The API: what is at a path; what was written."""

    def __init__(self, objects):
        self.objects, self.read, self.written = objects, [], []

    def get(self, path):
        self.read.append(path)
        found = self.objects.get(path)
        if isinstance(found, Exception):
            raise found
        return found

    def call(self, method, path, body=None):
        if method == "GET":
            return {"items": self.objects.get(path.split("?")[0], [])}
        self.written.append((method, path, body))
        return body


SECRET = "/api/v1/namespaces/s/secrets/bmc-n"


def watch(objects, leadership=None):
    settings = types.SimpleNamespace(fencer="redfish.example.com", secret_namespace="s", watch_seconds=5.0)
    return fencer.PowerWatch(settings, Answers(objects), leadership)


class Whose(unittest.TestCase):
    def test_what_is_reported(self):
        for key, of_node, told, is_it in WITH_NODE:
            with self.subTest(key=key, of_node=of_node, told=told), bmc(told):
                row = watch({SECRET: secret(key)}).row_of(node(of_node))
                self.assertEqual(row and row["nodeUID"], "uid-n" if is_it else None)

    def test_what_is_switched_off(self):
        cases = [(key, node(of_node), told, "uid-n", is_it) for key, of_node, told, is_it in WITH_NODE]
        cases += [(key, None, told, "uid-n", is_it) for key, told, is_it in WITHOUT_NODE]
        cases += [("new-machine", node("New-Machine"), "new-machine", "uid-before", False)]
        for key, found, told, uid, is_it in cases:
            objects = {SECRET: secret(key), "/api/v1/nodes/n": found}
            settings = types.SimpleNamespace(secret_namespace="s")
            one = fencer.Fencer(settings, Answers(objects), None)
            with self.subTest(key=key, found=found, told=told, uid=uid), bmc(told):
                request = {"spec": {"nodeName": "n", "node": {"uid": uid}}}
                if is_it:
                    one.machine(request)
                    continue
                with self.assertRaises(fencer.Refused) as refused:
                    one.machine(request)
                self.assertEqual(refused.exception.reason, "WrongMachine")


class Watch(unittest.TestCase):
    def test_who_looks_no_more_takes_back_what_was_told(self):
        path = f"{fencer.REPORTS}/redfish.example.com"
        ready = [{"type": "Ready", "status": "True"}]
        before = {"node": "n", "nodeUID": "uid-n", "bootID": "boot", "since": "2026-11-21T02:12:35Z"}
        for rows, wanted in [([before], [("PUT", f"{path}/status", [])]), ([], []), (None, [])]:
            report = None if rows is None else {"status": {"conditions": ready, "poweredOff": rows}}
            api, stop = Answers({path: report}), mock.Mock()
            stop.is_set.side_effect = [False, False, True]
            settings = types.SimpleNamespace(fencer="redfish.example.com", watch_seconds=0.0)
            with self.subTest(rows=rows):
                fencer.PowerWatch(settings, api, mock.Mock()).run(stop)
                told = [(method, path, body["status"]["poweredOff"]) for method, path, body in api.written]
                self.assertEqual(told, wanted)


class Secrets(unittest.TestCase):
    """Nobody may list them: each is read by its name, and what it said, or that there is none, is remembered for some looks."""

    def reads(self, one, told):
        """What is seen of the node, and whether its Secret was read for that."""
        one.kubernetes.read.clear()
        with bmc(told):
            row = one.row_of(node("New-Machine"))
        self.assertIn(one.kubernetes.read, ([], [SECRET]))
        return bool(row), one.kubernetes.read == [SECRET]

    def test_one_is_read_again_after_some_looks(self):
        with mock.patch.object(fencer.time, "monotonic") as clock:
            for begins, becomes in [(secret(None), None), (None, secret(None))]:
                clock.return_value = 100.0
                one = watch({SECRET: begins})
                self.assertEqual(self.reads(one, "new-machine"), (begins is not None, True))
                one.kubernetes.objects[SECRET] = becomes
                clock.return_value = 159.0
                self.assertEqual(self.reads(one, "new-machine"), (begins is not None, False))
                clock.return_value = 160.0
                self.assertEqual(self.reads(one, "new-machine"), (becomes is not None, True))

    def test_one_that_does_not_fit_is_read_at_the_next_look(self):
        one = watch({SECRET: secret(None)})
        self.assertEqual(self.reads(one, "old-machine"), (False, True))
        self.assertEqual(self.reads(one, "new-machine"), (True, True))
        self.assertEqual(self.reads(one, "new-machine"), (True, False))

    def test_what_was_seen_stays_while_it_cannot_be_read(self):
        path = f"{fencer.REPORTS}/redfish.example.com"
        nodes = {"/api/v1/nodes": [node("New-Machine")], path: {"status": {}}}
        one = watch({**nodes, SECRET: fencer.Refused(503, "no answer")}, mock.Mock())

        def look():
            with bmc("new-machine"):
                one.look()
                list(fencer.concurrent.futures.as_completed(one.looks.values()))
                one.collect()
                one.tell()
            return [row["node"] for row in one.off.values()]

        self.assertEqual((look(), one.kubernetes.written), ([], []), "not every node was looked at")
        one.kubernetes.objects[SECRET] = secret(None)
        self.assertEqual(look(), ["n"])
        self.assertEqual(len(one.kubernetes.written), 1)
        one.kubernetes.objects[SECRET] = fencer.Refused(503, "no answer")
        one.secrets.clear()
        self.assertEqual((look(), len(one.kubernetes.written)), (["n"], 1))
        one.kubernetes.objects[SECRET] = None
        self.assertEqual((look(), len(one.kubernetes.written)), ([], 2))


if __name__ == "__main__":
    unittest.main()
