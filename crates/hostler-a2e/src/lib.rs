//! hostler-a2e
