//! What a network fence does next.
