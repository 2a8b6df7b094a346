//! The host's addresses, from its network namespace as `/proc/<pid>/net` shows it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Addresses that are reported at most.
pub const MOST: usize = 16;

/// Flags of an IPv6 address (`if_addr.h`) that make it none to be known by: temporary, duplicate, deprecated, tentative.
const PASSING: u32 = 0x01 | 0x08 | 0x20 | 0x40;
/// Flags of an interface (`if.h`): without ARP, and with one other end.
const NO_ARP: u32 = 0x80;
const POINT_TO_POINT: u32 = 0x10;

/// The addresses of the host, a process of which has this folder in `/proc`.
pub async fn read(host: &str) -> io::Result<Vec<String>> {
    let host = Path::new(host).to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let net = host.join("net");
        let if_inet6 = match fs::read_to_string(net.join("if_inet6")) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let [trie, route] = [fs::read_to_string(net.join("fib_trie"))?, fs::read_to_string(net.join("route"))?];
        let devices = host.join("root/sys/class/net");
        Ok(parse(&trie, &route, &if_inet6, |name| stays_within(&devices, name)))
    });
    read.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

/// Whether an interface leads to nobody but the node's own containers: a bridge that only they are connected to, or a
/// dummy. Every node may have the same addresses on those. A node may itself be a container, with one end of a veth.
fn stays_within(devices: &Path, name: &str) -> bool {
    let device = devices.join(name);
    if device.join("bridge").exists() {
        let ports = fs::read_dir(device.join("brif")).into_iter().flatten().flatten();
        return !ports.into_iter().any(|port| leads_out(&devices.join(port.file_name())));
    }
    let flags = fs::read_to_string(device.join("flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap_or_default();
    flags & (NO_ARP | POINT_TO_POINT) == NO_ARP && !leads_out(&device)
}

/// Whether it is hardware, or made of some.
fn leads_out(device: &Path) -> bool {
    let kind = fs::read_to_string(device.join("uevent")).unwrap_or_default();
    device.join("device").exists() || kind.lines().any(|line| matches!(line, "DEVTYPE=bond" | "DEVTYPE=vlan"))
}

/// The addresses by which the host can reach others: not of the loopback, not link-local, not of an interface that stays
/// within the node, and (IPv4) only those of a network that is connected, which the addresses of Services are not.
pub fn parse(fib_trie: &str, route: &str, if_inet6: &str, stays_within: impl Fn(&str) -> bool) -> Vec<String> {
    let connected: Vec<_> = route.lines().filter_map(|line| connected(line, &stays_within)).collect();
    let reaches = |address: &Ipv4Addr| connected.iter().any(|(net, mask)| address.to_bits() & mask == *net);
    let usable = |address: &Ipv4Addr| !address.is_loopback() && !address.is_link_local() && reaches(address);
    let v4: BTreeSet<_> = local(fib_trie).into_iter().filter(usable).collect();
    let v6: BTreeSet<_> = if_inet6.lines().filter_map(|line| global(line, &stays_within)).collect();
    v4.iter().map(Ipv4Addr::to_string).chain(v6.iter().map(Ipv6Addr::to_string)).take(MOST).collect()
}

/// The local addresses of `fib_trie`: `|-- 10.0.3.17` followed by `/32 host LOCAL`.
fn local(fib_trie: &str) -> BTreeSet<Ipv4Addr> {
    let mut last: Option<Ipv4Addr> = None;
    let mut found = BTreeSet::new();
    for line in fib_trie.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            last = address.trim().parse().ok();
        } else if line.contains("/32 host LOCAL") {
            found.extend(last);
        }
    }
    found
}

/// Network and mask of a line of `route` without a gateway. Both are in the machine's byte order.
fn connected(line: &str, stays_within: impl Fn(&str) -> bool) -> Option<(u32, u32)> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok().map(u32::from_be);
    let (net, gateway, mask) = (number(1)?, number(2)?, number(7)?);
    (gateway == 0 && mask != 0 && !stays_within(fields.first()?)).then_some((net, mask))
}

/// The address of a line of `if_inet6` (address, index, prefix, scope, flags, interface), if its scope is global.
fn global(line: &str, stays_within: impl Fn(&str) -> bool) -> Option<Ipv6Addr> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let address = u128::from_str_radix(fields.first()?, 16).ok()?;
    let flags = u32::from_str_radix(fields.get(4)?, 16).ok()?;
    let lasts = *fields.get(3)? == "00" && flags & PASSING == 0;
    (lasts && !stays_within(fields.get(5)?)).then_some(Ipv6Addr::from_bits(address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.0.3.0\n        \
                        /24 link UNICAST\n     |-- 10.0.3.17\n        /32 host LOCAL\n     |-- 10.96.0.1\n        /32 host \
                        LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
    const ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                         eth0\t00000000\t0103000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                         eth0\t0003000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    const INET6: &str = "00000000000000000000000000000001 01 80 10 80       lo\n\
                         fe80000000000000001c42fffe000008 02 40 20 80     eth0\n\
                         fd000000000000000000000000000017 02 40 00 80     eth0\n\
                         fd00000000000000aaaaaaaaaaaaaaaa 02 40 00 01     eth0\n\
                         fd00000000000000bbbbbbbbbbbbbbbb 02 40 00 20     eth0\n";

    #[test]
    fn only_addresses_by_which_others_are_reached() {
        assert_eq!(parse(TRIE, ROUTE, INET6, |_| false), ["10.0.3.17", "fd00::17"]);
        assert_eq!(parse(TRIE, ROUTE, INET6, |name| name == "eth0"), [] as [&str; 0]);
        assert_eq!(parse("", "", "", |_| false), [] as [&str; 0]);
    }

    #[test]
    fn bridges_of_containers_and_dummies_stay_within() {
        let folder = tempfile::tempdir().unwrap();
        let device = |name: &str, flags: &str, parts: &[&str]| {
            let device = folder.path().join(name);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("flags"), format!("{flags}\n")).unwrap();
            fs::write(device.join("uevent"), if name.contains('.') { "DEVTYPE=vlan\n" } else { "" }).unwrap();
            parts.iter().for_each(|part| fs::create_dir_all(device.join(part)).unwrap());
        };
        device("eth0", "0x1003", &["device"]);
        device("eth1", "0x1003", &[]);
        device("eth0.7", "0x1003", &[]);
        device("wg0", "0x91", &[]);
        device("veth1", "0x1003", &[]);
        device("cni0", "0x1003", &["bridge", "brif/veth1"]);
        device("docker0", "0x1003", &["bridge", "brif"]);
        device("br0", "0x1003", &["bridge", "brif/eth0", "brif/veth1"]);
        device("br7", "0x1003", &["bridge", "brif/eth0.7"]);
        device("nodelocaldns", "0x83", &[]);
        for (name, expected) in [
            ("eth0", false),
            ("eth1", false),
            ("eth0.7", false),
            ("wg0", false),
            ("br0", false),
            ("br7", false),
            ("unknown", false),
            ("cni0", true),
            ("docker0", true),
            ("nodelocaldns", true),
        ] {
            assert_eq!(stays_within(folder.path(), name), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_an_error_and_no_empty_list() {
        assert!(read("/proc/self").await.is_ok());
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path().to_str().unwrap()).await.is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(trie in "\\PC{0,99}", route in "[0-9A-F\t ]{0,99}", inet6 in "[0-9a-f ]{0,99}") {
            prop_assert!(parse(&trie, &route, &inet6, |_| false).len() <= MOST);
        }
    }
}
