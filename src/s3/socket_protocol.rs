//! What the node service and the mounter in a Mountpoint Pod say to each other.
