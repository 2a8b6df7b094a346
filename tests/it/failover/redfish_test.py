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
        self.objects, self.written = objects, []

    def get(self, path):
        return self.objects.get(path)

    def call(self, method, path, body=None):
        self.written.append((method, path, body))
        return body


class Whose(unittest.TestCase):
    def test_what_is_reported(self):
        for key, of_node, told, is_it in WITH_NODE:
            with self.subTest(key=key, of_node=of_node, told=told), bmc(told):
                row = fencer.PowerWatch.row_of(node(of_node), secret(key))
                self.assertEqual(row and row["nodeUID"], "uid-n" if is_it else None)

    def test_what_is_switched_off(self):
        cases = [(key, node(of_node), told, "uid-n", is_it) for key, of_node, told, is_it in WITH_NODE]
        cases += [(key, None, told, "uid-n", is_it) for key, told, is_it in WITHOUT_NODE]
        cases += [("new-machine", node("New-Machine"), "new-machine", "uid-before", False)]
        for key, found, told, uid, is_it in cases:
            objects = {"/api/v1/namespaces/s/secrets/bmc-n": secret(key), "/api/v1/nodes/n": found}
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


if __name__ == "__main__":
    unittest.main()
