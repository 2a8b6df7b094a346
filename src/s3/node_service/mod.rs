//! CSI Identity and Node services of the S3 driver.
