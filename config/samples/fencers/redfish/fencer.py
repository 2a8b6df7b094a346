#!/usr/bin/env python3
"""An external fencer for machines with a Redfish BMC: switches a node off when a FenceRequest asks for it, and reports which
nodes have no power before anybody does.

It uses nothing but Python's standard library and the Kubernetes API, so it is an example of the protocol as well: see
docs/fencers.md. One thread per FenceRequest, so that a BMC that hangs delays no other node.
"""

import base64
import concurrent.futures
import datetime
import hashlib
import http.client
import json
import logging
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
REQUESTS = "/apis/bulkhead.dev/v1alpha1/fencerequests"
REPORTS = "/apis/bulkhead.dev/v1alpha1/driverreports"
LEASE_SECONDS, RENEW_SECONDS, GIVE_UP_SECONDS = 15, 5, 10
BMC_SECONDS = 10
POLL_SECONDS = 1
# How often a node that is held off is looked at.
HOLD_SECONDS = 10
# So many BMCs are looked at side by side, and so many nodes have room in a report.
BMCS_AT_ONCE = 32
REPORTED_MAX = 1024
# For so many looks it is remembered what a node's Secret says, or that it has none. One that its BMC refuses is read again at once.
LOOKS_PER_SECRET = 12

log = logging.getLogger("redfish-fencer")


class Settings:
    """What the environment says."""

    def __init__(self, env):
        self.fencer = env.get("FENCER_NAME", "redfish.example.com")
        self.identity = env.get("FENCER_IDENTITY", "redfish-fencer")
        self.operator_namespace = env.get("OPERATOR_NAMESPACE", "bulkhead-system")
        self.secret_namespace = env.get("SECRET_NAMESPACE", "bulkhead-redfish")
        self.power_on = env.get("POWER_ON", "false") == "true"
        # How often every BMC is looked at, for the report of nodes without power; 0: never, and the report says nothing any more.
        self.watch_seconds = float(env.get("WATCH_SECONDS", "5"))
        host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
        self.server = env.get("KUBERNETES_SERVER", f"https://{host}:{port}")
        self.token_file = env.get("TOKEN_FILE", f"{ACCOUNT}/token")
        self.ca_file = env.get("CA_FILE", f"{ACCOUNT}/ca.crt")


class Refused(Exception):
    """Whoever was asked said no. `status` is the HTTP code, 0 when there was no answer; `reason` is what a row says."""

    def __init__(self, status, message, reason="BmcUnavailable"):
        super().__init__(message)
        self.status, self.reason = status, reason


def call(method, url, body, headers, context, seconds):
    """One HTTP request with a JSON body; the answer as JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, context=context, timeout=seconds) as answer:
            text = answer.read()
            return json.loads(text) if text else {}
    except urllib.error.HTTPError as error:
        raise Refused(error.code, f"{method} {url}: {error.code} {error.read(300).decode(errors='replace')}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Refused(0, f"{method} {url}: {error}") from error


class Kubernetes:
    """The API server, as the pod's ServiceAccount."""

    def __init__(self, settings):
        self.settings = settings
        self.context = ssl.create_default_context(cafile=settings.ca_file)

    def call(self, method, path, body=None, seconds=10):
        # The kubelet renews the token's file.
        with open(self.settings.token_file, encoding="ascii") as file:
            headers = {"Authorization": f"Bearer {file.read().strip()}"}
        return call(method, self.settings.server + path, body, headers, self.context, seconds)

    def get(self, path):
        """The object, or None where there is none."""
        try:
            return self.call("GET", path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise


class Leadership:
    """One replica answers at a time: the Lease is written by compare-and-swap, and taken over only after it stood still for its
    whole duration by our own clock. It also tells Bulkhead that a fencer is there."""

    def __init__(self, settings, kubernetes):
        self.settings, self.kubernetes = settings, kubernetes
        self.name = "bulkhead-fencer-" + hashlib.sha256(settings.fencer.encode()).hexdigest()[:8]
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{settings.operator_namespace}/leases"
        self.seen, self.seen_at, self.renewed_at = None, 0.0, None

    def holds(self):
        return self.renewed_at is not None and time.monotonic() - self.renewed_at < GIVE_UP_SECONDS

    def require(self):
        """Asked right before every write and every call."""
        if not self.holds():
            raise Refused(0, "this replica does not lead")

    def try_once(self):
        lease = self.kubernetes.get(f"{self.path}/{self.name}")
        version = lease and lease["metadata"]["resourceVersion"]
        if version != self.seen:
            self.seen, self.seen_at = version, time.monotonic()
        spec = lease.get("spec", {}) if lease else {}
        holder = spec.get("holderIdentity")
        stood_still = time.monotonic() - self.seen_at >= LEASE_SECONDS
        if holder and holder != self.settings.identity and not stood_still:
            return
        begun, now = time.monotonic(), timestamp()
        ours = holder == self.settings.identity
        wanted = {
            "holderIdentity": self.settings.identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": spec.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (0 if ours else 1),
        }
        if lease is None:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}}
            self.kubernetes.call("POST", self.path, {**lease, "spec": wanted})
        else:
            self.kubernetes.call("PUT", f"{self.path}/{self.name}", {**lease, "spec": wanted})
        self.renewed_at = begun

    def release(self):
        """Lets the next replica lead at once. What is under way here is neither called nor written any more."""
        self.renewed_at = None
        lease = self.kubernetes.get(f"{self.path}/{self.name}")
        if lease and lease["spec"].get("holderIdentity") == self.settings.identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            self.kubernetes.call("PUT", f"{self.path}/{self.name}", lease)

    def run(self, stop):
        while not stop.is_set():
            try:
                self.try_once()
            except Refused as refused:
                log.warning("Lease %s is not renewed: %s", self.name, refused)
            stop.wait(RENEW_SECONDS)


class Machine:
    """The BMC of one node, as its Secret describes it."""

    def __init__(self, secret):
        data = {key: base64.b64decode(value).decode() for key, value in secret.get("data", {}).items()}
        self.url = data["url"].rstrip("/")
        credentials = f"{data['username']}:{data['password']}".encode()
        self.headers = {"Authorization": "Basic " + base64.b64encode(credentials).decode()}
        self.context = None
        if self.url.startswith("https:"):
            self.context = ssl.create_default_context(cadata=data.get("ca.crt"))
        self.path, self.uuid = data.get("system"), data.get("uuid")

    def call(self, method, path, body=None):
        return call(method, self.url + path, body, self.headers, self.context, BMC_SECONDS)

    def system(self):
        if self.path is None:
            members = self.call("GET", "/redfish/v1/Systems")["Members"]
            if len(members) != 1:
                raise Refused(0, f"{self.url} has {len(members)} systems: name one in the Secret's key system")
            self.path = members[0]["@odata.id"]
        return self.call("GET", self.path)

    def reset(self, system, kind):
        action = system["Actions"]["#ComputerSystem.Reset"]
        self.call("POST", action["target"], {"ResetType": kind})


def secret_of(kubernetes, settings, node_name):
    """The Secret of a node's BMC, or None. By its name: whoever may list Secrets has all of them."""
    return kubernetes.get(f"/api/v1/namespaces/{settings.secret_namespace}/secrets/bmc-{node_name}")


def identify(secret, node_name, node):
    """The BMC of a node by its Secret, and its system, if that has the UUID that the node's kernel knows, and the Secret where it
    tells one. Where no Node of that name is there the Secret's must do. What is seen of another machine, or done to it, would
    be the worst of all, so a UUID that is empty is equal to none."""
    try:
        machine = Machine(secret)
    except (KeyError, ValueError, ssl.SSLError) as error:
        raise Refused(0, f"Secret bmc-{node_name}: {error!r}", "NotConfigured") from error
    wanted = {}
    if node is not None:
        wanted["the node"] = node["status"]["nodeInfo"].get("systemUUID", "")
    if machine.uuid is not None:
        wanted["the Secret"] = machine.uuid
    if not wanted:
        raise Refused(0, "the Node is gone, and the Secret has no uuid", "WrongMachine")
    system = machine.system()
    found = str(system.get("UUID") or "")
    if not found or any(uuid.lower() != found.lower() for uuid in wanted.values()):
        told = ", ".join(f"{who} says {uuid!r}" for who, uuid in wanted.items())
        raise Refused(0, f"the BMC is that of machine {found!r}: {told}", "WrongMachine")
    return machine, system


def timestamp(precision="microseconds"):
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec=precision).replace("+00:00", "Z")


def seconds_of(duration):
    """A duration as Bulkhead writes it: 1m30s, 500ms."""
    total, number, text = 0.0, "", duration.replace("ms", "i")
    for letter in text:
        if letter.isdigit():
            number += letter
        else:
            total += float(number) * {"h": 3600, "m": 60, "s": 1, "i": 0.001}[letter]
            number = ""
    return total


def key(row):
    return row["episode"], row["name"]


class Fencer:
    """Answers the FenceRequests that name it."""

    def __init__(self, settings, kubernetes, leadership):
        self.settings, self.kubernetes, self.leadership = settings, kubernetes, leadership

    def handle(self, name):
        """One step for one request. Returns how long it may rest."""
        request = self.kubernetes.get(f"{REQUESTS}/{name}")
        if request is None or request["spec"]["fencerName"] != self.settings.fencer:
            return None
        rows = {key(row): row for row in request.get("status", {}).get("volumes", [])}
        if request["spec"]["desired"] == "Unfenced":
            return self.unfence(request, rows)
        open_rows = [volume for volume in request["spec"]["volumes"] if not self.is_answered(volume, rows)]
        return self.fence(request, rows, open_rows) if open_rows else self.hold(request, rows)

    @staticmethod
    def is_answered(volume, rows):
        row = rows.get(key(volume))
        return bool(row) and row["round"] == volume["round"] and row["result"] in ("Fenced", "Failed")

    def fence(self, request, rows, open_rows):
        try:
            machine, system = self.machine(request)
        except Refused as refused:
            # Nothing was sent: no startedAt.
            self.answer(request, [self.row(volume, rows, "Failed", refused.reason, refused) for volume in open_rows])
            return POLL_SECONDS
        # From this record on the machine may be off: the point of no return. It is written at the version that was read, so
        # that a request that was turned round meanwhile is not begun with.
        rows = {name: row for name, row in rows.items() if row["result"] != "Unfenced"}
        begun = [self.row(volume, rows, "Started") for volume in open_rows]
        for row in begun:
            row.setdefault("startedAt", timestamp())
        request = self.answer(request, begun)
        rows = {key(row): row for row in request["status"]["volumes"]}
        deadline = time.monotonic() + seconds_of(request["spec"]["callTimeout"])
        try:
            self.switch_off(machine, system, deadline)
        except Refused as refused:
            answers = [self.row(volume, rows, "Failed", "DeadlineExceeded", refused) for volume in open_rows]
        else:
            off = {"proof": "PowerOff", "method": "External", "readBackAt": timestamp()}
            answers = [{**self.row(volume, rows, "Fenced", "PoweredOff"), **off} for volume in open_rows]
        self.answer(request, answers)
        return HOLD_SECONDS

    def switch_off(self, machine, system, deadline):
        """Sends ForceOff and reads the power state until it is Off. What a BMC says to the call itself proves nothing."""
        sent = system.get("PowerState") == "Off"
        last = Refused(0, f"PowerState is {system.get('PowerState')}")
        while True:
            self.leadership.require()
            try:
                if not sent:
                    machine.reset(system, "ForceOff")
                    sent = True
                state = machine.system().get("PowerState")
                if state == "Off":
                    return
                last = Refused(0, f"PowerState is {state}")
            except Refused as refused:
                last = refused
            if time.monotonic() >= deadline:
                raise last
            time.sleep(POLL_SECONDS)

    def hold(self, request, rows):
        """The proof lasts while the machine is off. One that somebody has switched on again is told at once."""
        fenced = [volume for volume in request["spec"]["volumes"] if rows[key(volume)]["result"] == "Fenced"]
        if not fenced:
            return None
        try:
            _, system = self.machine(request)
        except Refused as refused:
            log.warning("%s: cannot look whether it is still off: %s", request["spec"]["nodeName"], refused)
            return HOLD_SECONDS
        if system.get("PowerState") == "Off":
            return HOLD_SECONDS
        why = Refused(0, f"PowerState is {system.get('PowerState')}: somebody has switched it on")
        self.answer(request, [self.row(volume, rows, "Failed", "PowerRestored", why) for volume in fenced])
        return POLL_SECONDS

    def unfence(self, request, rows):
        def done(volume):
            row = rows.get(key(volume), {})
            return row.get("result") == "Unfenced" and row["round"] == volume["round"]

        open_rows = [volume for volume in request["spec"]["volumes"] if not done(volume)]
        if not open_rows:
            return None
        begun = any("startedAt" in row for row in rows.values())
        trouble = self.switch_on(request) if begun and self.settings.power_on else None
        reason = trouble and trouble.reason
        self.answer(request, [self.row(volume, rows, "Unfenced", reason, trouble) for volume in open_rows])
        return None

    def switch_on(self, request):
        """Gives the power back, if it can be had in the time of a call. Returns what stood in the way: a BMC that is broken
        must not keep a node for ever that somebody has switched on by hand."""
        deadline = time.monotonic() + seconds_of(request["spec"]["callTimeout"])
        while True:
            self.leadership.require()
            try:
                machine, system = self.machine(request)
                if system.get("PowerState") == "Off":
                    machine.reset(system, "On")
                return None
            except Refused as refused:
                log.warning("%s is not switched on: %s", request["spec"]["nodeName"], refused)
                if time.monotonic() >= deadline or refused.reason != "BmcUnavailable":
                    return refused
            time.sleep(POLL_SECONDS)

    def machine(self, request):
        """The BMC of the node that is meant: of this uid, and with the UUID that the node's kernel knew."""
        spec = request["spec"]
        secret = secret_of(self.kubernetes, self.settings, spec["nodeName"])
        if secret is None:
            raise Refused(404, f"no Secret bmc-{spec['nodeName']}", "NotConfigured")
        node = self.kubernetes.get(f"/api/v1/nodes/{spec['nodeName']}")
        if node is not None and node["metadata"]["uid"] != spec["node"]["uid"]:
            raise Refused(0, "the Node is another one than the one that failed", "WrongMachine")
        return identify(secret, spec["nodeName"], node)

    @staticmethod
    def row(volume, rows, result, reason=None, error=None):
        known = rows.get(key(volume), {})
        row = {name: known[name] for name in ("startedAt",) if name in known}
        row |= {"episode": volume["episode"], "name": volume["name"], "round": volume["round"]}
        row |= {"result": result, "proof": "None"}
        if reason:
            row["reason"] = reason
        if error:
            row["message"] = str(error.args[0])[:500]
        return row

    def answer(self, request, answers):
        """Writes rows at the version that was read: who wrote in between is looked at first."""
        self.leadership.require()
        status = request.setdefault("status", {})
        rows = {key(row): row for row in status.get("volumes", [])} | {key(row): row for row in answers}
        status["volumes"] = list(rows.values())
        summarize(request)
        path = f"{REQUESTS}/{request['metadata']['name']}/status"
        written = self.kubernetes.call("PUT", path, request)
        for row in answers:
            log.info("%s %s: %s %s", request["spec"]["nodeName"], row["name"], row["result"], row.get("reason", ""))
        return written


def summarize(request):
    """Condition Ready and the columns."""
    spec, status = request["spec"], request["status"]
    classes = ["None", "Acknowledged", "Verified", "PowerOff"]
    wanted = "Unfenced" if spec["desired"] == "Unfenced" else "Fenced"
    rows = {key(row): row for row in status["volumes"]}
    asked = [(volume, rows.get(key(volume))) for volume in spec["volumes"]]
    current = [(volume, row) for volume, row in asked if row and row["round"] == volume["round"]]

    def is_good(volume, row):
        enough = classes.index(row["proof"]) >= classes.index(volume["minimumProof"])
        return row["result"] == wanted and (wanted == "Unfenced" or enough)

    good = [row for volume, row in current if is_good(volume, row)]
    failed = [row for _, row in current if row["result"] == "Failed"]
    ready = len(good) == len(asked)
    reason, message = ("Fencing" if wanted == "Fenced" else "Unfencing"), ""
    if ready:
        reason = wanted
    elif failed:
        reason = "Timeout" if failed[0]["reason"] == "DeadlineExceeded" else "ProofTooWeak"
        message = f"{failed[0]['reason']}: {failed[0].get('message', '')}"
    condition = {"type": "Ready", "status": str(ready), "reason": reason, "message": message}
    condition["observedGeneration"] = request["metadata"]["generation"]
    before = next((it for it in status.get("conditions", []) if it["type"] == "Ready"), {})
    same = before.get("status") == condition["status"]
    condition["lastTransitionTime"] = before["lastTransitionTime"] if same else timestamp("seconds")
    status["conditions"] = [condition]
    status["observedGeneration"] = request["metadata"]["generation"]
    status["progress"] = f"{len(good)}/{len(asked)}"
    proofs = [row["proof"] if row and row["round"] == volume["round"] else "None" for volume, row in asked]
    status["weakestProof"] = min(proofs, key=classes.index)


class PowerWatch:
    """Tells which nodes have no power before anybody asks for a fence, in the DriverReport of the fencer's name. It is evidence,
    which counts while the node itself is silent too, and no proof. A node that is not in the report is not known to be off."""

    def __init__(self, settings, kubernetes, leadership):
        self.settings, self.kubernetes, self.leadership = settings, kubernetes, leadership
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=BMCS_AT_ONCE)
        self.forget()

    def forget(self):
        # Looks under way; nodes that were not looked at yet; nodes that are off; what was told last.
        self.looks, self.unseen, self.off, self.told = {}, None, {}, None
        # Of each node its Secret, or None, and until when that is believed.
        self.secrets = {}

    def run(self, stop):
        due = 0.0
        while not stop.is_set():
            try:
                if not self.leadership.holds():
                    self.forget()
                else:
                    self.collect()
                    if self.settings.watch_seconds <= 0:
                        # Nobody looks any more: what was told before is taken back.
                        self.unseen = set()
                    elif time.monotonic() >= due:
                        due = time.monotonic() + self.settings.watch_seconds
                        self.look()
                    self.tell()
            except Refused as refused:
                log.warning("which nodes are off is not told: %s", refused)
            except Exception:  # What cannot be read today must not end the watch.
                log.exception("which nodes are off is not told")
            stop.wait(POLL_SECONDS)

    def look(self):
        # Each Node is read before its power is looked at, so that one that boots meanwhile is not called off in its new boot.
        nodes = self.kubernetes.call("GET", "/api/v1/nodes?resourceVersion=0")["items"]
        nodes = {node["metadata"]["name"]: node for node in nodes}
        if self.unseen is None:
            self.unseen = set(nodes)
        self.unseen &= set(nodes)
        self.off = {name: row for name, row in self.off.items() if name in nodes}
        self.secrets = {name: secret for name, secret in self.secrets.items() if name in nodes}
        for name, node in nodes.items():
            if name not in self.looks:
                self.looks[name] = self.pool.submit(self.row_of, node)

    def secret(self, name):
        """What the node's Secret says, now or some looks ago."""
        secret, until = self.secrets.get(name, (None, 0.0))
        if time.monotonic() >= until:
            secret = secret_of(self.kubernetes, self.settings, name)
            self.secrets[name] = secret, time.monotonic() + LOOKS_PER_SECRET * self.settings.watch_seconds
        return secret

    def row_of(self, node):
        """The row of a node whose machine is off; None for one that is on, or of which that cannot be said."""
        name, about = node["metadata"]["name"], node["status"]["nodeInfo"]
        secret = self.secret(name)
        if secret is None:
            return None
        try:
            _, system = identify(secret, name, node)
        except Refused as refused:
            log.debug("%s: cannot look whether it is off: %s", name, refused)
            # The Secret may be wrong, or mended meanwhile.
            self.secrets.pop(name, None)
            return None
        if system.get("PowerState") != "Off" or not about.get("bootID"):
            return None
        uid = node["metadata"]["uid"]
        return {"node": name, "nodeUID": uid, "bootID": about["bootID"], "reason": "PowerStateOff"}

    def collect(self):
        """Takes in the looks that are done. One that went wrong says nothing; one for which the API server did not give the
        Secret was none: what was seen before it stays."""
        for name, look in [(name, look) for name, look in self.looks.items() if look.done()]:
            del self.looks[name]
            if isinstance(look.exception(), Refused):
                log.warning("%s: no look whether it is off: %s", name, look.exception())
                continue
            self.unseen.discard(name)
            self.off.pop(name, None)
            if look.exception():
                log.warning("%s: %r", name, look.exception())
            elif look.result():
                self.off[name] = look.result()

    def tell(self):
        """Writes on change only, and not before every node was looked at once: until then the report of the leader before stays."""
        rows = [self.off[name] for name in sorted(self.off)][:REPORTED_MAX]
        if self.unseen is None or self.unseen or rows == self.told:
            return
        path = f"{REPORTS}/{self.settings.fencer}"
        report = self.kubernetes.get(path)
        self.leadership.require()
        if report is None and self.settings.watch_seconds <= 0:
            self.told = rows
            return
        if report is None:
            report = {"apiVersion": "bulkhead.dev/v1alpha1", "kind": "DriverReport"}
            report = self.kubernetes.call("POST", REPORTS, {**report, "metadata": {"name": self.settings.fencer}})
        status = report.setdefault("status", {})
        known = {row["node"]: row for row in status.get("poweredOff", [])}

        def since(row):
            before = known.get(row["node"], {})
            is_same = all(before.get(field) == row[field] for field in ("nodeUID", "bootID"))
            return before["since"] if is_same else timestamp()

        wanted = [{**row, "since": since(row)} for row in rows]
        if wanted != status.get("poweredOff", []) or not status.get("conditions"):
            ready = {"type": "Ready", "status": "True", "reason": "Reporting", "message": ""}
            status.setdefault("conditions", [{**ready, "lastTransitionTime": timestamp("seconds")}])
            status["poweredOff"] = wanted
            self.leadership.require()
            self.kubernetes.call("PUT", f"{path}/status", report)
            log.info("nodes without power: %s", ", ".join(row["node"] for row in wanted) or "none")
        self.told = rows


class Workers:
    """One thread per request that there is something to do about."""

    def __init__(self, fencer):
        self.fencer, self.lock = fencer, threading.Lock()
        # At work; changed meanwhile; when to look again.
        self.busy, self.changed, self.due = set(), set(), {}

    def wake(self, name, changed):
        with self.lock:
            if changed:
                self.changed.add(name)
            is_due = name in self.changed or self.due.get(name, float("inf")) <= time.monotonic()
            if name in self.busy or not is_due:
                return
            self.changed.discard(name)
            self.busy.add(name)
        threading.Thread(target=self.work, args=(name,), daemon=True).start()

    def work(self, name):
        rest = POLL_SECONDS
        try:
            rest = self.fencer.handle(name)
        except Refused as refused:
            # A conflict says that somebody wrote in between: look again.
            if refused.status != 409:
                log.warning("%s: %s", name, refused)
        except Exception:  # A request that cannot be read must not end the others.
            log.exception("%s", name)
        finally:
            with self.lock:
                self.busy.discard(name)
                self.due[name] = float("inf") if rest is None else time.monotonic() + rest


def serve(settings, stop):
    kubernetes = Kubernetes(settings)
    leadership = Leadership(settings, kubernetes)
    threading.Thread(target=leadership.run, args=(stop,), daemon=True).start()
    watch = PowerWatch(settings, kubernetes, leadership)
    threading.Thread(target=watch.run, args=(stop,), daemon=True).start()
    workers = Workers(Fencer(settings, kubernetes, leadership))
    field = urllib.parse.quote(f"spec.fencerName={settings.fencer}")
    versions = {}
    log.info("answering for %s", settings.fencer)
    while not stop.is_set():
        try:
            if leadership.holds():
                items = kubernetes.call("GET", f"{REQUESTS}?fieldSelector={field}&resourceVersion=0")["items"]
                for item in items:
                    name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
                    workers.wake(name, versions.get(name) != version)
                versions = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}
        except Refused as refused:
            log.warning("%s", refused)
        stop.wait(POLL_SECONDS)
    leadership.release()


def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve(Settings(os.environ), stop)


if __name__ == "__main__":
    main()
