//! The arguments of mount-s3, as far as Mountpoint Pods use them. One that is not here is refused, as mount-s3 refuses those
//! that it does not know.

use std::path::PathBuf;

use clap::{ArgGroup, Parser, value_parser};
use mountpoint_s3_fs::fs::TimeToLive;

/// Serves a bucket as a file system, through the descriptor of a FUSE file system that is mounted already.
#[derive(Parser)]
#[command(name = "mount-s3", version)]
#[command(group(ArgGroup::new("who").args(["allow_root", "allow_other"])))]
pub struct Arguments {
    /// Name of the bucket.
    pub bucket: String,
    /// `/dev/fd/N`: the descriptor N.
    pub mount_point: String,

    /// Keys begin with this, which is not shown in the mount.
    #[arg(long)]
    pub prefix: Option<String>,
    /// Region of the bucket; AWS_REGION otherwise.
    #[arg(long)]
    pub region: Option<String>,
    /// Address of the S3 service.
    #[arg(long, env = "AWS_ENDPOINT_URL")]
    pub endpoint_url: Option<String>,
    /// The bucket is part of the path and not of the host's name.
    #[arg(long)]
    pub force_path_style: bool,
    /// Profile in the files of credentials; AWS_PROFILE otherwise.
    #[arg(long, conflicts_with = "no_sign_request")]
    pub profile: Option<String>,
    /// Requests are not signed.
    #[arg(long)]
    pub no_sign_request: bool,
    /// Account that is to own the bucket.
    #[arg(long)]
    pub expected_bucket_owner: Option<String>,
    /// The requester pays.
    #[arg(long)]
    pub requester_pays: bool,
    /// Begin of the User-Agent header.
    #[arg(long)]
    pub user_agent_prefix: Option<String>,

    /// Nothing can be changed.
    #[arg(long)]
    pub read_only: bool,
    /// Files can be deleted.
    #[arg(long)]
    pub allow_delete: bool,
    /// Files can be overwritten.
    #[arg(long)]
    pub allow_overwrite: bool,
    /// Root has access besides the owner.
    #[arg(long)]
    pub allow_root: bool,
    /// Everybody has access.
    #[arg(long)]
    pub allow_other: bool,
    /// Owner of files and folders.
    #[arg(long)]
    pub uid: Option<u32>,
    /// Group of files and folders.
    #[arg(long)]
    pub gid: Option<u32>,
    /// Permissions of folders, octal.
    #[arg(long, value_parser = permissions)]
    pub dir_mode: Option<u16>,
    /// Permissions of files, octal.
    #[arg(long, value_parser = permissions)]
    pub file_mode: Option<u16>,
    /// Storage class of new objects.
    #[arg(long)]
    pub storage_class: Option<String>,

    /// Folder for what was read.
    #[arg(long)]
    pub cache: Option<PathBuf>,
    /// How large it may become, in MiB.
    #[arg(long, requires = "cache", value_parser = value_parser!(u32).range(1..))]
    pub max_cache_size: Option<u32>,
    /// How long metadata is kept: seconds, `minimal` or `indefinite`.
    #[arg(long, value_parser = time_to_live)]
    pub metadata_ttl: Option<TimeToLive>,

    /// Size of a part in bytes.
    #[arg(long, default_value_t = 8 * 1024 * 1024)]
    pub part_size: usize,
    /// Threads that serve FUSE.
    #[arg(long, default_value_t = 16)]
    pub max_threads: usize,
    /// Throughput to aim at.
    #[arg(long, default_value_t = 10.0)]
    pub maximum_throughput_gbps: f64,

    /// Says more.
    #[arg(short, long)]
    pub debug: bool,
    /// Says more about requests.
    #[arg(long)]
    pub debug_crt: bool,
    /// Says nothing.
    #[arg(long, conflicts_with_all = ["debug", "debug_crt"])]
    pub no_log: bool,
    /// It always stays in the foreground.
    #[arg(short, long)]
    pub foreground: bool,
}

impl Arguments {
    /// The default filter of what is logged.
    pub fn log_filter(&self) -> String {
        if self.no_log {
            return "off".into();
        }
        let ours = if self.debug { "debug" } else { "warn" };
        let requests = if self.debug_crt { "debug" } else { "off" };
        format!("{ours},awscrt={requests}")
    }
}

fn permissions(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("permissions are three octal digits".into()),
    }
}

fn time_to_live(text: &str) -> Result<TimeToLive, String> {
    TimeToLive::new_from_str(text).map_err(|error| error.to_string())
}
