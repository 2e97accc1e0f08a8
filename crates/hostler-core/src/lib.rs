//! hostler-core
