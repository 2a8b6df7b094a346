//! `mount-s3` for tests and demos: see `arguments.rs` for what it takes.

mod arguments;
mod libfuse;

use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use clap::Parser as _;
use mountpoint_s3_client::config::{AddressingStyle, S3ClientAuthConfig};
use mountpoint_s3_client::instance_info::InstanceInfo;
use mountpoint_s3_client::user_agent::UserAgent;
use mountpoint_s3_fs::data_cache::{CacheLimit, DataCacheConfig, DiskDataCacheConfig, ManagedCacheDir};
use mountpoint_s3_fs::fs::{CacheConfig, TimeToLive};
use mountpoint_s3_fs::fuse::config::{FuseOptions, FuseSessionConfig, MountPoint};
use mountpoint_s3_fs::fuse::session::FuseSession;
use mountpoint_s3_fs::logging::{LoggingConfig, init_logging};
use mountpoint_s3_fs::memory::{CandidateSize, MINIMUM_MEM_LIMIT, PagedPool};
use mountpoint_s3_fs::s3::config::{ClientConfig, MemoryLimitSetting, PartConfig, TargetThroughputSetting};
use mountpoint_s3_fs::s3::{Bucket, Prefix, S3Path};
use mountpoint_s3_fs::{
    MountpointConfig, Runtime, S3FilesystemConfig, Superblock, SuperblockConfig, autoconfigure, metrics,
};

use arguments::Arguments;

/// Size of a block in the cache.
const CACHE_BLOCK: u64 = 1024 * 1024;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let logging =
        LoggingConfig { log_file: None, log_to_stdout: true, default_filter: arguments.log_filter() };
    let _logging = init_logging(logging).context("failed to set up logging")?;
    let _metrics = metrics::install(None).map_err(|error| anyhow!("failed to set up metrics: {error}"))?;
    let session = mount(arguments)?;
    println!("bucket {} is mounted at {}", arguments.bucket, arguments.mount_point);
    session.join()
}

fn mount(arguments: &Arguments) -> Result<FuseSession> {
    let mount_point = MountPoint::new(&arguments.mount_point)?;
    if !matches!(mount_point, MountPoint::FileDescriptor(_)) {
        return Err(anyhow!("{} is not /dev/fd/N: mount first, and pass the descriptor", arguments.mount_point));
    }
    let session = FuseSessionConfig::new(mount_point, fuse_options(arguments), arguments.max_threads.max(1))?;
    let file_system = file_system(arguments);
    let (data_cache, cache_folder) = data_cache(arguments)?;
    let path = S3Path::new(
        Bucket::new(arguments.bucket.clone())?,
        Prefix::new(arguments.prefix.as_deref().unwrap_or_default())?,
    );
    let client = client_config(arguments)?;
    let pool = PagedPool::config()
        .with_candidate_sizes([
            CandidateSize::new(client.part_config.read_size_bytes),
            CandidateSize::new(CACHE_BLOCK as usize),
        ])
        .with_memory_limit(MINIMUM_MEM_LIMIT)
        .build();
    let client = client.create_client(pool.clone(), Some(&path)).context("Failed to create S3 client")?;
    let runtime = Runtime::new(client.event_loop_group());
    let superblock = SuperblockConfig {
        cache_config: file_system.cache_config.clone(),
        s3_personality: file_system.s3_personality,
    };
    let superblock = Superblock::new(client.clone(), path, superblock);
    let mut session = MountpointConfig::new(session, file_system, data_cache)?
        .create_fuse_session(superblock, client, runtime, pool)
        .context("Failed to create FUSE session")?;
    session.run_on_close(Box::new(move || drop(cache_folder)));
    Ok(session)
}

fn fuse_options(arguments: &Arguments) -> FuseOptions {
    FuseOptions {
        read_only: arguments.read_only,
        allow_root: arguments.allow_root,
        allow_other: arguments.allow_other,
        ..FuseOptions::default()
    }
}

fn file_system(arguments: &Arguments) -> S3FilesystemConfig {
    let default = S3FilesystemConfig::default();
    // With a cache, what is known of an object is kept for a minute, as mount-s3 does it.
    let kept = if arguments.cache.is_some() {
        TimeToLive::Duration(std::time::Duration::from_secs(60))
    } else {
        TimeToLive::Minimal
    };
    S3FilesystemConfig {
        uid: arguments.uid.unwrap_or(default.uid),
        gid: arguments.gid.unwrap_or(default.gid),
        dir_mode: arguments.dir_mode.unwrap_or(default.dir_mode),
        file_mode: arguments.file_mode.unwrap_or(default.file_mode),
        allow_delete: arguments.allow_delete,
        allow_overwrite: arguments.allow_overwrite,
        read_only: arguments.read_only,
        storage_class: arguments.storage_class.clone(),
        cache_config: CacheConfig::new(arguments.metadata_ttl.unwrap_or(kept)),
        ..default
    }
}

fn data_cache(arguments: &Arguments) -> Result<(DataCacheConfig, Option<ManagedCacheDir>)> {
    let Some(parent) = &arguments.cache else { return Ok((DataCacheConfig::default(), None)) };
    let folder = ManagedCacheDir::new_from_parent_with_cache_key(parent, None, true)
        .context("failed to create cache directory")?;
    let limit = match arguments.max_cache_size {
        Some(mebibytes) => CacheLimit::TotalSize { max_size: mebibytes as usize * 1024 * 1024 },
        None => CacheLimit::default(),
    };
    let disk = DiskDataCacheConfig { cache_directory: folder.as_path_buf(), block_size: CACHE_BLOCK, limit };
    Ok((DataCacheConfig { disk_cache_config: Some(disk), express_cache_config: None }, Some(folder)))
}

fn client_config(arguments: &Arguments) -> Result<ClientConfig> {
    let auth_config = match &arguments.profile {
        Some(profile) => S3ClientAuthConfig::Profile(profile.clone()),
        None if arguments.no_sign_request => S3ClientAuthConfig::NoSigning,
        None => S3ClientAuthConfig::Default,
    };
    Ok(ClientConfig {
        region: autoconfigure::get_region(&InstanceInfo::new(), arguments.region.clone()),
        endpoint_url: arguments.endpoint_url.clone(),
        addressing_style: match arguments.force_path_style {
            true => AddressingStyle::Path,
            false => AddressingStyle::Automatic,
        },
        dual_stack: false,
        transfer_acceleration: false,
        auth_config,
        requester_pays: arguments.requester_pays,
        expected_bucket_owner: arguments.expected_bucket_owner.clone(),
        throughput_target: TargetThroughputSetting::User { gbps: arguments.maximum_throughput_gbps },
        bind: None,
        part_config: PartConfig::with_part_size(arguments.part_size)
            .validate(MemoryLimitSetting::Default(MINIMUM_MEM_LIMIT))?,
        user_agent: UserAgent::new(arguments.user_agent_prefix.clone()),
        tls_config: None,
    })
}
