//! A volume that an NFS server exports: the server moves to another node, its clients go on.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bulkhead_testbed::ganesha::{EXPORT, Ganesha, Settings};
use bulkhead_testbed::nfs_client::{NfsError, NfsFile, Renewal};
use bulkhead_testbed::process::{Process, Signal};

use crate::bed::{Bed, Mounted, SOON, wait};

/// An nfs-ganesha that exports what is mounted there.
fn serve(bed: &Bed, server: &Ganesha, name: &str, at: &Mounted, port: u16) -> Process {
    let [exported, recovery] = ["exported", "recovery"].map(|folder| at.target.join(folder));
    for folder in [&exported, &recovery] {
        fs::create_dir_all(folder).unwrap();
    }
    let (file, process_id) = (bed.path(&format!("{name}.conf")), bed.path(&format!("{name}.pid")));
    let settings = Settings { port, folder: &exported, recovery: &recovery, lease: 5, grace: 10 };
    fs::write(&file, server.settings(&settings)).unwrap();
    let arguments = server.arguments(&file, &process_id);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    bed.start(name, server.program().to_str().unwrap(), &arguments)
}

/// Tries until it is done; a stale handle is the end.
fn insist<T>(what: &str, mut attempt: impl FnMut() -> Result<T, NfsError>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(NfsError::Status(status)) if status.is_stale_handle() => panic!("{what}: {status}"),
            Err(error) => assert!(Instant::now() < deadline, "{what}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn a_client_of_an_exported_volume_goes_on_with_its_file_handle_when_the_server_moves() {
    let bed = Bed::new();
    let server = Ganesha::find().unwrap();
    let (first, second) = (bed.plugin("a"), bed.plugin("b"));
    let volume = bed.volume("v");
    let at = first.mounted(&volume, "a", false);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut one = serve(&bed, &server, "server-a", &at, port);

    let mut file = NfsFile::new(address, &format!("{EXPORT}/file"), "test", Duration::from_secs(5));
    insist("the first write", || file.write(0, b"one"));
    assert!(file.renewals().ends_with(&[Renewal::Opened]));
    assert_eq!(fs::read(at.target.join("exported/file")).unwrap(), b"one");

    // Its node is cut off: the server of before can do no harm, whatever it still does.
    bed.detach(&volume, "a");
    assert!(file.write(3, b"no").is_err());
    one.signal(Signal::Kill).unwrap();
    wait("the end of the first server", || one.exit_status().is_some());
    let elsewhere = second.mounted(&volume, "b", false);
    let _two = serve(&bed, &server, "server-b", &elsewhere, port);
    file.renewals();
    insist("a write to the second server", || file.write(3, b"two"));
    let renewals = file.renewals();
    assert!(renewals.ends_with(&[Renewal::Reclaimed]), "{renewals:?}");
    assert_eq!(insist("a read", || file.read(0, 100)), b"onetwo");
    assert_eq!(fs::read(elsewhere.target.join("exported/file")).unwrap(), b"onetwo");
}
