//! The flag of shared volumes that is not about providers; those are with the controller of SharedVolumeProviders.

/// Flags; each is an environment variable too.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Shared volumes")]
pub struct SharedVolumeFlags {
    /// Domain of the cluster's DNS, for SharedVolumes whose clients mount by name.
    #[arg(long, env = "BULKHEAD_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
}
