//! What a server answers instead of a result (RFC 8881, section 15).

use std::fmt;

/// A status of NFS that is not OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub(super) u32);

impl Status {
    pub(super) const STALE: Self = Self(70);
    pub(super) const BAD_HANDLE: Self = Self(10001);
    pub(super) const DELAY: Self = Self(10008);
    pub(super) const EXPIRED: Self = Self(10011);
    pub(super) const GRACE: Self = Self(10013);
    pub(super) const HANDLE_EXPIRED: Self = Self(10014);
    pub(super) const STALE_CLIENT: Self = Self(10022);
    pub(super) const STALE_STATE: Self = Self(10023);
    pub(super) const OLD_STATE: Self = Self(10024);
    pub(super) const BAD_STATE: Self = Self(10025);
    pub(super) const NO_GRACE: Self = Self(10033);
    pub(super) const BAD_RECLAIM: Self = Self(10034);
    pub(super) const BAD_SESSION: Self = Self(10052);
    pub(super) const COMPLETE_ALREADY: Self = Self(10054);
    pub(super) const NOT_BOUND: Self = Self(10055);
    pub(super) const MISORDERED: Self = Self(10063);
    pub(super) const DEAD_SESSION: Self = Self(10078);

    /// The server does not know a file by the handle that it, or another one in its place, gave out: what must not happen.
    pub fn is_stale_handle(self) -> bool {
        [Self::STALE, Self::BAD_HANDLE, Self::HANDLE_EXPIRED].contains(&self)
    }

    /// The session is to be made again.
    pub(super) fn needs_session(self) -> bool {
        [Self::BAD_SESSION, Self::DEAD_SESSION, Self::NOT_BOUND, Self::MISORDERED].contains(&self)
    }

    /// The file is to be opened again.
    pub(super) fn needs_open(self) -> bool {
        [Self::EXPIRED, Self::STALE_STATE, Self::OLD_STATE, Self::BAD_STATE].contains(&self)
    }

    /// The server gives nothing back to this client: it waits for no client any more, or does not know this one.
    pub(super) fn refuses_reclaim(self) -> bool {
        [Self::NO_GRACE, Self::BAD_RECLAIM].contains(&self)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::STALE => "NFS4ERR_STALE",
            Self::BAD_HANDLE => "NFS4ERR_BADHANDLE",
            Self::DELAY => "NFS4ERR_DELAY",
            Self::EXPIRED => "NFS4ERR_EXPIRED",
            Self::GRACE => "NFS4ERR_GRACE",
            Self::HANDLE_EXPIRED => "NFS4ERR_FHEXPIRED",
            Self::STALE_CLIENT => "NFS4ERR_STALE_CLIENTID",
            Self::STALE_STATE => "NFS4ERR_STALE_STATEID",
            Self::OLD_STATE => "NFS4ERR_OLD_STATEID",
            Self::BAD_STATE => "NFS4ERR_BAD_STATEID",
            Self::NO_GRACE => "NFS4ERR_NO_GRACE",
            Self::BAD_RECLAIM => "NFS4ERR_RECLAIM_BAD",
            Self::BAD_SESSION => "NFS4ERR_BADSESSION",
            Self::COMPLETE_ALREADY => "NFS4ERR_COMPLETE_ALREADY",
            Self::NOT_BOUND => "NFS4ERR_CONN_NOT_BOUND_TO_SESSION",
            Self::MISORDERED => "NFS4ERR_SEQ_MISORDERED",
            Self::DEAD_SESSION => "NFS4ERR_DEADSESSION",
            Self(number) => return write!(formatter, "NFS status {number}"),
        };
        formatter.write_str(name)
    }
}
