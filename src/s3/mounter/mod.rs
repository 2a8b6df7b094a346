//! The program in each Mountpoint Pod: receives options and a FUSE descriptor, and runs mount-s3.
