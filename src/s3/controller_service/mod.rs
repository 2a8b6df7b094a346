//! CSI Controller service of the S3 driver: a bucket per claim.
