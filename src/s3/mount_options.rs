//! Mount options of a volume: how they are read, and which are passed on to mount-s3. Pure.
