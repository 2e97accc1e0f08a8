//! Numbers, strings and lists as bytes.

use super::{MAX_PIDS, Pids, ProtocolError, VERSION};
use crate::id::ProcessId;

/// Builds a packet.
#[derive(Debug)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn new(kind: u16) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        Self(bytes)
    }

    pub(super) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub(super) fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(super) fn i32(&mut self, v: i32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(super) fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(super) fn id(&mut self, id: ProcessId) {
        self.0.extend_from_slice(&id.to_u128().to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn pids(&mut self, pids: &Pids) {
        self.u32(pids.total);
        let listed = &pids.pids[..pids.pids.len().min(MAX_PIDS)];
        self.u32(listed.len() as u32);
        listed.iter().for_each(|pid| self.i32(*pid));
    }
}

/// Takes a packet apart.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn open(packet: &'a [u8]) -> Result<(u16, Self), ProtocolError> {
        let mut reader = Self(packet);
        let version = reader.u16()?;
        if version != VERSION {
            return Err(ProtocolError::Version { found: version });
        }
        let kind = reader.u16()?;
        Ok((kind, reader))
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(ProtocolError::Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        self.take(N)?.try_into().map_err(|_| ProtocolError::Malformed)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, ProtocolError> {
        self.array().map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn id(&mut self) -> Result<ProcessId, ProtocolError> {
        self.array().map(|bytes| ProcessId::from_u128(u128::from_le_bytes(bytes)))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], ProtocolError> {
        let n = self.u32()? as usize;
        self.take(n)
    }

    pub(super) fn pids(&mut self) -> Result<Pids, ProtocolError> {
        let total = self.u32()?;
        let listed = self.u32()? as usize;
        if listed > MAX_PIDS || listed > total as usize {
            return Err(ProtocolError::Malformed);
        }
        let pids = (0..listed).map(|_| self.i32()).collect::<Result<_, _>>()?;
        Ok(Pids { total, pids })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn end(self) -> Result<(), ProtocolError> {
        if self.is_empty() { Ok(()) } else { Err(ProtocolError::Malformed) }
    }
}
