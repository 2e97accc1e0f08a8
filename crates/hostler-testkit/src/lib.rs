//! hostler-testkit
